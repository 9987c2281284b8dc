"""The server between two parties: it carries sealed frames and tells which parties are connected.

It keeps no log of the frames and guarantees no delivery. It drops a frame if the receiver is away or the sender sends
too much; the sender's line then sends it again (see `line`). The frames that wait are limited for each sender and, in
that, for each pair, so that no party takes the room of another. At the receiver, the senders take turns with each other
and with the server.
"""

import time
from collections import deque
from typing import TYPE_CHECKING

from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.logs import Once
from colonnade.drivers.processes.peer import Stream
from colonnade.drivers.processes.wire import RELAY_BYTES, Kind, Presence, control, read_relay, relay
from colonnade.protocol.errors import RemoteProtocolError

if TYPE_CHECKING:
    from colonnade.drivers.processes.node import Node

__all__ = ["Relay", "Room"]

WHOLE_BYTES = 256 * 2**20  # limit of all waiting bytes, unless one message may exceed a fair share of it
SPARE_FRAMES = 16  # per pair, beyond its window: handshakes and acknowledgements


class Room:
    """How much one party may have in flight. Sender and relay use the same limits: an honest sender loses nothing."""

    def __init__(self, limits: Limits, parties: int) -> None:
        others = max(1, parties - 1)
        self.largest = limits.max_message_bytes + RELAY_BYTES
        self.sender = max(2 * self.largest, WHOLE_BYTES // max(1, parties))
        self.pair = self.sender // others  # plus one frame of any size
        self.frames = 2 * limits.max_in_flight + SPARE_FRAMES  # a line that restarts may have two windows there


class Relay:
    """All outlets, and which parties are connected."""

    def __init__(self, node: "Node") -> None:
        self._node, self._complaints = node, Once(node.log)
        self.room = Room(node.limits, len(node.peers))
        self._connections = 0
        self._here: dict[str, int] = {}
        self._left: dict[str, float] = {}  # when parties that left were last heard
        self.outlets: dict[str, Outlet] = {}
        self.held = dict.fromkeys(node.peers, 0)  # waiting bytes, by sender
        self.dropped = 0

    def outlet(self, name: str) -> "Outlet":
        """Make the outlet for the frames to this party that are not part of its own conversation."""
        outlet = self.outlets[name] = Outlet(self, name)
        return outlet

    def connected(self, name: str, stream: Stream) -> None:
        """Add a party that can be reached, and tell all parties."""
        self._connections += 1
        self._here[name] = self._connections
        self.outlets[name].stream = stream
        self._tell_all()

    def disconnected(self, name: str) -> None:
        """Remove a party, drop the frames that wait for it, and tell all parties."""
        outlet = self.outlets.pop(name)
        outlet.stream = None
        for sender in list(outlet.queues):
            self.dropped += outlet.clear(sender)
        if self._here.pop(name, None) is not None:
            self._left[name] = self._node.peers[name].last_heard
            self._tell_all()

    def forward(self, sender: str, body: memoryview) -> None:
        """Pass a RELAY frame on; raises RemoteProtocolError if it is not addressed to another party."""
        name, content = read_relay(body, sender)
        if name not in self._node.peers or name == sender:
            raise RemoteProtocolError(sender, "RELAY to a name that is not another party")
        frame = relay(sender, content)
        outlet = self.outlets.get(name)
        if outlet is None or not outlet.put(sender, frame):
            self.dropped += 1
            if outlet is not None:
                self._complaints.warning("dropped a relayed frame: the receiver is too slow", peer=sender, to=name)
            return
        self._node.traffic.count_relayed(len(frame))

    def presence(self) -> bytes:
        """A PRESENCE frame with the current state."""
        now = time.monotonic()
        silent = {name: now - since for name, since in self._left.items() if name not in self._here}
        return control(Kind.PRESENCE, Presence(dict(self._here), silent))

    def _tell_all(self) -> None:
        for outlet in self.outlets.values():
            outlet.tell()


class Outlet:
    """What waits for one party: the newest presence, and the other parties' frames in turn."""

    def __init__(self, relay: Relay, name: str) -> None:
        self._relay, self.name = relay, name
        self.stream: Stream | None = None
        self._news = False
        self.queues: dict[str, deque[tuple[float, bytes]]] = {}  # by sender; the sender whose turn it is comes first
        self._bytes: dict[str, int] = {}

    def tell(self) -> None:
        """Queue the newest presence; it replaces an older one that was not written yet."""
        self._news = True
        self._wake()

    def put(self, sender: str, frame: bytes) -> bool:
        """Queue a frame; False if there is no room."""
        queue, room, size = self.queues.get(sender), self._relay.room, len(frame)
        if queue and time.monotonic() - queue[0][0] > self._relay._node.limits.lost_after_s:
            self._relay.dropped += self.clear(sender)  # a receiver that does not read must not take the sender's room
            queue = None
        if self._relay.held[sender] + size > room.sender:
            return False
        if queue and (len(queue) >= room.frames or self._bytes[sender] + size > room.pair):
            return False
        self.queues.setdefault(sender, deque()).append((time.monotonic(), frame))
        self._bytes[sender] = self._bytes.get(sender, 0) + size
        self._relay.held[sender] += size
        self._wake()
        return True

    def next_frame(self) -> bytes | None:
        """The presence if it is new, else a frame of the sender whose turn it is."""
        if self._news:
            self._news = False
            return self._relay.presence()
        for sender, queue in self.queues.items():
            _, frame = queue.popleft()
            self._bytes[sender] -= len(frame)
            self._relay.held[sender] -= len(frame)
            del self.queues[sender]
            if queue:
                self.queues[sender] = queue  # behind the others
            return frame
        return None

    def clear(self, sender: str) -> int:
        """Drop this sender's waiting frames; returns their number."""
        self._relay.held[sender] -= self._bytes.pop(sender)
        return len(self.queues.pop(sender))

    def _wake(self) -> None:
        if self.stream is not None:
            self.stream.wake_aside()
