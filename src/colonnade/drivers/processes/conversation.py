"""A conversation: both directions of what one node and one peer say to each other, each message once.

Messages are numbered from 1 in each direction and kept until the other has logged them. A conversation has a
number, drawn by the server; a side that has lost its memory, or lost messages, no longer fits the other's
position, and they begin anew with another number. (sender, conversation, sequence) names a message for ever.
"""

from collections import deque
from typing import Any

from colonnade.drivers.processes.wire import Position
from colonnade.protocol.errors import RemoteProtocolError

__all__ = ["GIVEN_UP", "NEVER_MET", "Conversation"]

NEVER_MET, GIVEN_UP = 0, -1  # in place of a number; what is queued before the first contact is kept


class Conversation:
    """One side's memory of it."""

    def __init__(self, peer: str, max_queue: int) -> None:
        self.peer, self._max_queue = peer, max_queue
        self.number = NEVER_MET
        self.sent = self.received = 0
        self.outbox: deque[tuple[int, bytes]] = deque()  # whole frames, not yet acknowledged
        self.repeats_dropped = 0
        self.lost = 0  # own messages that were given up

    @property
    def acknowledged(self) -> int:
        """Own messages up to here are with the peer."""
        return self.outbox[0][0] - 1 if self.outbox else self.sent

    def put(self, frame: bytes) -> None:
        """Number a message and keep it."""
        self.sent += 1
        self.outbox.append((self.sent, frame))

    @property
    def overflows(self) -> bool:
        """More waits than the peer may keep us waiting with."""
        return len(self.outbox) > self._max_queue

    def give_up(self) -> None:
        """Nothing that was said can be relied on: the next contact begins anew."""
        self.lost += len(self.outbox)
        self.outbox.clear()
        self.number = GIVEN_UP
        self.sent = self.received = 0

    def heard(self, acknowledged: int) -> None:
        """The peer has logged our messages up to here."""
        if acknowledged > self.sent:
            raise RemoteProtocolError(self.peer, f"acknowledges message {acknowledged} of {self.sent}")
        while self.outbox and self.outbox[0][0] <= acknowledged:
            self.outbox.popleft()

    def is_news(self, sequence: int) -> bool:
        """Whether to take this message: the next one yes, a repeat no, a gap is the peer's mistake."""
        if sequence <= self.received:
            self.repeats_dropped += 1
            return False
        if sequence != self.received + 1:
            raise RemoteProtocolError(self.peer, f"sends message {sequence} after {self.received}")
        return True

    def position(self) -> Position:
        """For the handshake."""
        return Position(self.number, self.sent, self.acknowledged, self.received)

    def goes_on_with(self, other: Position) -> bool:
        """Whether both sides remember the same conversation, without a hole in either direction.

        One who never met us may also miss only the welcome: then nothing has been taken from it or by it yet.
        """
        untouched = other.number == NEVER_MET and self.acknowledged == self.received == 0
        if self.number == GIVEN_UP or not (other.number == self.number or untouched):
            return False
        ours_fit = self.acknowledged <= other.received <= self.sent
        theirs_fit = other.acknowledged <= self.received <= other.sent
        return ours_fit and theirs_fit

    def agrees(self, other: Position) -> bool:
        """Whether the other side's wish to go on fits; a first contact brings the number."""
        met = self.number in (NEVER_MET, other.number)
        return met and self.acknowledged <= other.received <= self.sent and other.acknowledged <= self.received

    def begin(self, number: int, anew: bool) -> None:
        """From now on this number holds; anew: what was queued belongs to the past."""
        if anew:
            self.give_up()
        self.number = number

    def save(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {name: getattr(self, name) for name in _PLAIN} | {"outbox": list(self.outbox)}

    def load(self, saved: dict[str, Any]) -> None:
        """The reverse of `save`."""
        for name in _PLAIN:
            setattr(self, name, saved[name])
        self.outbox = deque(saved["outbox"])


_PLAIN = ("number", "sent", "received", "repeats_dropped", "lost")
