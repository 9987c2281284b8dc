"""`colonnade check`: addresses, ports, the disk and the packages that a member needs. It dials only if asked."""

import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from colonnade.algorithms.method import SERVER
from colonnade.config.schema import Config
from colonnade.deployment.finding import Finding, Findings, error, fine, tried, warning
from colonnade.deployment.invitation import EVERYWHERE
from colonnade.extras import require_extra
from colonnade.results.track import PACKAGES

__all__ = ["machine_findings"]

LITTLE, TOO_LITTLE = 10**9, 10**8  # bytes of free disk
PATIENCE_S = 5.0


def machine_findings(config: Config, name: str, out: Path, dial: bool) -> Findings:
    """The checks of this machine."""
    if name == SERVER:
        yield _port("address", "network.address", config.network.address)
        if config.network.metrics_port is not None:
            yield _port("metrics", "network.metrics_port", f"127.0.0.1:{config.network.metrics_port}")
        if config.predict.stay:
            yield _port("http", "predict.http", config.predict.http)
    else:
        yield _server_address(config.network.address, dial)
    yield _disk(out)
    for extra, purpose, modules in _extras(config, name):
        yield _extra(extra, purpose, modules)


def _extra(extra: str, purpose: str, modules: tuple[str, ...]) -> Finding:
    def installed() -> str:
        require_extra(extra, purpose, *modules)
        return f"{extra}, for {purpose}"

    return tried("extras", installed)


def _parsed(address: str) -> tuple[str, int] | None:
    host, _, port = address.rpartition(":")
    valid = host and port.isdecimal() and int(port) < 2**16
    return (host.strip("[]"), int(port)) if valid else None


def _port(name: str, key: str, address: str) -> Finding:
    """Whether this process could listen there now."""
    parsed = _parsed(address)
    if parsed is None:
        return error(name, f"{key} = {address!r}: must be HOST:PORT, such as 0.0.0.0:7450")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(*parsed, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            if sys.platform != "win32":  # there the option would allow a port in use
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen(1)
    except OSError as wrong:
        next = "stop the process that listens there (this server, if it runs already), or choose another address"
        return error(name, f"{key} = {address!r}: cannot listen there: {wrong.strerror or wrong}", next)
    return fine(name, f"{address} is free")


def _server_address(address: str, dial: bool) -> Finding:
    """A party's way to the server."""
    parsed = _parsed(address)
    if parsed is None or parsed[1] == 0 or parsed[0] in EVERYWHERE:
        text = f"network.address = {address!r}: must be HOST:PORT, as this machine reaches the server"
        return error("address", text, "ask the server's operator")
    try:
        socket.getaddrinfo(*parsed, type=socket.SOCK_STREAM)
    except OSError as wrong:
        text = f"network.address = {address!r}: the name cannot be resolved: {wrong.strerror or wrong}"
        return error("address", text, "correct the name, or use the IP address")
    if not dial:
        return fine("address", f"{address}, not dialled (--dial tries it)")
    try:
        socket.create_connection(parsed, PATIENCE_S).close()
    except OSError as wrong:
        text = f"{address} does not answer: {wrong.strerror or wrong}"
        return warning("address", text, "start the server, or ask for the firewall on the way")
    return fine("address", f"{address} answers")


def _disk(out: Path) -> Finding:
    """Whether the run's folder can be written to, and has room."""
    there = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return error("disk", f"{there} cannot be written to", "choose another folder with --out")
    free = shutil.disk_usage(there).free
    text = f"{free / 1e9:.1f} GB free for {out}"
    if free < TOO_LITTLE:
        return error("disk", text, "free some space, or choose another folder with --out")
    return warning("disk", text, "free some space") if free < LITTLE else fine("disk", text)


def _extras(config: Config, name: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """The extras that this config needs: name, purpose, modules."""
    if name == SERVER and config.predict.stay:
        yield "serve", "answering predictions over HTTP", ("h11",)
    if name == SERVER and config.network.metrics_port is not None:
        yield "serve", "network.metrics_port", ("prometheus_client",)
    if config.track.to:
        yield "track", "track.to", tuple(PACKAGES[one] for one in config.track.to)
