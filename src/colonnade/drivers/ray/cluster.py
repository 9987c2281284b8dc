"""Ray on this machine, bound to loopback, or a cluster that is up already.

Ray listens on all interfaces unless told otherwise and believes whoever reaches it: it is for one trust domain.
"""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from colonnade.protocol.errors import ConfigError

__all__ = ["connected"]

LOOPBACK = "127.0.0.1"
ANSWER_S = 5.0
START = f"ray start --head --node-ip-address={LOOPBACK} --port=6379"


@contextmanager
def connected(address: str | None = None, cpus: int | None = None) -> Iterator[None]:
    """For a while: a Ray of one's own, or the one at this address."""
    if address is not None:
        _refuse_silence(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would call home
    common: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        if address is None:
            ray.init(num_cpus=cpus, include_dashboard=False, _node_ip_address=LOOPBACK, **common)
        else:
            ray.init(address=address, **common)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _no_ray(address, str(error).splitlines()[0][:200]) from None
    try:
        yield
    finally:
        ray.shutdown()


def _refuse_silence(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError("--address", address, "write host:port, as `ray start --head` prints it")
    try:
        socket.create_connection((host, int(port)), ANSWER_S).close()
    except OSError as error:
        raise _no_ray(address, str(error)) from None


def _no_ray(address: str | None, cause: str) -> ConfigError:
    return ConfigError("--address", address, f"no Ray answers there ({cause}); start one with: {START}")
