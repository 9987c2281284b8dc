"""One socket with TLS, HTTP/2 and gRPC calls on it.

All of it runs on the event loop's thread, in the call in which bytes arrive: from the socket to the role and back to
the socket there is no task and no other thread.
"""

import asyncio
import hashlib
import socket
import ssl
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import cast

from colonnade.drivers.processes.transport.calls import CONTENT_TYPE, Call
from colonnade.drivers.processes.transport.http2 import Headers, Http2, Receiver, Violation
from colonnade.drivers.processes.transport.tls import Tls

__all__ = ["Connection", "connect"]

BUFFER = 2**18
UNSENT = 0  # bytes that may wait for the socket before writers are told to wait: uvloop then writes at once
CLOSE_S = 5.0
NO_ANSWER = "the server closed the connection"


class _Buffers(threading.local):
    """What a thread's loop reads into. What arrives is used up before the next read, so one pair serves all."""

    def __init__(self) -> None:
        self.wire, self.plain = memoryview(bytearray(BUFFER)), memoryview(bytearray(BUFFER))


_buffers = _Buffers()


class Connection(asyncio.BufferedProtocol):
    """A client's connection; a server's with `opened`, which makes the receiver of each new stream."""

    def __init__(
        self,
        tls: Tls,
        most_bytes: int,
        opened: Callable[["Connection", Headers], Receiver] | None = None,
    ) -> None:
        self._tls, self._most_bytes = tls, most_bytes
        self.http2 = Http2(
            client=opened is None,
            flush=self._flush,
            opened=None if opened is None else lambda headers: opened(self, headers),
        )
        self.address = ""  # of the other side
        self.heard = time.monotonic()
        self.spoke = False  # the other side, through TLS
        self.shaken: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # the handshake; or its error
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_made: Callable[[Connection], None] = _nothing
        self.on_lost: Callable[[Connection], None] = _nothing
        self.on_refused: Callable[[Connection, Exception], None] = _nothing  # TLS, or a violation of HTTP/2
        self._transport: asyncio.Transport
        self._busy = False  # bytes are being read: what is written meanwhile leaves together
        self._cause = "connection lost"
        self._dead = False

    @property
    def certificate(self) -> bytes:
        """The other side's, in DER; empty before the handshake is over."""
        return self._tls.certificate

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the other side's certificate in hex."""
        return hashlib.sha256(self._tls.certificate).hexdigest()

    def call(self, method: str) -> Call:
        """Begin a call, as a client."""
        call = Call(self.http2, self._most_bytes)
        self.http2.open(
            call,
            (
                (b":method", b"POST"),
                (b":scheme", b"https"),
                (b":path", method.encode()),
                (b":authority", b"server"),
                (b"te", b"trailers"),
                (b"content-type", CONTENT_TYPE),
                (b"user-agent", b"colonnade"),
            ),
        )
        if self._dead:
            self.http2.lost(self._cause)
        return call

    async def __aenter__(self) -> "Connection":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection after what was written, or after `CLOSE_S` if the other side does not read it."""
        if not self._dead:
            self.http2.go_away()
            self._dead = True
            self._end()
            self.http2.lost("connection closed")

    def abort(self, cause: str = "connection lost") -> None:
        """End the connection now."""
        if not self._dead:
            self._dead, self._cause = True, cause
        if not self.gone.done():
            self._transport.abort()

    def _end(self) -> None:
        self._transport.close()
        if self._transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(CLOSE_S, self.abort)

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(UNSENT)
        own, peer = transport.get_extra_info("socket"), transport.get_extra_info("peername")
        if own is not None:
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # small frames leave at once, too
        if peer:
            self.address = str(peer[0]).removeprefix("::ffff:")
        self.on_made(self)
        if not self._dead:
            self._shake()

    def get_buffer(self, _hint: int) -> memoryview:
        return _buffers.wire

    def buffer_updated(self, size: int) -> None:
        if self._dead:
            return
        self.heard = time.monotonic()
        self._tls.receive(_buffers.wire[:size])
        if not self._tls.ready and not self._shake():
            return
        self._busy = True
        try:
            self._read()
        except ssl.SSLError as error:
            self._fail(error, f"TLS: {error.reason or 'broken'}")
        except Violation as error:
            self.http2.go_away(error.code, str(error))
            self._busy = False
            self._flush()
            self._fail(error, f"the other side {error}")
        finally:
            self._busy = False
            self._flush()

    def _read(self) -> None:
        plain, size = _buffers.plain, BUFFER
        while size == BUFFER and not self._dead:
            size = self._tls.read_into(plain)
            if size:
                self.spoke = True
                self.http2.receive(plain[:size])

    def _shake(self) -> bool:
        """Go on with the handshake; returns whether it is over."""
        try:
            self._tls.shake()
        except ssl.SSLError as error:
            self._pass_on()  # the alert
            self._fail(error, "TLS handshake failed")
            return False
        self._pass_on()
        if self._tls.ready and not self.shaken.done():
            self.shaken.set_result(None)
            self._flush()
        return self._tls.ready

    def _fail(self, error: Exception, cause: str) -> None:
        self._cause, self._dead = cause, True
        if not self.shaken.done():
            self.shaken.set_exception(error)
            self.shaken.exception()  # retrieved: there may be no reader
        self._end()
        self.on_refused(self, error)
        self.http2.lost(cause)

    def _flush(self) -> None:
        """Send what was written, in one piece."""
        if self._busy or not self._tls.ready:
            return
        if out := self.http2.out:
            data = b"".join(out)
            out.clear()
            if self._transport.is_closing():
                return
            self._tls.write(data)
        self._pass_on()  # also what TLS itself has to answer

    def _pass_on(self) -> None:
        if data := self._tls.outgoing():
            self._transport.write(data)
            if not self.http2.choked:
                self.http2.replies = 0

    def pause_writing(self) -> None:
        self.http2.choke(True)

    def resume_writing(self) -> None:
        self.http2.choke(False)

    def eof_received(self) -> bool:
        return False  # closes

    def connection_lost(self, error: Exception | None) -> None:
        self._dead = True
        if not self.shaken.done():
            self.shaken.set_exception(error or ConnectionResetError(NO_ANSWER))
            self.shaken.exception()
        self.http2.lost(self._cause)
        self.on_lost(self)
        if not self.gone.done():
            self.gone.set_result(None)


async def connect(context: ssl.SSLContext, host: str, port: int, most_bytes: int) -> Connection:
    """A connection whose handshake is over on this side; raises OSError (ssl.SSLError among them)."""
    loop = asyncio.get_running_loop()
    made = Connection(Tls(context, server=False), most_bytes)
    await loop.create_connection(lambda: made, host, port)
    try:
        await asyncio.shield(made.shaken)
    except BaseException:
        made.abort()
        raise
    return made


def _nothing(*_: object) -> None:
    pass
