"""The connections of the HTTP endpoint.

A connection waits until its request is admitted: in the TLS handshake, before a request, between two requests. Waiting
connections are limited in all and for each address. At the limit the oldest one of the address with the most is closed,
so that connections that say nothing cannot keep out a caller with a token. Admitted requests have a limit of their own.
"""

import asyncio
import contextlib
import errno
import ipaddress
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import h11

__all__ = ["Answering", "Bounds", "Connections", "Refused"]

MAX_HEAD_BYTES = 16 * 2**10
READ_BYTES = 64 * 2**10
SEND_S = 60.0  # for a slow reader of an answer
STOP_S = 2.0  # for requests under way, when the server stops
PAUSE_S = 0.05  # after a connection that could not be accepted

BROKEN = (OSError, EOFError)  # the caller hung up


class Refused(Exception):
    """A request without an answer: its status, the reason in words, and a short reason to count by."""

    def __init__(self, code: int, words: str, why: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(words)
        self.code, self.words, self.why, self.headers = code, words, why, headers or {}


class Answering(Protocol):
    """What is behind the connections."""

    def admit(self, authorization: str) -> str:
        """Return the caller's name; raise Refused for a header without a valid token."""

    def probe(self, method: str, path: str) -> tuple[int, bytes] | None:
        """Code and JSON for a probe, which needs no token; None for other requests."""

    async def answer(self, caller: str, method: str, path: str, body: bytes) -> bytes:
        """Return the JSON answer; raise Refused."""

    def refused(self, caller: str, refusal: Refused) -> bytes:
        """Count a refusal and return its JSON; `caller` is "" if no caller was admitted."""

    def closed(self, why: str) -> None:
        """Count a connection that was closed without a request."""

    def failed(self, error: BaseException) -> None:
        """Take note of an error of this program, which ended a connection."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of the endpoint (`[predict]`)."""

    max_waiting: int
    max_waiting_per_address: int
    max_requests: int
    request_s: float
    idle_s: float
    max_body_bytes: int


@dataclass(slots=True, eq=False)
class _Line:
    """One connection in conversation."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    http: "h11.Connection" = field(init=False)

    def __post_init__(self) -> None:
        import h11

        self.http = h11.Connection(h11.SERVER, MAX_HEAD_BYTES)

    async def next_event(self, until: float) -> "h11.Event":
        """The next event of the request; raises RemoteProtocolError of h11, EOFError at the end, or TimeoutError.

        `until` is a time of the event loop. No timer is made for what has arrived already.
        """
        import h11

        while (event := self.http.next_event()) is h11.NEED_DATA:
            async with asyncio.timeout_at(until):
                data = await self.reader.read(READ_BYTES)
            self.http.receive_data(data)
        if isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
            raise EOFError
        assert not isinstance(event, type)
        return event

    async def body(self, most: int, within_s: float) -> bytes:
        """The rest of the request; raises Refused if it is longer than `most`, or TimeoutError."""
        import h11

        if self.http.they_are_waiting_for_100_continue:
            self._write(h11.InformationalResponse(status_code=100, headers=[]))
        body, until = bytearray(), asyncio.get_running_loop().time() + within_s
        while isinstance(event := await self.next_event(until), h11.Data):
            body += event.data
            if len(body) > most:
                raise Refused(413, f"more than {most} bytes (predict.max_body_mb)", "too large")
        return bytes(body)

    async def send(self, code: int, content: bytes, headers: Mapping[str, str]) -> None:
        """Write a response."""
        import h11

        head, end = _head_and_end(code, len(content), tuple(headers.items()))
        # In one write: one TLS record, and the caller wakes up once.
        self._write(head, h11.Data(data=content), end)
        if self.writer.transport.get_write_buffer_size():
            async with asyncio.timeout(SEND_S):
                await self.writer.drain()

    def _write(self, *events: "h11.Event") -> None:
        self.writer.write(b"".join(self.http.send(event) or b"" for event in events))


class Connections:
    """Accepts connections and answers their requests."""

    def __init__(self, behind: Answering, bounds: Bounds, tls: ssl.SSLContext | None) -> None:
        self._behind, self._bounds, self._tls = behind, bounds, tls
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[str, dict[asyncio.Task[None], None]] = {}  # address → connections, the oldest first
        self._requests = 0  # under way
        self._accepting: asyncio.Task[None] | None = None

    def start(self, listening: socket.socket) -> None:
        """Accept connections from now on."""
        listening.setblocking(False)
        self._accepting = asyncio.ensure_future(self._accept(listening))

    async def stop(self) -> None:
        """Accept no more; let requests under way finish within STOP_S."""
        if self._accepting is None:
            return
        self._accepting.cancel()
        for connections in list(self._waiting.values()):
            for task in connections:
                task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(self._accepting, *self._tasks, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                try:
                    accepted, address = await loop.sock_accept(listening)
                except OSError as error:
                    if error.errno in (errno.EMFILE, errno.ENFILE):
                        self._close_oldest("no descriptor left")
                    await asyncio.sleep(PAUSE_S)
                    continue
                accepted.setblocking(False)
                group = _group(address[0])
                task = loop.create_task(self._serve(accepted, group))
                self._tasks.add(task)
                task.add_done_callback(partial(self._ended, accepted))
                self._wait(task, group)
                await asyncio.sleep(0)  # many new connections do not stop the others

    def _ended(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        accepted.close()  # here, because a task that was cancelled before its first step closes nothing
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._behind.failed(error)

    # Waiting connections.

    def _wait(self, task: asyncio.Task[None], group: str) -> None:
        same = self._waiting.setdefault(group, {})
        same[task] = None
        if len(same) > self._bounds.max_waiting_per_address:
            self._close(group, "too many connections of one address")
        elif sum(map(len, self._waiting.values())) > self._bounds.max_waiting:
            self._close_oldest("too many connections")

    def _close_oldest(self, why: str) -> None:
        group = max(self._waiting, key=lambda group: len(self._waiting[group]), default=None)
        if group is not None:
            self._close(group, why)

    def _close(self, group: str, why: str) -> None:
        oldest = next(iter(self._waiting[group]))
        self._no_longer_waits(oldest, group)
        oldest.cancel()
        self._behind.closed(why)

    def _no_longer_waits(self, task: asyncio.Task[None], group: str) -> None:
        same = self._waiting.get(group, {})
        same.pop(task, None)
        if not same:
            self._waiting.pop(group, None)

    # One connection.

    async def _serve(self, accepted: socket.socket, group: str) -> None:
        import h11

        task = asyncio.current_task()
        assert task is not None
        line = None
        try:
            async with asyncio.timeout(self._bounds.request_s):
                line = await self._open(accepted)
            patience_s = self._bounds.request_s
            while await self._one_request(line, task, group, patience_s):
                patience_s = self._bounds.idle_s
            line.writer.close()
            async with asyncio.timeout(self._bounds.request_s):
                await line.writer.wait_closed()
        except TimeoutError:
            self._behind.closed("silent")
        except h11.ProtocolError:
            self._behind.closed("not HTTP")
        except ssl.SSLError:
            self._behind.closed("TLS")
        except BROKEN:
            pass
        finally:
            self._no_longer_waits(task, group)
            if line is not None:
                line.writer.transport.abort()

    async def _open(self, accepted: socket.socket) -> _Line:
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, accepted, ssl=self._tls)
        return _Line(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    async def _one_request(self, line: _Line, task: asyncio.Task[None], group: str, patience_s: float) -> bool:
        """Answer the next request; returns whether another one may follow on this connection."""
        import h11

        request = await line.next_event(asyncio.get_running_loop().time() + patience_s)
        assert isinstance(request, h11.Request)
        if probed := self._behind.probe(request.method.decode("ascii", "replace"), _path(request)):
            await line.send(*probed, {"Connection": "close"})
            return False
        caller = ""
        try:
            caller = self._behind.admit(_authorization(request))
            if self._requests >= self._bounds.max_requests:
                words = f"{self._requests} requests are under way (predict.max_requests)"
                raise Refused(503, words, "too many requests", {"Retry-After": "1"})
        except Refused as refusal:
            await self._refuse(line, caller, refusal)
            return False
        self._no_longer_waits(task, group)
        self._requests += 1
        try:
            await self._answer(line, caller, request)
        except Refused as refusal:
            await self._refuse(line, caller, refusal)
        finally:
            self._requests -= 1
            self._wait(task, group)
        if line.http.our_state is h11.MUST_CLOSE:
            return False
        line.http.start_next_cycle()
        return True

    async def _answer(self, line: _Line, caller: str, request: "h11.Request") -> None:
        try:
            body = await line.body(self._bounds.max_body_bytes, self._bounds.request_s)
        except TimeoutError:
            raise Refused(408, f"no body within {self._bounds.request_s:g} s (predict.request_s)", "silent") from None
        method = request.method.decode("ascii", "replace")
        content = await self._behind.answer(caller, method, _path(request), body)
        await line.send(200, content, {})

    async def _refuse(self, line: _Line, caller: str, refusal: Refused) -> None:
        """Say why. If a body is left, read it within limits, so that the caller sees the answer, and close."""
        import h11

        unread = line.http.their_state is h11.SEND_BODY
        close = {"Connection": "close"} if unread or not caller else {}
        await line.send(refusal.code, self._behind.refused(caller, refusal), {**refusal.headers, **close})
        if unread:
            with contextlib.suppress(Refused, EOFError, TimeoutError):
                await line.body(self._bounds.max_body_bytes, self._bounds.request_s)


@lru_cache(256)
def _head_and_end(code: int, size: int, headers: tuple[tuple[str, str], ...]) -> tuple["h11.Response", "h11.Event"]:
    """The events around a response's content. They are kept, because h11 checks every header of a new one."""
    import h11

    plain = {"Content-Type": "application/json", "Content-Length": str(size)}
    lines = [(key.encode(), value.encode()) for key, value in (plain | dict(headers)).items()]
    return h11.Response(status_code=code, headers=lines), h11.EndOfMessage()


def _path(request: "h11.Request") -> str:
    return request.target.partition(b"?")[0].decode("ascii", "replace")


def _authorization(request: "h11.Request") -> str:
    return next((value.decode("latin-1") for key, value in request.headers if key == b"authorization"), "")


def _group(address: str) -> str:
    """The addresses that count as one: a single IPv4 address, or the /64 network that an IPv6 caller usually has."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
