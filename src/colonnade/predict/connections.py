"""The connections of the HTTP endpoint.

A connection waits until its request is admitted: in the TLS handshake, before a request, between two requests. Waiting
connections are limited in all and for each address. At the limit the oldest one of the address with the most is closed,
so that connections that say nothing cannot keep out a caller with a token. Admitted requests have a limit of their own.

h11 reads the requests. A caller that keeps its connection sends the same head again and again: the same bytes mean the
same request, so h11 reads only the first of them.
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
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import h11

__all__ = ["Answering", "Bounds", "Connections", "Refused"]

MAX_HEAD_BYTES = 16 * 2**10
KNOWN_HEADS, KNOWN_HEAD_BYTES = (
    8,
    2**10,
)  # kept of a connection: their number (bodies differ in length), and the most bytes
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


class _Head(NamedTuple):
    """What is used of a request's head."""

    method: str
    path: str
    authorization: str
    body_bytes: int  # -1: only h11 can tell where the request ends


@dataclass(slots=True, eq=False)
class _Line:
    """One connection in conversation."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    http: "h11.Connection" = field(init=False)
    _known: dict[bytes, _Head] = field(default_factory=dict)  # of earlier requests that were admitted
    _new: tuple[bytes, _Head] | None = None  # of this request, if the next one may begin in the same way
    _whole: bytes | None = None  # the body of a request whose head is known; None: h11 reads this request

    def __post_init__(self) -> None:
        import h11

        self.http = h11.Connection(h11.SERVER, MAX_HEAD_BYTES)

    async def next_request(self, until: float) -> _Head:
        """The head of the next request; raises as `next_event`."""
        self._new = self._whole = None
        data = b""
        if not self.http.trailing_data[0]:  # else h11 has a part of the next request already
            data = await self._read(until)
            end = data.find(b"\r\n\r\n") + 4
            known = self._known.get(data[:end])
            if known is not None and len(data) == end + known.body_bytes:
                self._whole = data[end:]
                return known
            self.http.receive_data(data)
        head = _head_of(await self.next_event(until))
        self._note_new(data, head)
        return head

    def _note_new(self, data: bytes, head: _Head) -> None:
        """Note which bytes h11 took as this head, unless they came in pieces or behind another request."""
        rest = self.http.trailing_data[0]
        size = len(data) - len(rest)
        if head.body_bytes >= 0 and 0 < size <= KNOWN_HEAD_BYTES and data[size - 4 :] == b"\r\n\r\n" + rest:
            self._new = data[:size], head

    def admitted(self) -> None:
        """Remember this request's head."""
        if self._new is not None:
            if len(self._known) >= KNOWN_HEADS:
                self._known.clear()
            self._known[self._new[0]] = self._new[1]

    async def next_event(self, until: float) -> "h11.Event":
        """The next event of the request; raises RemoteProtocolError of h11, EOFError at the end, or TimeoutError.

        `until` is a time of the event loop. No timer is made for what has arrived already.
        """
        import h11

        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self._read(until))
        if isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
            raise EOFError
        assert not isinstance(event, type)
        return event

    async def _read(self, until: float) -> bytes:
        async with asyncio.timeout_at(until):
            return await self.reader.read(READ_BYTES)

    async def body(self, most: int, within_s: float) -> bytes:
        """The rest of the request; raises Refused if it is longer than `most`, or TimeoutError."""
        if self._whole is not None:
            if len(self._whole) > most:
                raise _too_large(most)
            return self._whole
        import h11

        if self.http.they_are_waiting_for_100_continue:
            self.writer.write(self._of_h11(h11.InformationalResponse(status_code=100, headers=[])))
        body, until = bytearray(), asyncio.get_running_loop().time() + within_s
        while isinstance(event := await self.next_event(until), h11.Data):
            body += event.data
            if len(body) > most:
                raise _too_large(most)
        return bytes(body)

    @property
    def unread(self) -> bool:
        """Whether a part of the request has not been read."""
        if self._whole is not None:
            return False
        import h11

        return self.http.their_state is h11.SEND_BODY

    def begin_next(self) -> bool:
        """Make the connection ready for another request; returns False if none may follow."""
        if self._whole is not None:
            return True
        import h11

        if self.http.our_state is h11.MUST_CLOSE:
            return False
        self.http.start_next_cycle()
        return True

    async def send(self, code: int, content: bytes, headers: Mapping[str, str]) -> None:
        """Write a response, in one write: one TLS record, and the caller wakes up once."""
        event, end, text = _response(code, len(content), tuple(headers.items()))
        if self._whole is not None:
            self.writer.write(text + content)
        else:
            import h11

            self.writer.write(self._of_h11(event, h11.Data(data=content), end))
        if self.writer.transport.get_write_buffer_size():
            async with asyncio.timeout(SEND_S):
                await self.writer.drain()

    def _of_h11(self, *events: "h11.Event") -> bytes:
        return b"".join(self.http.send(event) or b"" for event in events)


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
        head = await line.next_request(asyncio.get_running_loop().time() + patience_s)
        if probed := self._behind.probe(head.method, head.path):
            await line.send(*probed, {"Connection": "close"})
            return False
        caller = ""
        try:
            caller = self._behind.admit(head.authorization)
            if self._requests >= self._bounds.max_requests:
                words = f"{self._requests} requests are under way (predict.max_requests)"
                raise Refused(503, words, "too many requests", {"Retry-After": "1"})
        except Refused as refusal:
            await self._refuse(line, caller, refusal)
            return False
        line.admitted()
        self._no_longer_waits(task, group)
        self._requests += 1
        try:
            await self._answer(line, caller, head)
        except Refused as refusal:
            await self._refuse(line, caller, refusal)
        finally:
            self._requests -= 1
            self._wait(task, group)
        return line.begin_next()

    async def _answer(self, line: _Line, caller: str, head: _Head) -> None:
        try:
            body = await line.body(self._bounds.max_body_bytes, self._bounds.request_s)
        except TimeoutError:
            raise Refused(408, f"no body within {self._bounds.request_s:g} s (predict.request_s)", "silent") from None
        content = await self._behind.answer(caller, head.method, head.path, body)
        await line.send(200, content, {})

    async def _refuse(self, line: _Line, caller: str, refusal: Refused) -> None:
        """Say why. If a body is left, read it within limits, so that the caller sees the answer, and close."""
        unread = line.unread
        close = {"Connection": "close"} if unread or not caller else {}
        await line.send(refusal.code, self._behind.refused(caller, refusal), {**refusal.headers, **close})
        if unread:
            with contextlib.suppress(Refused, EOFError, TimeoutError):
                await line.body(self._bounds.max_body_bytes, self._bounds.request_s)


