"""The server between two parties: it carries sealed frames, and says who is connected.

It keeps no log of them and promises nothing: what it drops, because the receiver is away or somebody sends too much,
the sender's line sends again (see `line`). What waits is bounded for each sender, and within that for each pair, so
that nobody takes the room of others; at the receiver the senders take turns with each other and with the server.
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

WHOLE_BYTES = 256 * 2**20  # of all that waits, unless single messages may be larger than a fair share of this
SPARE_FRAMES = 16  # of a pair, beyond those of its window: handshakes and acknowledgements


class Room:
    """How much may be under way from one party: both ends reckon with it, so that honest ones lose nothing."""

    def __init__(self, limits: Limits, parties: int) -> None:
        others = max(1, parties - 1)
        self.largest = limits.max_message_bytes + RELAY_BYTES
        self.sender = max(2 * self.largest, WHOLE_BYTES // max(1, parties))
        self.pair = self.sender // others  # and one frame of any size
        self.frames = 2 * limits.max_in_flight + SPARE_FRAMES  # a line that begins again may have two windows there


class Relay:
    """All outlets, and who is connected."""

    def __init__(self, node: "Node") -> None:
        self._node, self._complaints = node, Once(node.log)
        self.room = Room(node.limits, len(node.peers))
        self._connections = 0
        self._here: dict[str, int] = {}
        self._left: dict[str, float] = {}  # when those who have gone were last heard
        self.outlets: dict[str, Outlet] = {}
        self.held = dict.fromkeys(node.peers, 0)  # bytes that wait, by sender
        self.dropped = 0

    def outlet(self, name: str) -> "Outlet":
        """What is to be written to this party beside its own conversation."""
        outlet = self.outlets[name] = Outlet(self, name)
        return outlet

    def connected(self, name: str, stream: Stream) -> None:
        """A party can be reached."""
        self._connections += 1
        self._here[name] = self._connections
        self.outlets[name].stream = stream
        self._tell_all()

    def disconnected(self, name: str) -> None:
        """It cannot any more; what waited for it is dropped."""
        outlet = self.outlets.pop(name)
        outlet.stream = None
        for sender in list(outlet.queues):
            self.dropped += outlet.clear(sender)
        if self._here.pop(name, None) is not None:
            self._left[name] = self._node.peers[name].last_heard
            self._tell_all()

    def forward(self, sender: str, body: memoryview) -> None:
        """A RELAY frame came in."""
        name, content = read_relay(body, sender)
        if name not in self._node.peers or name == sender:
            raise RemoteProtocolError(sender, "RELAY to somebody who is no other party")
        frame = relay(sender, content)
        outlet = self.outlets.get(name)
        if outlet is None or not outlet.put(sender, frame):
            self.dropped += 1
            if outlet is not None:
                self._complaints.warning("more is sent than is taken: dropped", peer=sender, to=name)
            return
        self._node.traffic.count_relayed(len(frame))

    def presence(self) -> bytes:
        """As of now."""
        now = time.monotonic()
        silent = {name: now - since for name, since in self._left.items() if name not in self._here}
        return control(Kind.PRESENCE, Presence(dict(self._here), silent))

    def _tell_all(self) -> None:
        for outlet in self.outlets.values():
            outlet.tell()


class Outlet:
    """What waits for one party: the news of who is here, and the others' frames in turn."""

    def __init__(self, relay: Relay, name: str) -> None:
        self._relay, self.name = relay, name
        self.stream: Stream | None = None
        self._news = False
        self.queues: dict[str, deque[tuple[float, bytes]]] = {}  # by sender; whose turn it is stands first
        self._bytes: dict[str, int] = {}

    def tell(self) -> None:
        """The newest presence is to be written; an older one need not be any more."""
        self._news = True
        self._wake()

    def put(self, sender: str, frame: bytes) -> bool:
        """Take a frame, if there is room."""
        queue, room, size = self.queues.get(sender), self._relay.room, len(frame)
        if queue and time.monotonic() - queue[0][0] > self._relay._node.limits.lost_after_s:
            self._relay.dropped += self.clear(sender)  # a receiver that does not read must not take a sender's room
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
        """The news, or a frame of the sender whose turn it is."""
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
        """Forget what this sender has waiting; how many."""
        self._relay.held[sender] -= self._bytes.pop(sender)
        return len(self.queues.pop(sender))

    def _wake(self) -> None:
        if self.stream is not None:
            self.stream.wake_aside()
