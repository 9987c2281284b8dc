"""Connects to Ray: one on this machine that is bound to loopback, or a cluster that is already up.

By default Ray listens on all interfaces. Any program that reaches it (and has its token, if Ray asks for one) can run
code there, so Ray is for one trust domain. `127.0.0.1` as the node's address is not enough: on Linux Ray replaces it by
the machine's own address, unless a switch that was made for other systems says that there is no cluster.
"""

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from colonnade.extras import require_extra
from colonnade.protocol.errors import ColonnadeError, ConfigError

__all__ = ["connected"]

LOOPBACK = "127.0.0.1"
NO_CLUSTER = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # "0" before ray is imported: loopback stays loopback
ANSWER_S = 5.0
HEAD_IS_SILENT = "Timed out waiting for file"  # Ray's words
START = f"{NO_CLUSTER}=0 ray start --head --node-ip-address={LOOPBACK} --port=6379"


@contextmanager
def connected(address: str | None = None, cpus: int | None = None) -> Iterator[None]:
    """While this context is open: a new local Ray, or the one at this address, after a check of its nodes.

    Raises ConfigError if no suitable Ray answers, and ColonnadeError if Ray would listen beyond loopback.
    """
    if address is not None:
        _refuse_silence(address)
    on_loopback = address is None or address.rpartition(":")[0] in (LOOPBACK, "localhost")
    if on_loopback:
        os.environ.setdefault(NO_CLUSTER, "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else Ray would report usage statistics
    require_extra("ray", "Ray", "ray")
    import ray  # noqa: PLC0415 - only after the switches are set

    common: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        if address is None:
            own: dict[str, Any] = {
                "address": "local",
                "num_cpus": cpus,
                "_node_ip_address": LOOPBACK,
            }  # "local": a new Ray, even if another one is up
            _start(lambda: ray.init(**own, include_dashboard=False, **common), ray.shutdown)
        else:
            ray.init(address=address, **common)
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
        raise _in_our_words(address, error) from None
    try:
        from colonnade.drivers.ray.nodes import addresses, refuse_differing  # noqa: PLC0415

        if on_loopback:
            _refuse_other_interfaces(address, addresses())
        if address is not None:
            refuse_differing()
        yield
    finally:
        ray.shutdown()


def _start(begin: Callable[[], Any], shut_down: Callable[[], None]) -> None:
    """Start a local Ray, and try once more if its head did not come up.

    Ray forks this process to start the head. If another thread holds a lock at that moment, the child may wait for the
    lock without end. The only visible sign is that the head's file does not appear.
    """
    try:
        begin()
    except (RuntimeError, OSError) as error:
        if HEAD_IS_SILENT not in str(error):
            raise
        shut_down()
        begin()


def _refuse_silence(address: str) -> None:
    """Raise ConfigError soon if the address does not answer; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError("--address", address, "must be host:port, as `ray start --head` prints it")
    try:
        socket.create_connection((host, int(port)), ANSWER_S).close()
    except OSError as error:
        raise _no_ray(address, str(error)) from None


def _refuse_other_interfaces(address: str | None, found: list[str]) -> None:
    others = [there for there in found if there != LOOPBACK]
    if not others:
        return
    if address is not None:
        advice = f"its nodes are at {', '.join(others)}: give the address that `ray start --head` printed"
        raise ConfigError("--address", address, advice)
    raise ColonnadeError(
        f"Ray was imported too early and would listen on all interfaces: export {NO_CLUSTER}=0 and run the "
        "command again"
    )


def _in_our_words(address: str | None, error: Exception) -> ConfigError:
    said = str(error)
    if "uthenticat" in f"{type(error).__name__} {error.__cause__}":
        advice = "requires a token: export RAY_AUTH_MODE=token, and put the cluster's token into ~/.ray/auth_token"
        return ConfigError("--address", address, advice)
    if said.startswith("Version mismatch"):
        told = " ".join(said.partition("mismatch: ")[2].split())
        return ConfigError("--address", address, f"needs the same Ray and Python on both sides. {told}")
    return _no_ray(address, said.strip().partition("\n")[0][:200] or type(error).__name__)


def _no_ray(address: str | None, cause: str) -> ConfigError:
    return ConfigError("--address", address, f"no Ray answers there ({cause}); start one with: {START}")
