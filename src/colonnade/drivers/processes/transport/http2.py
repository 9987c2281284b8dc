"""HTTP/2 (RFC 9113) as gRPC uses it, without a socket: bytes go in, streams get their parts, bytes come out.

    receive(bytes)              → took_headers, took_data, took_end, took_reset of a stream's `Receiver`
    open, headers, data, reset  → bytes in `out`

The other side may lie. Everything that it can make this side keep is limited: headers by `MAX_HEADER_BYTES`, content by
the windows that this side grants, streams by `max_streams`, answers that it does not read by `MAX_REPLIES`. A
connection that is not `trusted` gets no windows beyond the first and may send only `STRANGERS_FRAMES` frames. Content
is handed over in pieces as it arrives, so a frame of any size needs no memory here. Padding and priorities are
understood and have no use; pushes are refused.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import Protocol

from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError

__all__ = ["FIRST_WINDOW", "WINDOW", "Code", "Flow", "Headers", "Http2", "Receiver", "Violation"]

Headers = Sequence[tuple[bytes, bytes]]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FIRST_WINDOW = 65_535  # what both sides may send before they hear more
WINDOW = 2**24  # bytes that may be under way, on a trusted connection and on a stream that is read
LARGEST_WINDOW = 2**31 - 1
FRAME = 2**20  # the largest frame that this side takes
SMALLEST_FRAME = 2**14  # that every side takes
MAX_HEADER_BYTES = 2**14
MAX_CONTROL_BYTES = 2**14  # of a frame that must be complete before it is read
MAX_REPLIES = 1000  # that wait because the other side does not read
STRANGERS_FRAMES = 256
MOST_STREAMS = 256  # open at the same time

_HEAD = Struct(">HBBBL")
_SETTING = Struct(">HL")
_NUMBER = Struct(">L")
_HEAD_BYTES = _HEAD.size
_ID = 2**31 - 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITISED = 0x1, 0x1, 0x4, 0x8, 0x20
TABLE_SIZE, PUSH, INITIAL_WINDOW, MAX_FRAME = 1, 2, 4, 5


class Code(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FLOW_CONTROL_ERROR = 3
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Violation(Exception):
    """The other side broke the protocol: the connection ends."""

    def __init__(self, code: Code, words: str) -> None:
        super().__init__(words)
        self.code = code


class Receiver(Protocol):
    """What gets the parts of a stream."""

    def began(self, flow: "Flow") -> None:
        """Note which stream it is. This is the first call."""

    def took_headers(self, headers: Headers) -> None:
        """Take the headers of a request or answer, or those at the end."""

    def took_data(self, data: memoryview) -> None:
        """Take a piece of the content. It is valid only in this call."""

    def took_end(self) -> None:
        """Note that the other side sends nothing more on this stream."""

    def took_reset(self, words: str) -> None:
        """Note that the other side cut the stream off, or that the connection is gone."""

    def closed(self) -> None:
        """Note that the stream is over in both directions. This is the last call."""

    def may_write(self) -> None:
        """Note that all data were passed on: more may be written."""

    def hungry(self) -> bool:
        """Whether more content may come."""


@dataclass(slots=True, eq=False)
class Flow:
    """One stream."""

    number: int
    receiver: Receiver
    send_room: int  # bytes that the other side will take
    room: int = FIRST_WINDOW  # bytes that this side will take
    window: int = FIRST_WINDOW  # that it keeps open
    pending: deque[memoryview] = field(default_factory=deque)  # what the other side has no room for yet
    last: Headers | None = None  # ends this side, after `pending`: trailers, or () for none
    ended_here: bool = False
    ended_there: bool = False


class Http2:
    """One connection, of a client or of a server."""

    def __init__(
        self,
        *,
        client: bool,
        flush: Callable[[], None],
        opened: Callable[[Headers], Receiver] | None = None,  # a server's: makes the receiver of a new stream
        max_streams: int = MOST_STREAMS,
    ) -> None:
        self._client, self._flush, self._opened, self._max_streams = client, flush, opened, max_streams
        self.out: list[bytes | memoryview] = []
        self.flows: dict[int, Flow] = {}
        self.trusted = client
        self.closing = False  # no new streams
        self.choked = False  # the socket takes nothing more at present
        self.replies = 0  # since the other side last read everything; see `MAX_REPLIES`
        self._encoder, self._decoder = Encoder(), Decoder(MAX_HEADER_BYTES)
        self._newest = 0 if client else -1  # number of the newest stream, or -1
        self._next = 1
        self._frames_left = STRANGERS_FRAMES
        self._preface, self._settled = not client, False  # the preface is expected; the first SETTINGS came
        self._rest = b""  # of a frame that is not complete
        self._data_left = self._padding_left = 0  # of a frame whose head was read
        self._data_flow: Flow | None = None
        self._data_ends = False
        self._headers: tuple[int, int, bytearray] | None = None  # stream, flags and block, until CONTINUATION ends it
        self._send_room, self._room = FIRST_WINDOW, FIRST_WINDOW  # of the connection
        self._their_window, self._their_frame = FIRST_WINDOW, SMALLEST_FRAME
        settings = {MAX_FRAME: FRAME}
        # A server names no limit of streams. gRPC's client counts calls that its program has not yet dropped, too, and
        # would wait with new ones. What goes beyond `max_streams` is refused.
        settings |= {PUSH: 0, INITIAL_WINDOW: WINDOW} if client else {}
        self.out.append(_frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*setting) for setting in settings.items())))
        if client:
            self.out.insert(0, PREFACE)
            self._grant(None, WINDOW - FIRST_WINDOW)

    # What this side sends

    def open(self, receiver: Receiver, headers: Headers) -> Flow:
        """A client's new stream, with the headers of its request."""
        flow = Flow(self._next, receiver, self._their_window, WINDOW, WINDOW)
        self._next += 2
        self.flows[flow.number] = flow
        receiver.began(flow)
        self.headers(flow, headers)
        return flow

    def headers(self, flow: Flow, headers: Headers) -> None:
        """Send headers; the content follows."""
        if not flow.ended_here:
            self.out.append(self._header_frame(flow, headers, 0))
            self._flush()

    def data(self, flow: Flow, head: bytes, body: bytes) -> None:
        """Send content. What the other side has no room for waits in the flow."""
        if flow.ended_here:
            return
        size = len(head) + len(body)
        if flow.pending or size > min(flow.send_room, self._send_room, self._their_frame):
            flow.pending += (memoryview(part) for part in (head, body) if part)
            self._pump(flow)
        else:
            flow.send_room -= size
            self._send_room -= size
            self.out += _head(size, DATA, 0, flow.number) + head, body
        self._flush()

    def end(self, flow: Flow, trailers: Headers = ()) -> None:
        """End this side's part after its content, with trailers if it is the server's."""
        if not flow.ended_here and flow.last is None:
            flow.last = trailers
            self._pump(flow)
            self._flush()

    def reset(self, flow: Flow, code: Code) -> None:
        """Cut a stream off, in both directions."""
        if flow.number in self.flows:
            self.out.append(_frame(RST_STREAM, 0, flow.number, _NUMBER.pack(code)))
            self._drop(flow)
            self._flush()

    def widen(self, flow: Flow) -> None:
        """Let the other side send much on this stream, and therefore on the connection."""
        if not self.trusted:
            self.trusted = True
            self._grant(None, WINDOW - FIRST_WINDOW)
        if flow.window < WINDOW:
            flow.window = WINDOW
            self._grant(flow, WINDOW - flow.room)
        self._flush()

    def regrant(self, flow: Flow) -> None:
        """Open the flow's window again if half of it is used and the receiver wants more."""
        if flow.room * 2 <= flow.window and flow.window > FIRST_WINDOW and flow.receiver.hungry():
            self._grant(flow, flow.window - flow.room)
            self._flush()

    def ping(self) -> None:
        """Ask the other side for a sign of life."""
        self.out.append(_frame(PING, 0, 0, bytes(8)))
        self._flush()

    def go_away(self, code: Code = Code.NO_ERROR, words: str = "") -> None:
        """Tell that this side takes no new streams."""
        self.closing = True
        body = _NUMBER.pack(max(0, self._newest)) + _NUMBER.pack(code) + words.encode()[:200]
        self.out.append(_frame(GOAWAY, 0, 0, body))
        self._flush()

    def lost(self, words: str) -> None:
        """Tell all streams that the connection is gone."""
        for flow in list(self.flows.values()):
            self._cut(flow, words)

    def choke(self, choked: bool) -> None:
        """Note whether the socket takes more."""
        self.choked = choked
        if not choked:
            self.replies = 0
            for flow in list(self.flows.values()):
                flow.receiver.may_write()

    def _header_frame(self, flow: Flow, headers: Headers, flags: int) -> bytes:
        return _frame(HEADERS, END_HEADERS | flags, flow.number, self._encoder.encode(headers))

    def _pump(self, flow: Flow) -> None:
        """Send what there is room for; then what ends this side."""
        pending = flow.pending
        while pending:
            size = min(len(pending[0]), flow.send_room, self._send_room, self._their_frame)
            if size <= 0:
                return
            self.out += _head(size, DATA, 0, flow.number), pending[0][:size]
            flow.send_room -= size
            self._send_room -= size
            if size == len(pending[0]):
                pending.popleft()
            else:
                pending[0] = pending[0][size:]
        if flow.last is not None:
            ending = (
                self._header_frame(flow, flow.last, END_STREAM) if flow.last else _frame(DATA, END_STREAM, flow.number)
            )
            self.out.append(ending)
            flow.last, flow.ended_here = None, True
            if flow.ended_there:
                self._drop(flow)
            elif not self._client:  # the answer is complete: the rest of the question is not read
                self.reset(flow, Code.NO_ERROR)

    def _cut(self, flow: Flow, words: str) -> None:
        flow.ended_here = flow.ended_there = True
        flow.receiver.took_reset(words)
        self._drop(flow)

    def _drop(self, flow: Flow) -> None:
        """Forget a stream that is over."""
        if self.flows.pop(flow.number, None) is not None:
            flow.ended_here = flow.ended_there = True
            flow.pending.clear()
            flow.receiver.closed()

    def _grant(self, flow: Flow | None, size: int) -> None:
        if flow is None:
            self._room += size
        else:
            flow.room += size
        self.out.append(_frame(WINDOW_UPDATE, 0, 0 if flow is None else flow.number, _NUMBER.pack(size)))

    # What the other side sent

    def receive(self, view: memoryview) -> None:
        """Take bytes; raises Violation."""
        if self._rest:
            view, self._rest = memoryview(self._rest + view), b""
        place, size = 0, len(view)
        if self._preface:
            if bytes(view[: len(PREFACE)]) != PREFACE[:size]:
                raise Violation(Code.PROTOCOL_ERROR, "does not speak HTTP/2")
            if size < len(PREFACE):
                self._rest = bytes(view)
                return
            self._preface, place = False, len(PREFACE)
        while place < size:
            if self._data_left or self._padding_left:
                place += self._take_content(view[place:])
            elif used := self._take_frame(view, place) if size - place >= _HEAD_BYTES else 0:
                place += used
            else:
                self._rest = bytes(view[place:])  # of a frame that is not complete
                break

    def _take_frame(self, view: memoryview, place: int) -> int:
        """Take the frame that begins here, or the head of content; returns the bytes used, 0 if it is not complete."""
        high, low, kind, flags, number = _HEAD.unpack_from(view, place)
        size, number = int(high << 8 | low), int(number & _ID)
        if size > FRAME:
            raise Violation(Code.FRAME_SIZE_ERROR, f"sent a frame of {size} bytes")
        place += _HEAD_BYTES
        if kind == DATA:
            if flags & PADDED:
                return self._take_padded_head(view, place, size, flags, number)
            self._begin_content(size, size, flags, number)
            return _HEAD_BYTES
        if kind > CONTINUATION:  # of an extension: skipped
            self._count_frame(kind, number)
            self._padding_left = size
            return _HEAD_BYTES
        if size > MAX_CONTROL_BYTES:
            raise Violation(Code.FRAME_SIZE_ERROR, f"sent a control frame of {size} bytes")
        if len(view) - place < size:
            return 0
        self._count_frame(kind, number)
        self._take_control(kind, flags, number, view[place : place + size])
        return _HEAD_BYTES + size

    def _count_frame(self, kind: int, number: int) -> None:
        """Check that a frame may come now."""
        if not self._settled and kind != SETTINGS:
            raise Violation(Code.PROTOCOL_ERROR, "sent no SETTINGS first")
        if self._headers is not None and (kind != CONTINUATION or number != self._headers[0]):
            raise Violation(Code.PROTOCOL_ERROR, "interrupted its headers")
        if not self.trusted:
            self._frames_left -= 1
            if self._frames_left < 0:
                raise Violation(Code.ENHANCE_YOUR_CALM, "sent too many frames")

    # Content

    def _take_padded_head(self, view: memoryview, place: int, size: int, flags: int, number: int) -> int:
        if size < 1:
            raise Violation(Code.FRAME_SIZE_ERROR, "sent padding without a length")
        if len(view) == place:
            return 0
        padding: int = view[place]
        if padding >= size:
            raise Violation(Code.PROTOCOL_ERROR, "sent more padding than content")
        self._begin_content(size, size - 1 - padding, flags, number)
        self._padding_left = padding
        return _HEAD_BYTES + 1

    def _begin_content(self, size: int, data: int, flags: int, number: int) -> None:
        """Note what follows on which stream. All of the frame counts towards the windows."""
        self._count_frame(DATA, number)
        flow = self.flows.get(number)
        if flow is None and (number == 0 or self._is_idle(number)):
            raise Violation(Code.PROTOCOL_ERROR, f"sent data on stream {number}, which is not open")
        self._room -= size
        if self._room < 0 or (flow is not None and flow.room < size):
            raise Violation(Code.FLOW_CONTROL_ERROR, "sent more than the window")
        if self.trusted and self._room * 2 <= WINDOW:
            self._grant(None, WINDOW - self._room)
        if flow is not None:
            if flow.ended_there:
                raise Violation(Code.PROTOCOL_ERROR, f"sent data on stream {number} after its end")
            flow.room -= size
        self._data_left, self._data_flow, self._data_ends = data, flow, bool(flags & END_STREAM)
        if not data:
            self._content_over()

    def _take_content(self, view: memoryview) -> int:
        """Pass on what has arrived of a frame's content, then skip its padding."""
        if not self._data_left:
            skipped = min(self._padding_left, len(view))
            self._padding_left -= skipped
            return skipped
        size, flow = min(self._data_left, len(view)), self._data_flow
        self._data_left -= size
        if flow is not None and flow.number in self.flows:
            flow.receiver.took_data(view[:size])
        if not self._data_left:
            self._content_over()
        return size

    def _content_over(self) -> None:
        flow, self._data_flow = self._data_flow, None
        if flow is None or flow.number not in self.flows:
            return
        if self._data_ends:
            self._ended_there(flow)
        else:
            self.regrant(flow)

    def _ended_there(self, flow: Flow) -> None:
        flow.ended_there = True
        flow.receiver.took_end()
        if flow.ended_here:
            self._drop(flow)

    def _is_idle(self, number: int) -> bool:
        """Whether no stream had this number yet."""
        return number % 2 == 0 or (number >= self._next if self._client else number > self._newest)

    # Control

    def _take_control(self, kind: int, flags: int, number: int, body: memoryview) -> None:
        if kind == HEADERS:
            self._begin_headers(flags, number, body)
        elif kind == CONTINUATION:
            self._continue_headers(flags, body)
        elif kind == WINDOW_UPDATE:
            self._window_opened(number, _number(body))
        elif kind == RST_STREAM:
            code = _number(body)
            if number == 0 or self._is_idle(number):
                raise Violation(Code.PROTOCOL_ERROR, "reset a stream that is not open")
            if (found := self.flows.get(number)) is not None:
                self._cut(found, f"the other side ended the call (HTTP/2 code {code})")
        elif kind == SETTINGS:
            self._take_settings(flags, number, body)
        elif kind == PING:
            if len(body) != 8 or number:
                raise Violation(Code.FRAME_SIZE_ERROR, "sent a PING of a wrong form")
            if not flags & ACK:
                self._reply(_frame(PING, ACK, 0, bytes(body)))
        elif kind == GOAWAY:
            self.closing = True
        elif kind == PUSH_PROMISE:
            raise Violation(Code.PROTOCOL_ERROR, "pushed a stream")

    def _reply(self, frame: bytes) -> None:
        self._count_reply()
        self.out.append(frame)

    def _count_reply(self) -> None:
        """Count what this side has to answer, whether the other side reads it or not."""
        self.replies += 1
        if self.replies > MAX_REPLIES:
            raise Violation(Code.ENHANCE_YOUR_CALM, "asks for answers that it does not read")

    def _take_settings(self, flags: int, number: int, body: memoryview) -> None:
        if number or len(body) % _SETTING.size or (flags & ACK and body):
            raise Violation(Code.FRAME_SIZE_ERROR, "sent SETTINGS of a wrong form")
        if flags & ACK:
            return
        self._settled = True
        self._reply(_frame(SETTINGS, ACK, 0))  # first: the other side counts by its new windows after this frame
        for key, value in _SETTING.iter_unpack(body):
            if key == INITIAL_WINDOW:
                if value > LARGEST_WINDOW:
                    raise Violation(Code.FLOW_CONTROL_ERROR, "set a window that is too large")
                change, self._their_window = value - self._their_window, value
                for flow in self.flows.values():
                    flow.send_room += change
            elif key == MAX_FRAME:
                if not SMALLEST_FRAME <= value < 2**24:
                    raise Violation(Code.PROTOCOL_ERROR, "set a frame size that is not allowed")
                self._their_frame = value
            elif key == TABLE_SIZE:
                self._encoder.header_table_size = min(value, 4096)
        self._pump_all()

    def _window_opened(self, number: int, size: int) -> None:
        size &= _ID
        if number == 0:
            self._send_room += size
            if not size or self._send_room > LARGEST_WINDOW:
                raise Violation(Code.FLOW_CONTROL_ERROR, "opened its window too far")
            self._pump_all()
            return
        if self._is_idle(number):
            raise Violation(Code.PROTOCOL_ERROR, "opened the window of a stream that is not open")
        if (found := self.flows.get(number)) is not None:
            found.send_room += size
            if not size or found.send_room > LARGEST_WINDOW:
                raise Violation(Code.FLOW_CONTROL_ERROR, "opened its window too far")
            self._pump_pending(found)

    def _pump_all(self) -> None:
        for flow in list(self.flows.values()):
            self._pump_pending(flow)

    def _pump_pending(self, flow: Flow) -> None:
        if flow.pending:
            self._pump(flow)
            if not flow.pending:
                flow.receiver.may_write()

    # Headers

    def _begin_headers(self, flags: int, number: int, body: memoryview) -> None:
        start, end = 0, len(body)
        if flags & PADDED:
            start, end = 1, end - (body[0] if end else 1)
        if flags & PRIORITISED:
            start += 5
        if start > end:
            raise Violation(Code.PROTOCOL_ERROR, "sent more padding than headers")
        if number == 0 or (self._client and self._is_idle(number)) or number % 2 == 0:
            raise Violation(Code.PROTOCOL_ERROR, f"sent headers on stream {number}")
        self._headers = number, flags, bytearray(body[start:end])
        if flags & END_HEADERS:
            self._headers_over()

    def _continue_headers(self, flags: int, body: memoryview) -> None:
        if self._headers is None:
            raise Violation(Code.PROTOCOL_ERROR, "continues headers that it did not begin")
        block = self._headers[2]
        block += body
        if len(block) > MAX_HEADER_BYTES or not body:
            raise Violation(Code.ENHANCE_YOUR_CALM, "sent headers without an end")
        if flags & END_HEADERS:
            self._headers_over()

    def _headers_over(self) -> None:
        assert self._headers is not None
        (number, flags, block), self._headers = self._headers, None
        try:
            headers = [(bytes(name), bytes(value)) for name, value in self._decoder.decode(bytes(block), raw=True)]
        except (HPACKError, ValueError, IndexError) as error:
            raise Violation(
                Code.COMPRESSION_ERROR, f"sent headers that cannot be read: {type(error).__name__}"
            ) from None
        flow = self.flows.get(number)
        if flow is None and not self._client:
            flow = self._accept(number, headers)
        elif flow is not None:
            flow.receiver.took_headers(headers)
        if flow is not None and flags & END_STREAM and number in self.flows:
            self._ended_there(flow)

    def _accept(self, number: int, headers: Headers) -> Flow | None:
        """A server's new stream; None if it is not taken."""
        if number <= self._newest:
            return None  # of a stream that is over
        self._newest = number
        if self.closing or len(self.flows) >= self._max_streams or self._opened is None:
            self._reply(_frame(RST_STREAM, 0, number, _NUMBER.pack(Code.REFUSED_STREAM)))
            return None
        self._count_reply()
        receiver = self._opened(headers)
        flow = self.flows[number] = Flow(number, receiver, self._their_window)
        receiver.began(flow)
        receiver.took_headers(headers)
        return flow


def _head(size: int, kind: int, flags: int, number: int) -> bytes:
    return _HEAD.pack(size >> 8, size & 0xFF, kind, flags, number)


def _frame(kind: int, flags: int, number: int, body: bytes = b"") -> bytes:
    return _head(len(body), kind, flags, number) + body


def _number(body: memoryview) -> int:
    if len(body) != _NUMBER.size:
        raise Violation(Code.FRAME_SIZE_ERROR, "sent a frame of a wrong size")
    return int(_NUMBER.unpack(body)[0])
