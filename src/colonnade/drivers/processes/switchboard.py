"""A party's sealed lines to all others: they share its one stream to the server and take turns on it."""

import time

from colonnade.drivers.processes.identity import Identity
from colonnade.drivers.processes.line import Line
from colonnade.drivers.processes.logs import Once
from colonnade.drivers.processes.node import Node
from colonnade.drivers.processes.peer import FarPeer, Stream
from colonnade.drivers.processes.relay import Room
from colonnade.drivers.processes.sealing import Signet
from colonnade.drivers.processes.wire import Envelope, Kind, Presence, read_control, read_relay, relay
from colonnade.protocol.errors import RemoteProtocolError

__all__ = ["Switchboard"]


class Switchboard:
    """Opens lines to whoever is connected, and closes those to whoever is not."""

    def __init__(self, node: Node, identity: Identity, members: dict[str, str], server: str = "server") -> None:
        self._server, self._signet, self._complaints = server, Signet(identity, members), Once(node.log)
        self._peers = {peer.name: peer for peer in node.peers.values() if isinstance(peer, FarPeer)}
        self.lines = {name: Line(self, node, peer, self._signet) for name, peer in self._peers.items()}
        self.room = Room(node.limits, len(self.lines) + 1)
        self.flying = 0  # bytes of all lines that nobody has acknowledged
        self._stream: Stream | None = None
        self._connections: dict[str, int] = {}  # of the others, as the server numbers them
        self._ready: dict[Line, None] = {}  # whose turn it is stands first
        self._crowded: set[Line] = set()  # there was no room for what they have
        self.refusals = 0
        self.stale = 0  # frames of sessions that are over

    def connected(self, stream: Stream, run: str) -> None:
        """The server is there; who else is, it will say."""
        self._stream, self._signet.run = stream, run

    def disconnected(self) -> None:
        """Without the server nobody can be reached."""
        self._stream = None
        self._connections.clear()
        for name, line in self.lines.items():
            self._leave(line, self._peers[name])
        self._ready.clear()
        self._crowded.clear()

    def presence(self, envelope: Envelope) -> None:
        """The server says who is connected."""
        found = read_control(envelope, Kind.PRESENCE, Presence, self._server)
        for name, line in self.lines.items():
            number, peer = found.here.get(name), self._peers[name]
            if number is None:
                self._leave(line, peer)
                self._connections.pop(name, None)
                silent_s = found.silent_s.get(name, 0.0)
                if silent_s > 0:
                    peer.last_heard = min(peer.last_heard, time.monotonic() - silent_s)
            elif number != self._connections.get(name):
                self._connections[name], peer.here = number, True
                line.reach()

    def take(self, envelope: Envelope) -> None:
        """Something from another party; if it is not, the relay may have made it, and nobody is cut off for it."""
        name, content = read_relay(envelope.body, self._server)
        if name not in self.lines:
            raise RemoteProtocolError(self._server, "relays something from nobody")
        try:
            self.lines[name].take(content)
        except RemoteProtocolError as error:
            self.refused(error)

    def refused(self, error: RemoteProtocolError) -> None:
        """Dropped, counted, and said once."""
        self.refusals += 1
        self._complaints.warning("refused what came over the relay", peer=error.peer, cause=error.cause)

    def wants(self, line: Line) -> None:
        """A line has something to write."""
        self._ready[line] = None
        if self._stream is not None:
            self._stream.wake_aside()

    def next_frame(self) -> bytes | None:
        """Of the line whose turn it is."""
        while self._ready:
            line = next(iter(self._ready))
            del self._ready[line]
            frame = line.next_frame()
            if frame is not None:
                self._ready[line] = None  # behind the others
                return relay(line.name, *frame)
        return None

    def has_room(self, line: Line, size: int) -> bool:
        """Whether so much more may be under way; if not, the line is called when it may."""
        if self.flying + size <= self.room.sender:
            return True
        self._crowded.add(line)
        return False

    def landed(self, size: int) -> None:
        """So much is no longer under way."""
        self.flying -= size
        crowded, self._crowded = self._crowded, set()
        for line in crowded:
            self.wants(line)

    @staticmethod
    def _leave(line: Line, peer: FarPeer) -> None:
        peer.here = False
        line.leave()
