"""What a node knows about one peer, and the stream that connects them."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
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

__all__ = ["Aside", "Carrier", "FarPeer", "Peer", "Stream", "Writer"]

ACK_AFTER_S = 0.1  # an answer usually comes sooner and carries the acknowledgement
RATE_WINDOW_S = 10.0
_MESSAGE, _ACK = Kind.MESSAGE, Kind.ACK  # looked up once, because every frame is compared with them


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


class Writer(Protocol):
    """Takes the frames of a stream: a call."""

    on_ready: Callable[[], None]  # called when more may be written

    @property
    def ready(self) -> bool:
        """Whether another frame may be written now."""

    def write(self, message: bytes) -> None:
        """Write a frame."""


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
    """Carries one conversation while the connection lasts.

    A frame is written in the call that makes it, as long as the writer is ready. When the writer is ready again, it
    calls `wake`. There is no task for writing.
    """

    def __init__(self, node: "Node", peer: Peer, writer: Writer, heard: int, aside: Aside | None = None) -> None:
        self._node, self._peer, self._writer, self._aside = node, peer, writer, aside
        self._next = heard + 1  # the next sequence to write, after those the peer has
        self._acknowledged = peer.conversation.may_acknowledge  # what the peer was told last
        self._ack_due = self._ack_planned = False
        self._open = False
        self._aside_next = False  # a frame aside comes next, if there is one
        self._woken = False  # `wake` is planned
        self._written_at = time.monotonic()
        self._last_word: bytes | None = None  # END or BYE, after all messages
        self._news = b""  # the body of the next ACK
        self._loop = asyncio.get_running_loop()
        self.dropped: asyncio.Future[str] = self._loop.create_future()  # the cause

    def open(self) -> None:
        """Begin to write: the handshake is over."""
        self._open = True
        self._writer.on_ready = self.wake
        self.wake()

    def close(self) -> None:
        """Write nothing more."""
        self._open = False

    def wake(self) -> None:
        """Write what there is to write, as long as the writer takes it."""
        while self._open and self._writer.ready and not self.dropped.done():
            frame = self._next_frame()
            if frame is None:
                return
            self._writer.write(frame)

    def wake_aside(self) -> None:
        """Tell that there is a frame aside. It is written later, because its maker may not be ready yet."""
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._wake_again)

    def _wake_again(self) -> None:
        self._woken = False
        self.wake()

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

    def take(self, data: bytes | memoryview) -> int:
        """Take a frame and return its kind. A message goes to the role."""
        peer, conversation = self._peer, self._peer.conversation
        envelope = open_envelope(data, peer.name)
        peer.last_heard = time.monotonic()
        if envelope.kind in (_MESSAGE, _ACK) and not self.dropped.done():
            if envelope.acknowledged >= self._next:
                raise RemoteProtocolError(peer.name, "acknowledges a message that was not sent to it yet")
            conversation.heard(envelope.acknowledged)
            if envelope.kind == _MESSAGE:
                try:
                    self._node.received(peer, envelope.sequence, envelope.body, envelope.evaluation)
                except RemoteProtocolError as error:
                    self.drop(error.cause)  # nothing more may be written: the conversation restarts with new numbers
                    raise
                if conversation.received != self._acknowledged:
                    self._plan_ack()  # no answer has carried it
            if self._next <= conversation.may_send:
                self.wake()  # the window may have opened
        return envelope.kind

    def _plan_ack(self) -> None:
        owed = self._peer.conversation.received - self._acknowledged
        if owed * 2 >= self._node.limits.max_in_flight:
            self._ack_now()
        elif not self._ack_planned:
            self._ack_planned = True
            self._loop.call_later(ACK_AFTER_S, self._ack_now)

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

    def _next_frame(self) -> bytes | None:
        """The next frame to write: one aside and one of the conversation in turn. Neither keeps the other waiting."""
        if self._aside is None:
            return self._own_frame()
        first, second = (self._aside.next_frame, self._own_frame)[:: 1 if self._aside_next else -1]
        frame = first()
        if frame is None:
            return second()
        self._aside_next = not self._aside_next
        return frame

    def _own_frame(self) -> bytes | None:
        """Messages, up to `max_in_flight` beyond the last acknowledged one; then an acknowledgement; then the end."""
        conversation = self._peer.conversation
        window = conversation.acknowledged + self._node.limits.max_in_flight
        if self._next <= min(conversation.may_send, window):
            outbox = conversation.outbox
            _, frame = outbox[self._next - outbox[0][0]]
            self._next += 1
            return self._noted(acknowledge(frame, conversation.may_acknowledge))
        if self._ack_due:
            news, self._news = self._news, b""
            return self._noted(seal_envelope(Kind.ACK, 0, conversation.may_acknowledge, news))
        if self._last_word is not None and self._next > conversation.sent:
            word, self._last_word = self._last_word, None
            return self._noted(word)
        return None

    def _noted(self, frame: bytes) -> bytes:
        """Note that this frame acknowledges all messages in the journal and serves as a heartbeat."""
        self._acknowledged = self._peer.conversation.may_acknowledge
        self._ack_due = False
        self._written_at = time.monotonic()
        return frame
