"""A conversation: both directions of the messages between a node and one peer, each message exactly once.

Messages are numbered from 1 in each direction and kept until they are in the other side's journal. A conversation has
a number, which the server draws (between two parties: the answerer). If a side has lost its state or some messages, its
position no longer fits the other's. Then the conversation restarts with another number. So (sender, conversation,
sequence) identifies a message uniquely.
"""

from collections import deque
from math import inf
from typing import Any

from colonnade.drivers.processes.wire import Position
from colonnade.protocol.errors import RemoteProtocolError

__all__ = ["GIVEN_UP", "NEVER_MET", "Conversation"]

NEVER_MET, GIVEN_UP = 0, -1  # instead of a number; messages queued before the first contact are kept


class Conversation:
    """One side's state of a conversation."""

    def __init__(self, peer: str, max_queue: int, max_queue_bytes: float = inf, bursts: bool = False) -> None:
        self.peer, self._max_queue, self._max_queue_bytes, self._bursts = peer, max_queue, max_queue_bytes, bursts
        self.number = NEVER_MET
        self.sent = self.received = 0
        self.outbox: deque[tuple[int, bytes]] = deque()  # complete frames without an acknowledgement
        self.waiting_bytes = 0  # of the outbox
        self.largest_burst = 0  # the most bytes that one event has queued, if such bursts may exceed the limit
        self._event, self._burst = -1, 0
        self.repeats_dropped = 0
        self.lost = 0  # own messages that were given up

    @property
    def acknowledged(self) -> int:
        """The peer has our messages up to this sequence."""
        return self.outbox[0][0] - 1 if self.outbox else self.sent

    def put(self, frame: bytes, event: int = 0) -> None:
        """Number a message and keep it; `event` numbers the event that made the role send it."""
        self.sent += 1
        self.outbox.append((self.sent, frame))
        self.waiting_bytes += len(frame)
        if self._bursts:
            self._burst = len(frame) + (self._burst if event == self._event else 0)
            self._event, self.largest_burst = event, max(self.largest_burst, self._burst)

    @property
    def overflows(self) -> bool:
        """Whether too many messages, or too many bytes of them, wait for an acknowledgement.

        Twice the largest burst fits beside the limit: a party of `fedvs` sends another one a share of all its data at
        once, and goes on before the other party has it.
        """
        most_bytes = self._max_queue_bytes + 2 * self.largest_burst
        return len(self.outbox) > self._max_queue or self.waiting_bytes > most_bytes

    def give_up(self) -> None:
        """Discard all messages and numbers, so that the next contact restarts the conversation."""
        self.lost += len(self.outbox)
        self.outbox.clear()
        self.waiting_bytes = 0
        self.number = GIVEN_UP
        self.sent = self.received = 0

    def heard(self, acknowledged: int) -> None:
        """Drop our messages up to here, which are in the peer's journal; raises RemoteProtocolError if not sent yet."""
        if acknowledged > self.sent:
            raise RemoteProtocolError(self.peer, f"acknowledges message {acknowledged} of {self.sent}")
        while self.outbox and self.outbox[0][0] <= acknowledged:
            self.waiting_bytes -= len(self.outbox.popleft()[1])

    def is_news(self, sequence: int) -> bool:
        """Whether this message is the next one; False for a repeat. A gap raises RemoteProtocolError."""
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
        """Whether both sides remember the same conversation, without a gap in either direction.

        A peer that never met us may have missed only the WELCOME, if neither side has taken a message yet.
        """
        untouched = other.number == NEVER_MET and self.acknowledged == self.received == 0
        if self.number == GIVEN_UP or not (other.number == self.number or untouched):
            return False
        ours_fit = self.acknowledged <= other.received <= self.sent
        theirs_fit = other.acknowledged <= self.received <= other.sent
        return ours_fit and theirs_fit

    def agrees(self, other: Position) -> bool:
        """Whether the other side may continue from this position. At a first contact the number is new."""
        met = self.number in (NEVER_MET, other.number)
        return met and self.acknowledged <= other.received <= self.sent and other.acknowledged <= self.received

    def begin(self, number: int, reset: bool) -> None:
        """Use this number from now on. If `reset`, discard the queued messages."""
        if reset:
            self.give_up()
        self.number = number

    def save(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in _PLAIN}
        return plain | {"outbox": list(self.outbox), "largest_burst": self.largest_burst}

    def load(self, saved: dict[str, Any]) -> None:
        for name in _PLAIN:
            setattr(self, name, saved[name])
        self.outbox = deque(saved["outbox"])
        self.waiting_bytes = sum(len(frame) for _, frame in self.outbox)
        self.largest_burst = saved.get("largest_burst", 0)  # not in checkpoints of earlier releases


_PLAIN = ("number", "sent", "received", "repeats_dropped", "lost")
