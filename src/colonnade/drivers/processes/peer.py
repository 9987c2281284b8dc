"""What a node knows of one peer, and the stream that connects them while there is one."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from colonnade.drivers.processes.conversation import Conversation
from colonnade.drivers.processes.wire import Kind, acknowledge, open_envelope, seal_envelope
from colonnade.protocol.errors import RemoteProtocolError

if TYPE_CHECKING:
    from colonnade.drivers.processes.node import Node

__all__ = ["Aside", "Carrier", "FarPeer", "Peer", "Stream"]

ACK_AFTER_S = 0.02  # an answer usually comes sooner and carries the acknowledgement
RATE_WINDOW_S = 10.0
_MESSAGE, _ACK = Kind.MESSAGE, Kind.ACK  # looked up once: every frame is compared with them
SHORT_BYTES = 48 * 1024  # below the smallest window of HTTP/2, with room for the envelope


class Carrier(Protocol):
    """What carries a conversation: a stream, or a sealed line through the server."""

    def wake(self) -> None:
        """There is something to write."""

    def drop(self, cause: str) -> None:
        """End this from outside."""

    def beat(self, heartbeat_s: float) -> None:
        """Called every now and then."""

    def finish(self, last_word: bytes) -> None:
        """Write this after everything that is queued."""


class Aside(Protocol):
    """Frames that share a stream with its conversation, and take turns with it."""

    def next_frame(self) -> bytes | None:
        """The one to be written now."""


class Peer:
    """The lasting part."""

    far: ClassVar[bool] = False  # behind the relay

    def __init__(self, name: str, conversation: Conversation) -> None:
        self.name, self.conversation = name, conversation
        self.present = False  # as far as the role knows
        self.stream: Carrier | None = None
        self.met = False  # in this process's life
        self.last_heard = time.monotonic()
        self.messages_in = self.messages_out = self.bytes_in = self.bytes_out = self.bytes_evaluation = 0
        self._recent: deque[float] = deque(maxlen=10_000)  # arrivals of messages, for the rate

    def silent_s(self) -> float:
        """How long nothing has been heard."""
        return time.monotonic() - self.last_heard

    def count_in(self, size: int) -> None:
        """A message came."""
        self.messages_in += 1
        self.bytes_in += size
        self._recent.append(time.monotonic())

    def count_out(self, size: int) -> None:
        """A message is queued."""
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


class FarPeer(Peer):
    """A party to another party: heard of as long as the server says that it is here and the sealed line stands."""

    far: ClassVar[bool] = True

    def __init__(self, name: str, conversation: Conversation) -> None:
        super().__init__(name, conversation)
        self.here = False

    def silent_s(self) -> float:
        """How long it has not been within reach."""
        return 0.0 if self.here and self.stream is not None else super().silent_s()


class Stream:
    """Carries one conversation while the connection lasts."""

    def __init__(
        self,
        node: "Node",
        peer: Peer,
        write: Callable[[bytes], Awaitable[object]],
        heard: int,
        aside: Aside | None = None,
    ) -> None:
        self._node, self._peer, self._write, self._aside = node, peer, write, aside
        self._next = heard + 1  # the sequence to be written next: all after what the peer has
        self._acknowledged = peer.conversation.received  # what the peer was told last
        self._ack_due = self._ack_planned = False
        self._wake = asyncio.Event()
        self._wake.set()
        self._writing = False  # one at a time
        self._put_off = False  # the writing task came while the reader was writing
        self._taking = self._wanted = False  # a message is with the role; something is to be written because of it
        self._written_at = time.monotonic()
        self._last_word: bytes | None = None  # END or BYE, after all messages
        self.dropped: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        """There is something to write; what a message brings forth, its reader may write (see `answer`)."""
        if self._taking:
            self._wanted = True
        else:
            self._wake.set()

    def wake_aside(self) -> None:
        """There is something to write that no reader writes."""
        self._wake.set()

    def drop(self, cause: str) -> None:
        """End this stream from outside."""
        if not self.dropped.done():
            self.dropped.set_result(cause)

    def beat(self, heartbeat_s: float) -> None:
        """A sign of life, if nothing else gave one."""
        if time.monotonic() - self._written_at >= heartbeat_s:
            self._ack_due = True
            self.wake()

    def finish(self, last_word: bytes) -> None:
        """Write this after everything that is queued."""
        self._last_word = last_word
        self.wake()

    def take(self, data: bytes) -> int:
        """A frame arrived; its kind. Messages go to the role."""
        peer, conversation = self._peer, self._peer.conversation
        envelope = open_envelope(data, peer.name)
        peer.last_heard = time.monotonic()
        if envelope.kind in (_MESSAGE, _ACK) and not self.dropped.done():
            if envelope.acknowledged >= self._next:
                raise RemoteProtocolError(peer.name, "acknowledges what was not yet sent to it")
            conversation.heard(envelope.acknowledged)
            if envelope.kind == _MESSAGE:
                self._taking = True
                try:
                    self._node.received(peer, envelope.sequence, envelope.body, envelope.evaluation)
                finally:
                    self._taking = False
                self._wanted = self._next <= conversation.sent  # the window may also have opened
            elif self._next <= conversation.sent:
                self.wake()
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
            self.wake()

    async def write_queue(self) -> None:
        """Write whatever there is whenever there is something; until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._writing:
                self._put_off = True  # until the reader has written its answer
                continue
            self._writing = True
            try:
                await self._write_all()
            finally:
                self._writing = False

    async def answer(self) -> None:
        """Called by the reader: a short answer to a peer that has all the rest is written at once.

        It cannot block, for nothing else is under way; anything longer is left to the writing task, because two
        readers that wait for each other's reading would wait for ever. (The change of tasks costs a fifth of the
        round trips.)
        """
        if self.dropped.done():
            return  # the conversation may have been given up, and its numbers begin again
        outbox = self._peer.conversation.outbox
        alone = len(outbox) == 1 and outbox[0][0] == self._next
        if self._writing or not alone or len(outbox[0][1]) > SHORT_BYTES:
            self._plan_ack()
            if self._wanted:
                self._wake.set()
            return
        self._writing = True
        try:
            await self._write(self._next_message())
        finally:
            self._writing = False
        if self._put_off or self._last_word is not None:  # the last word waited for this message
            self._put_off = False
            self._wake.set()

    async def _write_all(self) -> None:
        """At most so much beyond what the peer has acknowledged."""
        conversation, in_flight = self._peer.conversation, self._node.limits.max_in_flight
        while self._next <= min(conversation.sent, conversation.acknowledged + in_flight):
            if self.dropped.done():
                return  # the conversation may have been given up, and its numbers begin again
            await self._write(self._next_message())
            if self._aside is not None:
                await self._write_aside(self._aside)
        if self._aside is not None and await self._write_aside(self._aside):
            self._wake.set()  # one for each look at the conversation: neither keeps the other waiting
        if self._ack_due:
            await self._write(self._noted(seal_envelope(Kind.ACK, 0, conversation.received)))
        if self._last_word is not None and self._next > conversation.sent:
            word, self._last_word = self._last_word, None
            await self._write(self._noted(word))

    async def _write_aside(self, aside: Aside) -> bool:
        frame = None if self.dropped.done() else aside.next_frame()
        if frame is not None:
            await self._write(frame)
        return frame is not None

    def _next_message(self) -> bytes:
        conversation = self._peer.conversation
        _, frame = conversation.outbox[self._next - conversation.outbox[0][0]]
        self._next += 1
        return self._noted(acknowledge(frame, conversation.received))

    def _noted(self, frame: bytes) -> bytes:
        """Whatever is written acknowledges all that was received, and is a sign of life."""
        self._acknowledged = self._peer.conversation.received
        self._ack_due = False
        self._written_at = time.monotonic()
        return frame
