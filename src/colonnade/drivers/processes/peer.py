"""What a node knows of one peer, and the stream that connects them while there is one."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from colonnade.drivers.processes.conversation import Conversation
from colonnade.drivers.processes.wire import Kind, open_envelope, seal_envelope

if TYPE_CHECKING:
    from colonnade.drivers.processes.node import Node

__all__ = ["Peer", "Stream"]

ACK_AFTER_S = 0.02  # an answer usually comes sooner and carries the acknowledgement
RATE_WINDOW_S = 10.0


class Peer:
    """The lasting part."""

    def __init__(self, name: str, conversation: Conversation) -> None:
        self.name, self.conversation = name, conversation
        self.present = False  # as far as the role knows
        self.stream: Stream | None = None
        self.met = False  # in this process's life
        self.last_heard = time.monotonic()
        self.messages_in = self.messages_out = self.bytes_in = self.bytes_out = self.bytes_evaluation = 0
        self._recent: deque[float] = deque(maxlen=10_000)  # arrivals of messages, for the rate

    def silent_s(self) -> float:
        """How long nothing has been heard."""
        return time.monotonic() - self.last_heard

    def count_in(self, size: int, evaluation: bool) -> None:
        """A message came."""
        if evaluation:
            self.bytes_evaluation += size
            return
        self.messages_in += 1
        self.bytes_in += size
        self._recent.append(time.monotonic())

    def count_out(self, size: int, evaluation: bool) -> None:
        """A message is queued."""
        if evaluation:
            self.bytes_evaluation += size
            return
        self.messages_out += 1
        self.bytes_out += size

    def rate(self) -> float:
        """Messages per second, of late."""
        since = time.monotonic() - RATE_WINDOW_S
        while self._recent and self._recent[0] < since:
            self._recent.popleft()
        if len(self._recent) < 2:
            return 0.0
        span = time.monotonic() - self._recent[0]
        return len(self._recent) / span if span > 0 else 0.0

    def save(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {name: getattr(self, name) for name in _PLAIN} | {"conversation": self.conversation.save()}

    def load(self, saved: dict[str, Any]) -> None:
        """The reverse of `save`."""
        for name in _PLAIN:
            setattr(self, name, saved[name])
        self.conversation.load(saved["conversation"])


_PLAIN = ("present", "messages_in", "messages_out", "bytes_in", "bytes_out", "bytes_evaluation")


class Stream:
    """Carries one conversation while the connection lasts."""

    def __init__(self, node: "Node", peer: Peer, write: Callable[[bytes], Awaitable[object]], heard: int) -> None:
        self._node, self._peer, self._write = node, peer, write
        self._next = heard + 1  # the sequence to be written next: all after what the peer has
        self._acknowledged = peer.conversation.received  # what the peer was told last
        self._ack_due = self._ack_planned = False
        self._wake = asyncio.Event()
        self._wake.set()
        self._written_at = time.monotonic()
        self._last_word: bytes | None = None  # END or BYE, after all messages
        self.dropped: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        """There is something to write."""
        self._wake.set()

    def drop(self, cause: str) -> None:
        """End this stream from outside."""
        if not self.dropped.done():
            self.dropped.set_result(cause)

    def beat(self, heartbeat_s: float) -> None:
        """A sign of life, if nothing else gave one."""
        if time.monotonic() - self._written_at >= heartbeat_s:
            self._ack_due = True
            self._wake.set()

    def finish(self, last_word: bytes) -> None:
        """Write this after everything that is queued."""
        self._last_word = last_word
        self._wake.set()

    def take(self, data: bytes) -> int:
        """A frame arrived; its kind. Messages go to the role."""
        peer, conversation = self._peer, self._peer.conversation
        envelope = open_envelope(data, peer.name)
        peer.last_heard = time.monotonic()
        if envelope.kind in (Kind.MESSAGE, Kind.ACK):
            conversation.heard(envelope.acknowledged)
            if envelope.kind == Kind.MESSAGE:
                self._node.received(peer, envelope.sequence, envelope.body)
                self._plan_ack()
            if self._next <= conversation.sent:
                self._wake.set()
        return envelope.kind

    def _plan_ack(self) -> None:
        owed = self._peer.conversation.received - self._acknowledged
        if owed * 2 >= self._node.limits.max_in_flight:
            self._ack_now()
        elif not self._ack_planned:
            self._ack_planned = True
            asyncio.get_running_loop().call_later(ACK_AFTER_S, self._ack_now)

    def _ack_now(self) -> None:
        self._ack_planned = False
        if self._peer.conversation.received != self._acknowledged:
            self._ack_due = True
            self._wake.set()

    async def write_queue(self) -> None:
        """Write what is queued, at most so much beyond what the peer has acknowledged; until cancelled."""
        conversation = self._peer.conversation
        while True:
            await self._wake.wait()
            self._wake.clear()
            window = conversation.acknowledged + self._node.limits.max_in_flight
            while self._next <= min(conversation.sent, window):
                await self._write_message()
                window = conversation.acknowledged + self._node.limits.max_in_flight
            if self._ack_due:
                await self._say(seal_envelope(Kind.ACK, 0, conversation.received))
            if self._last_word is not None and self._next > conversation.sent:
                await self._say(self._last_word)
                self._last_word = None

    async def _write_message(self) -> None:
        outbox, conversation = self._peer.conversation.outbox, self._peer.conversation
        sequence, data = outbox[self._next - outbox[0][0]]
        self._next += 1
        await self._say(seal_envelope(Kind.MESSAGE, sequence, conversation.received, data))

    async def _say(self, frame: bytes) -> None:
        self._acknowledged = self._peer.conversation.received
        self._ack_due = False
        self._written_at = time.monotonic()
        await self._write(frame)
