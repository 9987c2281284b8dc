"""A party's sealed lines to the other parties. They share the party's stream to the server and take turns on it."""

import time
from collections.abc import Mapping

from colonnade.drivers.processes.identity import Identity
from colonnade.drivers.processes.logs import Once
from colonnade.drivers.processes.node import Node
from colonnade.drivers.processes.peer import FarPeer, Stream
from colonnade.drivers.processes.relay import Room
from colonnade.drivers.processes.sealed_line import SealedLine
from colonnade.drivers.processes.sealing import Signet
from colonnade.drivers.processes.wire import Envelope, Kind, Presence, read_control, read_relay, relay
from colonnade.protocol.errors import RemoteProtocolError

__all__ = ["Switchboard"]


class Switchboard:
    """Opens a line to each party that is connected, and closes it when that party leaves."""

    def __init__(self, node: Node, identity: Identity, members: Mapping[str, str], server: str = "server") -> None:
        self._server, self._signet, self._complaints = server, Signet(identity, members), Once(node.log)
        self._peers = {peer.name: peer for peer in node.peers.values() if isinstance(peer, FarPeer)}
        self.lines = {name: SealedLine(self, node, peer, self._signet) for name, peer in self._peers.items()}
        self.room = Room(node.limits, len(self.lines) + 1)
        self.flying = 0  # bytes on all lines without an acknowledgement
        self._stream: Stream | None = None
        self._connections: dict[str, int] = {}  # number of each party's connection, as the server counts
        self._ready: dict[SealedLine, None] = {}  # the line whose turn it is comes first
        self._crowded: set[SealedLine] = set()  # lines that wait for room
        self.refusals = 0
        self.stale = 0  # frames of sessions that are over

    def changed(self, identity: Identity, members: Mapping[str, str]) -> None:
        """Use this certificate and list from now on. Lines to excluded parties close, and others may open."""
        before = self._signet.members
        self._signet.changed(identity, members)
        for name, line in self.lines.items():
            if name not in self._connections:
                continue
            if (shown := self._signet.read_with.get(name)) and shown not in self._signet.members.all_of(name):
                self._signet.read_with.pop(name)
                self._leave(line, self._peers[name])
                self._complaints.warning("closed the line to a party", peer=name, cause="its certificate was revoked")
            if not line.stands and before.all_of(name) != self._signet.members.all_of(name) and name in members:
                self._peers[name].here = True
                line.reach()

    def connected(self, stream: Stream, run: str) -> None:
        """Use this stream to the server. The server will tell which parties are connected."""
        self._stream, self._signet.run = stream, run

    def disconnected(self) -> None:
        """Close all lines: without the server no party can be reached."""
        self._stream = None
        self._connections.clear()
        for name, line in self.lines.items():
            self._leave(line, self._peers[name])
        self._ready.clear()
        self._crowded.clear()

    def presence(self, envelope: Envelope) -> None:
        """Open and close lines as the server reports which parties are connected."""
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
        """Take a relayed frame. A bad frame is only dropped, because the relay may have made it, not the party."""
        name, content = read_relay(envelope.body, self._server)
        if name not in self.lines:
            raise RemoteProtocolError(self._server, "relays a frame without a sender")
        try:
            self.lines[name].take(content)
        except RemoteProtocolError as error:
            self.refused(error)

    def refused(self, error: RemoteProtocolError) -> None:
        """Drop the frame, count it and log it once."""
        self.refusals += 1
        self._complaints.warning("refused a relayed frame", peer=error.peer, cause=error.cause)

    def refused_by(self, name: str, cause: str) -> None:
        """Log why a party did not take a message of this one."""
        self._complaints.warning("a party refused a message", peer=name, cause=cause)

    def wants(self, line: SealedLine) -> None:
        """Tell that a line has something to write."""
        self._ready[line] = None
        if self._stream is not None:
            self._stream.wake_aside()

    def next_frame(self) -> bytes | None:
        """The next frame of the line whose turn it is."""
        while self._ready:
            line = next(iter(self._ready))
            del self._ready[line]
            frame = line.next_frame()
            if frame is not None:
                self._ready[line] = None  # behind the others
                return relay(line.name, *frame)
        return None

    def has_room(self, line: SealedLine, size: int) -> bool:
        """Whether `size` more bytes may be in flight. If not, the line is called again when there is room."""
        if self.flying + size <= self.room.sender:
            return True
        self._crowded.add(line)
        return False

    def landed(self, size: int) -> None:
        """Count `size` bytes as no longer in flight, and wake the lines that wait for room."""
        self.flying -= size
        crowded, self._crowded = self._crowded, set()
        for line in crowded:
            self.wants(line)

    @staticmethod
    def _leave(line: SealedLine, peer: FarPeer) -> None:
        peer.here = False
        line.leave()