def _too_large(most: int) -> Refused:
    return Refused(413, f"more than {most} bytes (predict.max_body_mb)", "too large")


@lru_cache(256)
def _response(code: int, size: int, headers: tuple[tuple[str, str], ...]) -> tuple["h11.Response", "h11.Event", bytes]:
    """The events around a response's content, and the bytes before it. They are kept: h11 checks every header."""
    import h11

    plain = {"Content-Type": "application/json", "Content-Length": str(size)}
    lines = [(key.encode(), value.encode()) for key, value in (plain | dict(headers)).items()]
    event = h11.Response(status_code=code, headers=lines)
    text = b"".join([b"HTTP/1.1 %d \r\n" % code, *(b"%s: %s\r\n" % line for line in lines), b"\r\n"])
    return event, h11.EndOfMessage(), text


def _head_of(request: "h11.Event") -> _Head:
    import h11

    assert isinstance(request, h11.Request)
    method, path = (
        request.method.decode("ascii", "replace"),
        request.target.partition(b"?")[0].decode("ascii", "replace"),
    )
    authorization = next((value.decode("latin-1") for key, value in request.headers if key == b"authorization"), "")
    return _Head(method, path, authorization, _body_bytes(request))


def _body_bytes(request: "h11.Request") -> int:
    """The length of the body; -1 if more than a length decides what follows."""
    given = dict(request.headers)  # names are in lower case
    unusual = {b"transfer-encoding", b"expect", b"upgrade"} & given.keys()
    kept = request.http_version == b"1.1" and given.get(b"connection", b"keep-alive").lower() == b"keep-alive"
    repeated = len(given) < len(list(request.headers))
    if unusual or repeated or not kept or request.method not in (b"GET", b"POST"):
        return -1
    return int(given.get(b"content-length", b"0"))


def _group(address: str) -> str:
    """The addresses that count as one: a single IPv4 address, or the /64 network that an IPv6 caller usually has."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
