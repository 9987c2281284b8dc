"""What a node knows about one peer, and the stream that connects them."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from colonnade.drivers.processes.conversation import Conversation
from colonnade.drivers.processes.standing import Standing
from colonnade.drivers.processes.wire import (
    OLDEST_PROTOCOL,
    Kind,
    acknowledge,
    open_envelope,
    seal_envelope,
    speaks,
)
from colonnade.protocol.errors import RemoteProtocolError

if TYPE_CHECKING:
    from colonnade.drivers.processes.node import Node

__all__ = ["Aside", "Carrier", "FarPeer", "Peer", "Stream"]

ACK_AFTER_S = 0.02  # an answer usually comes sooner and carries the acknowledgement
RATE_WINDOW_S = 10.0
_MESSAGE, _ACK = Kind.MESSAGE, Kind.ACK  # looked up once, because every frame is compared with them
SHORT_BYTES = 48 * 1024  # below the smallest HTTP/2 window, with room for the envelope


class Carrier(Protocol):
    """Carries a conversation: a stream, or a sealed line through the server."""

    def wake(self) -> None:
        """Tell that there is something to write."""

    def drop(self, cause: str) -> None:
        """End the connection for this cause."""

    def beat(self, heartbeat_s: float) -> None:
        """Send a heartbeat or notice losses; the node calls this regularly."""

    def finish(self, last_word: bytes) -> None:
        """Write this frame after everything that is queued."""

    def released(self) -> None:
        """Tell that messages or acknowledgements that were held back may leave now."""


class Aside(Protocol):
    """Frames that share a stream with its conversation and take turns with it."""

    def next_frame(self) -> bytes | None:
        """The next frame to write; None if there is none."""


class Peer:
    """What the node keeps about a peer from one connection to the next."""

    far: ClassVar[bool] = False  # behind the relay

    def __init__(self, name: str, conversation: Conversation) -> None:
        self.name, self.conversation = name, conversation
        self.present = False  # as far as the role knows
        self.stream: Carrier | None = None
        self.met = False  # since this process started
        self.protocol = OLDEST_PROTOCOL  # agreed when the stream began; a sealed line has the oldest
        self.last_heard = time.monotonic()
        self.standing = Standing()
        self.messages_in = self.messages_out = self.bytes_in = self.bytes_out = self.bytes_evaluation = 0
        self._recent: deque[float] = deque(maxlen=10_000)  # arrival times of messages, for the rate

    def speaks(self, kind: Kind) -> bool:
        """Whether the peer knows frames of this kind: ask before you write a kind that not every release has."""
        return speaks(self.protocol, kind)

    def silent_s(self) -> float:
        """Seconds since the node last heard the peer."""
        return time.monotonic() - self.last_heard

    def count_in(self, size: int) -> None:
        """Count a message that arrived."""
        self.messages_in += 1
        self.bytes_in += size
        self._recent.append(time.monotonic())

    def count_out(self, size: int) -> None:
        """Count a message that was queued."""
        self.messages_out += 1
        self.bytes_out += size

    def rate(self) -> float:
        """Messages per second in the last `RATE_WINDOW_S` seconds."""
        since = time.monotonic() - RATE_WINDOW_S
        while self._recent and self._recent[0] < since:
            self._recent.popleft()
        if len(self._recent) < 2:
            return 0.0
        span = time.monotonic() - self._recent[0]
        return len(self._recent) / span if span > 0 else 0.0

    def save(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _PLAIN} | {"conversation": self.conversation.save()}

    def load(self, saved: dict[str, Any]) -> None:
        for name in _PLAIN:
            setattr(self, name, saved[name])
        self.conversation.load(saved["conversation"])


_PLAIN = ("present", "messages_in", "messages_out", "bytes_in", "bytes_out", "bytes_evaluation")


class FarPeer(Peer):
    """A party as another party sees it, through the relay.

    It is not silent as long as the server says that it is connected and the sealed line is open.
    """

    far: ClassVar[bool] = True

    def __init__(self, name: str, conversation: Conversation) -> None:
        super().__init__(name, conversation)
        self.here = False

    def silent_s(self) -> float:
        """Seconds since the party was last within reach; 0 if it is now."""
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
        self._next = heard + 1  # the next sequence to write, after those the peer has
        self._acknowledged = peer.conversation.may_acknowledge  # what the peer was told last
        self._ack_due = self._ack_planned = False
        self._wake = asyncio.Event()
        self._wake.set()
        self._writing = False  # only one write at a time
        self._put_off = False  # the writing task found the reader writing
        self._taking = self._wanted = False  # the role handles a message; it made something to write
        self._written_at = time.monotonic()
        self._last_word: bytes | None = None  # END or BYE, after all messages
        self._news = b""  # the body of the next ACK
        self.dropped: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        """Tell that there is something to write. If a message caused it, its reader may write it (see `answer`)."""
        if self._taking:
            self._wanted = True
        else:
            self._wake.set()

    def wake_aside(self) -> None:
        """Tell that the writing task has something to write."""
        self._wake.set()

    def drop(self, cause: str) -> None:
        """End this stream with this cause."""
        if not self.dropped.done():
            self.dropped.set_result(cause)

    def beat(self, heartbeat_s: float) -> None:
        """Send a heartbeat unless something was written within `heartbeat_s`."""
        if time.monotonic() - self._written_at >= heartbeat_s:
            self._ack_due = True
            self.wake()

    def tell(self, news: bytes) -> None:
        """Send an ACK with these news."""
        self._news, self._ack_due = news, True
        self.wake()

    def finish(self, last_word: bytes) -> None:
        """Write this frame after everything that is queued."""
        self._last_word = last_word
        self.wake()

    def take(self, data: bytes) -> int:
        """Take a frame and return its kind. A message goes to the role."""
        peer, conversation = self._peer, self._peer.conversation
        envelope = open_envelope(data, peer.name)
        peer.last_heard = time.monotonic()
        if envelope.kind in (_MESSAGE, _ACK) and not self.dropped.done():
            if envelope.acknowledged >= self._next:
                raise RemoteProtocolError(peer.name, "acknowledges a message that was not sent to it yet")
            conversation.heard(envelope.acknowledged)
            if envelope.kind == _MESSAGE:
                self._taking = True
                try:
                    self._node.received(peer, envelope.sequence, envelope.body, envelope.evaluation)
                except RemoteProtocolError as error:
                    self.drop(error.cause)  # nothing more may be written: the conversation restarts with new numbers
                    raise
                finally:
                    self._taking = False
                self._wanted = self._next <= conversation.may_send  # the window may have opened, too
            elif self._next <= conversation.may_send:
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
        if self._peer.conversation.may_acknowledge != self._acknowledged:
            self._ack_due = True
            self.wake()

    def released(self) -> None:
        """Write what may leave now; an acknowledgement waits a moment for an answer."""
        if self._next <= self._peer.conversation.may_send or self._last_word is not None:
            self.wake()
        else:
            self._plan_ack()

    async def write_queue(self) -> None:
        """Write what is queued whenever there is something, until cancelled."""
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
        """Write a short answer at once, if the peer has everything else. The reader calls this.

        The write cannot block, because nothing else is in flight. Longer answers go to the writing task: two readers
        that wait for each other to read would be stuck. (The change of tasks costs a fifth of the round trips.)
        """
        if self.dropped.done():
            return  # the conversation may have restarted with new numbers
        outbox = self._peer.conversation.outbox
        alone = len(outbox) == 1 and outbox[0][0] == self._next <= self._peer.conversation.may_send
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
        if self._put_off or self._last_word is not None:  # the last frame waited for this message
            self._put_off = False
            self._wake.set()

    async def _write_all(self) -> None:
        """Write up to `max_in_flight` messages beyond the last acknowledged one, then the other frames."""
        conversation, in_flight = self._peer.conversation, self._node.limits.max_in_flight
        while self._next <= min(conversation.may_send, conversation.acknowledged + in_flight):
            if self.dropped.done():
                return  # the conversation may have restarted with new numbers
            await self._write(self._next_message())
            if self._aside is not None:
                await self._write_aside(self._aside)
        if self._aside is not None and await self._write_aside(self._aside):
            self._wake.set()  # one frame each in turn: neither keeps the other waiting
        if self._ack_due:
            news, self._news = self._news, b""
            await self._write(self._noted(seal_envelope(Kind.ACK, 0, conversation.may_acknowledge, news)))
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
        return self._noted(acknowledge(frame, conversation.may_acknowledge))

    def _noted(self, frame: bytes) -> bytes:
        """Note that this frame acknowledges all messages in the journal and serves as a heartbeat."""
        self._acknowledged = self._peer.conversation.may_acknowledge
        self._ack_due = False
        self._written_at = time.monotonic()
        return frame
