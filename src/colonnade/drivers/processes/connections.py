"""Connections at the server's port: their number is bounded, and callers that are not members are hung up on.

gRPC accepts connections itself and offers three limits: the number of connections in all, the time for the TLS
handshake, and the time without a call. It knows no addresses, and a connection that it closes is not counted. So this
module looks at the sockets of this process several times a second. A connection is a stranger's until a member calls on
it. The server hangs up on strangers that stay too long, and on the oldest ones of an address that has too many.

A socket is shut down, not closed: gRPC owns the descriptor and closes it, as if the other side had left. Windows has no
list of descriptors; there the three limits of gRPC remain.
"""

import asyncio
import contextlib
import errno
import os
import socket
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import unquote

if sys.platform != "win32":
    import resource

__all__ = ["Connections", "connections_allowed", "descriptors_left", "open_descriptors", "raise_descriptor_limit"]

LOOK_S, LOOK_OFTEN_S = 0.25, 0.05  # the second if an address has too many
RESERVE = 128  # descriptors for files and for connections of other kinds
_DESCRIPTORS = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"


def raise_descriptor_limit() -> None:
    """Allow this process as many descriptors as the system lets it have."""
    if sys.platform == "win32":
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS says "infinity", and refuses it
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connections_allowed(wanted: int) -> int:
    """This number, or what the descriptors allow if that is less. A reserve of descriptors is left for files."""
    if sys.platform == "win32":
        return wanted
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, soft - len(open_descriptors()) - min(RESERVE, soft // 4)))


def descriptors_left() -> bool:
    """Whether two more files can be opened now: what a checkpoint needs."""
    spare: list[int] = []
    try:
        for _ in range(2):
            spare.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return False
        raise
    finally:
        for descriptor in spare:
            os.close(descriptor)
    return True


@dataclass(slots=True)
class _Connection:
    """A socket that was accepted at the port."""

    number: int  # of the socket, unique in the system
    peer: str
    since: float = field(default_factory=time.monotonic)  # a stranger's

    @property
    def address(self) -> str:
        return self.peer.rpartition(" ")[0]


class Connections:
    """Watches the connections at one port."""

    def __init__(self, port: int, most: int, refused: Callable[[str, str], None]) -> None:
        """`refused` gets the kind of limit and the address of each connection that the server hangs up on."""
        self._port, self._refused = port, refused
        self._most = most
        self._found: dict[int, _Connection | None] = {}  # by descriptor; None: something else
        self._numbers: dict[int, int] = {}  # by descriptor, which the system uses again for other sockets
        self._members: Counter[str] = Counter()  # calls of members, by peer
        self.count = 0

    def called(self, peer: str) -> None:
        """Note that a member calls on this connection (`ServicerContext.peer`)."""
        self._members[_plain(peer)] += 1

    def hung_up(self, peer: str) -> None:
        """Note that a call of a member ended."""
        peer = _plain(peer)
        self._members[peer] -= 1
        if self._members[peer] <= 0:
            del self._members[peer]
        for connection in self._found.values():
            if connection is not None and connection.peer == peer:
                connection.since = time.monotonic()

    def cut(self, peer: str) -> None:
        """End this connection now."""
        self._look()
        peer = _plain(peer)
        for descriptor, connection in list(self._found.items()):
            if connection is not None and connection.peer == peer:
                self._shut(descriptor, connection)

    async def watch(self, stranger_s: float, most_of_one: int) -> None:
        """Hang up on strangers after `stranger_s`, and on the oldest beyond `most_of_one` of an address."""
        most_of_one = max(1, min(most_of_one, self._most // 2))
        while True:
            crowded = self.hang_up_on_strangers(stranger_s, most_of_one)
            await asyncio.sleep(LOOK_OFTEN_S if crowded else LOOK_S)

    def hang_up_on_strangers(self, stranger_s: float, most_of_one: int) -> bool:
        """Look once; returns whether an address had too many connections."""
        self._look()
        strangers: dict[str, list[tuple[float, int, _Connection]]] = {}
        for descriptor, connection in self._found.items():
            if connection is not None and connection.peer not in self._members:
                entry = (connection.since, descriptor, connection)
                strangers.setdefault(connection.address, []).append(entry)
        late, crowded = time.monotonic() - stranger_s, False
        for address, entries in strangers.items():
            entries.sort(key=lambda entry: entry[0])
            excess = len(entries) - most_of_one
            crowded = crowded or excess > 0
            for place, (since, descriptor, connection) in enumerate(entries):
                if place < excess or since < late:
                    self._shut(descriptor, connection)
                    self._refused("connections" if place < excess else "handshake", address)
        return crowded

    def _look(self) -> None:
        """Find the connections of the port among all descriptors. Most are known from the last time."""
        found: dict[int, _Connection | None] = {}
        numbers: dict[int, int] = {}
        for descriptor in open_descriptors():
            try:
                status = os.fstat(descriptor)
            except OSError:
                continue  # closed meanwhile
            numbers[descriptor] = status.st_ino
            if self._numbers.get(descriptor) == status.st_ino:
                found[descriptor] = self._found[descriptor]
            else:
                found[descriptor] = self._examine(descriptor) if stat.S_ISSOCK(status.st_mode) else None
        self._found, self._numbers = found, numbers
        self.count = sum(connection is not None for connection in found.values())

    def _examine(self, descriptor: int) -> _Connection | None:
        """The connection behind a descriptor; None if it is another kind of socket."""
        try:
            with _second(descriptor) as sock:
                if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
                    return None
                if sock.getsockname()[1] != self._port:
                    return None
                host, port = sock.getpeername()[:2]
                return _Connection(os.fstat(sock.fileno()).st_ino, f"{host.removeprefix('::ffff:')} {port}")
        except OSError:
            return None  # it listens, or was closed meanwhile

    def _shut(self, descriptor: int, connection: _Connection) -> None:
        with contextlib.suppress(OSError), _second(descriptor) as sock:
            if os.fstat(sock.fileno()).st_ino == connection.number:  # gRPC may have closed it meanwhile
                sock.shutdown(socket.SHUT_RDWR)


def open_descriptors() -> list[int]:
    """The descriptors of this process; [] if the system gives no list."""
    try:
        return [int(entry.name) for entry in os.scandir(_DESCRIPTORS)]
    except OSError:
        return []  # no such list on this system, or no descriptor left to read it


def _second(descriptor: int) -> socket.socket:
    """A second descriptor of a socket: gRPC may close the first one at any time, and the system may use it again."""
    return socket.socket(fileno=os.dup(descriptor))


def _plain(peer: str) -> str:
    """Address and port of a peer as gRPC writes it: `ipv4:10.0.0.1:4711`, `ipv6:%5B::1%5D:4711`."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return f"{host.strip('[]').removeprefix('::ffff:')} {port}"
