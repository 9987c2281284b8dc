"""A gRPC call: messages both ways on a stream of HTTP/2, then a status.

    content   0 (not compressed) · length (4 bytes) · message, again and again
    trailers  grpc-status, and grpc-message if it is not 0

A call is read in one of two ways. `read` waits for the next message, for handshakes. `deliver` passes every message on
in the call in which it arrives, without a task. While messages wait for `read`, the other side gets no further window.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from colonnade.drivers.processes.transport.http2 import Code, Flow, Headers, Http2

if TYPE_CHECKING:
    from colonnade.drivers.processes.transport.connection import Connection

__all__ = ["CONTENT_TYPE", "Call", "CallFailed", "CallLost", "Status"]

_PREFIX = Struct(">BL")
_PLAIN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
CONTENT_TYPE = b"application/grpc"
_ANSWER: Headers = ((b":status", b"200"), (b"content-type", CONTENT_TYPE))


class Status(IntEnum):
    """How a call ended."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12


class CallLost(Exception):
    """The call was cut off: the connection broke, or the other side cancelled it."""


class CallFailed(Exception):
    """The server ended the call with another status than OK."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words or f"gRPC status {status}")
        self.status = status


class Call:
    """One call, of a client or at a server."""

    def __init__(self, http2: Http2, most_bytes: int, connection: "Connection | None" = None) -> None:
        self._http2, self._most_bytes = http2, most_bytes
        self.connection = connection  # at a server: the connection
        self.flow: Flow
        self.task: asyncio.Task[None] | None = None  # a server's, which answers
        self.on_ready: Callable[[], None] = _nothing  # called when more may be written
        self.over: Callable[[], None] = _nothing  # called once, when a server's call has ended in both directions
        self._answered = False  # the server's headers were sent
        self._status: tuple[int, str] | None = None  # a client's: from the trailers
        self._prefix = b""
        self._left, self._message = 0, bytearray()  # what a message lacks, and its beginning
        self._inside = False  # a message
        self._waiting: deque[bytes | memoryview] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._take: Callable[[bytes | memoryview], None] | None = None
        self._on_end: Callable[[Exception | None], None] = _nothing
        self._ended = self._finished = False  # the other side's part; this side's
        self._error: Exception | None = None  # why it ended, if not well

    # Reading

    async def read(self) -> bytes | memoryview | None:
        """The next message; None at the end. Raises CallLost or CallFailed."""
        while not self._waiting:
            if self._ended:
                if self._error is not None:
                    raise self._error
                return None
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        message = self._waiting.popleft()
        if not self._waiting and not self._ended:
            self._http2.regrant(self.flow)
        return message

    def deliver(self, take: Callable[[bytes | memoryview], None], on_end: Callable[[Exception | None], None]) -> None:
        """Pass on every message from now on, in the call in which it arrives, and then the end."""
        self._take, self._on_end = take, on_end
        while self._waiting:
            take(self._waiting.popleft())
        if self._ended:
            on_end(self._error)
        else:
            self._http2.regrant(self.flow)

    async def hung_up(self) -> None:
        """Wait until the other side ends the call. What it still sends is discarded."""
        over = asyncio.Event()
        self.deliver(_nothing, lambda _: over.set())
        await over.wait()

    def _pass_on(self, message: bytes | memoryview) -> None:
        if self._take is not None:
            self._take(message)
            return
        self._waiting.append(message)
        self._wake()

    def _end(self, error: Exception | None) -> None:
        if self._ended:
            return
        self._ended, self._error = True, error
        reading = self._reader is not None or self._take is not None
        self._wake()
        self._on_end(error)
        if error is not None and not reading and self.task is not None:
            self.task.cancel()  # it waits for something else, in vain

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # Writing

    @property
    def ready(self) -> bool:
        """Whether all that was written has been passed on, so that more may be written."""
        return not (self.flow.pending or self.flow.ended_here or self._http2.choked)

    def write(self, message: bytes) -> None:
        """Write a message. What there is no room for yet is kept: ask `ready` first, or use `send`."""
        self._answer()
        self._http2.data(self.flow, _PREFIX.pack(0, len(message)), message)

    async def send(self, message: bytes) -> None:
        """Write a message and wait until it was passed on; raises CallLost."""
        self.write(message)
        ready, before = asyncio.Event(), self.on_ready
        self.on_ready = ready.set
        try:
            while not self.ready:
                if self.flow.ended_here:
                    raise self._error or CallLost("connection lost")
                ready.clear()
                await ready.wait()
        finally:
            self.on_ready = before

    def finish(self, status: Status = Status.OK, words: str = "") -> None:
        """End a server's call."""
        self._finished = True
        self._answer()
        trailers = [(b"grpc-status", str(int(status)).encode())]
        if words:
            trailers.append((b"grpc-message", quote(words, safe=_PLAIN).encode()))
        self._http2.end(self.flow, trailers)

    def half_close(self) -> None:
        """End a client's part."""
        self._http2.end(self.flow)

    def cancel(self) -> None:
        """Cut the call off."""
        self._http2.reset(self.flow, Code.CANCEL)

    def widen(self) -> None:
        """Let a caller that may call send as much as is read."""
        self._http2.widen(self.flow)

    def _answer(self) -> None:
        if self.connection is not None and not self._answered:
            self._answered = True
            self._http2.headers(self.flow, _ANSWER)

    # What arrives (see http2.Receiver)

    def began(self, flow: Flow) -> None:
        """Note which stream it is."""
        self.flow = flow

    def took_headers(self, headers: Headers) -> None:
        """Note the status in an answer's headers or trailers."""
        if self.connection is not None:
            return
        found = dict(headers)
        if b"grpc-status" in found:
            words = unquote(found.get(b"grpc-message", b"").decode("ascii", "replace"), errors="replace")
            status = found[b"grpc-status"]
            self._status = int(status) if status.isdigit() and len(status) < 3 else Status.UNKNOWN, words
        elif found.get(b":status", b"200") != b"200":
            code = found[b":status"].decode("ascii", "replace")
            self._status = Status.UNKNOWN, f"answers HTTP status {code}: this is not a server of Colonnade"

    def took_data(self, data: memoryview) -> None:
        """Cut content into messages."""
        if not self._inside and not self._prefix and len(data) > _PREFIX.size:
            compressed, size = _PREFIX.unpack_from(data)
            if size == len(data) - _PREFIX.size and size <= self._most_bytes and not compressed:
                self._pass_on(bytes(data[_PREFIX.size :]))  # one whole message: the usual case
                return
        while True:
            if not self._inside:
                lacking = _PREFIX.size - len(self._prefix)
                self._prefix += data[:lacking]
                data = data[lacking:]
                if len(self._prefix) < _PREFIX.size:
                    return
                compressed, self._left = _PREFIX.unpack(self._prefix)
                if compressed or self._left > self._most_bytes:
                    too_large = f"sent a message of {self._left} bytes; the limit is {self._most_bytes}"
                    self._refuse("sent a compressed message" if compressed else too_large)
                    return
                self._prefix, self._inside = b"", True
            if not self._message and len(data) >= self._left:
                message: bytes | memoryview = bytes(data[: self._left])
            else:
                self._message += data[: self._left]
                if len(data) < self._left:
                    self._left -= len(data)
                    return
                message, self._message = memoryview(self._message).toreadonly(), bytearray()
            data, self._left, self._inside = data[self._left :], 0, False
            self._pass_on(message)
            if self.flow.ended_there:
                return  # the message ended the call

    def _refuse(self, words: str) -> None:
        if self.connection is not None:
            self.finish(Status.RESOURCE_EXHAUSTED, words)
        else:
            self.cancel()
        self._end(CallLost(words))

    def took_end(self) -> None:
        """Note the end of what the other side sends."""
        cut = self._inside or self._prefix
        if self.connection is None and not cut:
            status, words = self._status or (Status.UNKNOWN, "the server ended the call without a status")
            self._end(None if status == Status.OK else CallFailed(status, words))
        else:
            self._end(CallLost("the call ended within a message") if cut else None)

    def took_reset(self, words: str) -> None:
        """Note that the call was cut off."""
        answered = self._status is not None and self._status[0] == Status.OK
        self._end(None if answered else CallLost(words))

    def closed(self) -> None:
        """Tell the writer and the server."""
        self.on_ready()
        over, self.over = self.over, _nothing
        over()

    def may_write(self) -> None:
        """Tell the writer."""
        if self.ready:
            self.on_ready()

    def hungry(self) -> bool:
        """Whether more content may come."""
        return not self._finished and (self._take is not None or not self._waiting)


def _nothing(*_: object) -> None:
    pass
