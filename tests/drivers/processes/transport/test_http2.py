"""HTTP/2 without a socket: two sides of ours, and a side that breaks the rules. RFC 9113's sections are named."""

import contextlib
import struct

import pytest
from hpack import Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.drivers.processes.transport import http2
from colonnade.drivers.processes.transport.http2 import FIRST_WINDOW, WINDOW, Code, Http2, Violation

REQUEST = ((b":method", b"POST"), (b":path", b"/a/b"), (b"content-type", b"application/grpc"))
TRAILERS = ((b"grpc-status", b"0"),)


class Ear:
    """Notes all that arrives on a stream."""

    def __init__(self, wants=True):
        self.flow, self.headers, self.data, self.ended, self.reset = None, [], b"", False, None
        self.over, self.room, self.wants = 0, 0, wants

    def began(self, flow):
        self.flow = flow

    def took_headers(self, headers):
        self.headers.append(tuple(headers))

    def took_data(self, data):
        self.data += data

    def took_end(self):
        self.ended = True

    def took_reset(self, words):
        self.reset = words

    def closed(self):
        self.over += 1

    def may_write(self):
        self.room += 1

    def hungry(self):
        return self.wants


class Pair:
    """A client and a server; bytes travel when the test says so."""

    def __init__(self, **more):
        self.ears = []
        self.client = Http2(client=True, flush=lambda: None)
        self.server = Http2(client=False, flush=lambda: None, opened=self.opened, **more)

    def opened(self, headers):
        self.ears.append(Ear())
        return self.ears[-1]

    def run(self, size=10**9):
        """Let bytes travel in pieces of this size until all is quiet."""
        while self.client.out or self.server.out:
            for side, other in ((self.client, self.server), (self.server, self.client)):
                data, side.out[:] = b"".join(side.out), []
                for place in range(0, len(data), size):
                    other.receive(memoryview(data)[place : place + size])

    def call(self):
        ear = Ear()
        flow = self.client.open(ear, REQUEST)
        self.run()
        return ear, flow, self.ears[-1]


@pytest.mark.parametrize("size", [1, 2, 7, 24, 1000, 10**9])
def test_a_call_arrives_in_whatever_pieces(size):
    pair = Pair()
    ear = Ear()
    flow = pair.client.open(ear, REQUEST)
    pair.client.data(flow, b"head", b"x" * 40_000)
    pair.client.end(flow)
    pair.run(size)
    (heard,) = pair.ears
    assert heard.headers == [REQUEST]
    assert heard.data == b"head" + b"x" * 40_000 and heard.ended
    pair.server.headers(heard.flow, ((b":status", b"200"),))
    pair.server.data(heard.flow, b"", b"answer")
    pair.server.end(heard.flow, TRAILERS)
    pair.run(size)
    assert ear.headers == [((b":status", b"200"),), TRAILERS] and ear.data == b"answer" and ear.ended
    assert ear.over == heard.over == 1 and not pair.client.flows and not pair.server.flows


def test_a_stranger_gets_the_first_window_only_and_what_is_beyond_waits():
    pair = Pair()
    _, flow, heard = pair.call()
    pair.client.data(flow, b"", b"x" * 100_000)
    pair.run()
    assert len(heard.data) == FIRST_WINDOW and flow.pending
    pair.server.widen(heard.flow)  # a member's
    pair.run()
    assert len(heard.data) == 100_000 and not flow.pending
    assert flow.receiver.room == 1, "told once that it may write again"


def test_windows_open_again_as_content_is_read_and_stay_shut_if_it_is_not():
    pair = Pair()
    _, flow, heard = pair.call()
    pair.server.widen(heard.flow)
    pair.run()
    heard.wants = False
    for _ in range(3):
        pair.client.data(flow, b"", bytes(WINDOW // 2))
        pair.run()
    assert len(heard.data) == WINDOW, "a second call's worth waits at the client"
    heard.wants = True
    pair.server.regrant(heard.flow)
    pair.run()
    assert len(heard.data) == 3 * (WINDOW // 2)


def test_other_streams_go_on_while_one_is_not_read():
    pair = Pair()
    _, slow, heard = pair.call()
    pair.server.widen(heard.flow)
    pair.run()
    heard.wants = False
    pair.client.data(slow, b"", bytes(2 * WINDOW))
    _, quick, other = pair.call()
    pair.client.data(quick, b"", b"hello")
    pair.run()
    assert other.data == b"hello"


def test_frames_are_as_small_as_the_other_side_wants_them():
    pair = Pair()
    _, _, heard = pair.call()
    pair.server._their_frame = 2**14  # as a grpcio client announces
    pair.server.data(heard.flow, b"", bytes(50_000))
    sizes, data = [], b"".join(pair.server.out)
    while data:
        size = int.from_bytes(data[:3], "big")
        sizes.append(size)
        data = data[9 + size :]
    assert sizes == [16_384, 16_384, 16_384, 848]


def test_trailers_come_after_content_that_had_to_wait_and_other_headers_may_come_between():
    pair = Pair()
    ear, _, heard = pair.call()
    pair.server._send_room = 10
    pair.server.data(heard.flow, b"", b"x" * 30)
    pair.server.end(heard.flow, ((b"grpc-status", b"5"), (b"grpc-message", b"first")))
    second, _, other = pair.call()
    pair.server.headers(other.flow, ((b":status", b"200"), (b"x", b"a name that enters the table")))
    pair.run()
    assert not ear.ended and second.headers
    pair.client.out.append(frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">L", 1000)))
    pair.run()
    assert ear.data == b"x" * 30 and ear.headers[-1] == ((b"grpc-status", b"5"), (b"grpc-message", b"first"))


def test_a_larger_window_is_used_only_after_it_was_confirmed():
    pair = Pair()
    _, _, heard = pair.call()
    heard.flow.send_room = 0
    pair.server.data(heard.flow, b"", b"content")
    pair.server.out.clear()
    pair.server.receive(memoryview(setting(http2.INITIAL_WINDOW, WINDOW + 7)))
    kinds = [pair.server.out[0][3], pair.server.out[1][3]]
    assert kinds == [http2.SETTINGS, http2.DATA] and not heard.flow.pending


def test_too_many_streams_are_refused_and_headers_stay_readable():
    pair = Pair(max_streams=2)
    first = [pair.call()[0] for _ in range(2)]
    refused = Ear()
    pair.client.open(refused, (*REQUEST, (b"enters-the-table", b"yes")))
    pair.run()
    assert "code 7" in refused.reset and len(pair.ears) == 2
    pair.client.reset(first[0].flow, Code.CANCEL)
    last = Ear()
    pair.client.open(last, (*REQUEST, (b"enters-the-table", b"yes")))
    pair.run()
    assert pair.ears[-1].headers[0][-1] == (b"enters-the-table", b"yes")


def test_a_reset_ends_both_sides_once():
    pair = Pair()
    ear, flow, heard = pair.call()
    pair.server.data(heard.flow, b"", bytes(10))
    pair.client.reset(flow, Code.CANCEL)
    pair.run()
    assert heard.reset and heard.over == ear.over == 1 and ear.data == b"", "what was under way is dropped"
    pair.client.reset(flow, Code.CANCEL)
    pair.client.data(flow, b"", b"late")
    assert not pair.client.out


def test_a_lost_connection_tells_every_stream():
    pair = Pair()
    ears = [pair.call()[0] for _ in range(3)]
    pair.client.lost("gone")
    assert [(ear.reset, ear.over) for ear in ears] == [("gone", 1)] * 3


# A side that breaks the rules


def frame(kind, flags, number, body=b"", size=None):
    return struct.pack(">L", len(body) if size is None else size)[1:] + struct.pack(">BBL", kind, flags, number) + body


def number(value):
    return struct.pack(">L", value)


def setting(key, value):
    return frame(http2.SETTINGS, 0, 0, struct.pack(">HL", key, value))


def opened_and_reset(stream):
    return frame(http2.HEADERS, 4, stream) + frame(http2.RST_STREAM, 0, stream, number(8))


HELLO = http2.PREFACE + frame(http2.SETTINGS, 0, 0)
BLOCK = Encoder().encode(REQUEST)
OPENED = HELLO + frame(http2.HEADERS, 4, 1, BLOCK)
WRONG = {
    "no preface (3.4)": (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", Code.PROTOCOL_ERROR),
    "no SETTINGS (3.4)": (http2.PREFACE + frame(http2.PING, 0, 0, bytes(8)), Code.PROTOCOL_ERROR),
    "a frame that is too large (4.2)": (HELLO + frame(0, 0, 1, b"", 2**20 + 1), Code.FRAME_SIZE_ERROR),
    "a control frame that is too large": (OPENED + frame(http2.HEADERS, 4, 3, b"", 2**14 + 1), Code.FRAME_SIZE_ERROR),
    "data on stream 0 (6.1)": (HELLO + frame(0, 0, 0, b"x"), Code.PROTOCOL_ERROR),
    "data on an idle stream (5.1)": (OPENED + frame(0, 0, 3, b"x"), Code.PROTOCOL_ERROR),
    "data after the end (5.1)": (HELLO + frame(http2.HEADERS, 5, 1, BLOCK) + frame(0, 0, 1, b"x"), Code.PROTOCOL_ERROR),
    "more than the window (6.9.1)": (OPENED + 5 * frame(0, 0, 1, bytes(16_384)), Code.FLOW_CONTROL_ERROR),
    "more padding than content (6.1)": (OPENED + frame(0, 8, 1, b"\x05abcd"), Code.PROTOCOL_ERROR),
    "padding without a length (6.1)": (OPENED + frame(0, 8, 1, b""), Code.FRAME_SIZE_ERROR),
    "headers on stream 0 (6.2)": (HELLO + frame(http2.HEADERS, 4, 0, BLOCK), Code.PROTOCOL_ERROR),
    "headers on the server's stream (5.1.1)": (HELLO + frame(http2.HEADERS, 4, 2, BLOCK), Code.PROTOCOL_ERROR),
    "more padding than headers (6.2)": (HELLO + frame(http2.HEADERS, 12, 1, b"\x09ab"), Code.PROTOCOL_ERROR),
    "interrupted headers (6.2)": (
        HELLO + frame(http2.HEADERS, 0, 1, BLOCK) + frame(http2.PING, 0, 0, bytes(8)),
        Code.PROTOCOL_ERROR,
    ),
    "headers of another stream (6.10)": (
        HELLO + frame(http2.HEADERS, 0, 1, BLOCK) + frame(http2.CONTINUATION, 4, 3, b""),
        Code.PROTOCOL_ERROR,
    ),
    "a continuation of nothing (6.10)": (HELLO + frame(http2.CONTINUATION, 4, 1, BLOCK), Code.PROTOCOL_ERROR),
    "headers without an end": (
        HELLO + frame(http2.HEADERS, 0, 1, BLOCK) + 200 * frame(http2.CONTINUATION, 0, 1, bytes(100)),
        Code.ENHANCE_YOUR_CALM,
    ),
    "empty continuations": (
        HELLO + frame(http2.HEADERS, 0, 1, BLOCK) + frame(http2.CONTINUATION, 0, 1, b""),
        Code.ENHANCE_YOUR_CALM,
    ),
    "headers that cannot be read (4.3)": (HELLO + frame(http2.HEADERS, 4, 1, b"\xff" * 20), Code.COMPRESSION_ERROR),
    "headers that grow when read": (
        HELLO + frame(http2.HEADERS, 4, 1, Encoder().encode([(b"a", b"b" * 4000)]) + b"\xbe" * 30),
        Code.COMPRESSION_ERROR,
    ),
    "SETTINGS of a wrong size (6.5)": (http2.PREFACE + frame(http2.SETTINGS, 0, 0, b"abc"), Code.FRAME_SIZE_ERROR),
    "SETTINGS on a stream (6.5)": (http2.PREFACE + frame(http2.SETTINGS, 0, 1), Code.FRAME_SIZE_ERROR),
    "a window that is too large (6.5.2)": (http2.PREFACE + setting(4, 2**31), Code.FLOW_CONTROL_ERROR),
    "frames that are too small (6.5.2)": (http2.PREFACE + setting(5, 100), Code.PROTOCOL_ERROR),
    "a window of a wrong size (6.9)": (HELLO + frame(http2.WINDOW_UPDATE, 0, 0, b"abc"), Code.FRAME_SIZE_ERROR),
    "a window of nothing (6.9)": (HELLO + frame(http2.WINDOW_UPDATE, 0, 0, number(0)), Code.FLOW_CONTROL_ERROR),
    "a window that overflows (6.9.1)": (
        OPENED + frame(http2.WINDOW_UPDATE, 0, 1, number(2**31 - 1)),
        Code.FLOW_CONTROL_ERROR,
    ),
    "a window of an idle stream (5.1)": (HELLO + frame(http2.WINDOW_UPDATE, 0, 5, number(1)), Code.PROTOCOL_ERROR),
    "a reset of an idle stream (6.4)": (HELLO + frame(http2.RST_STREAM, 0, 5, number(8)), Code.PROTOCOL_ERROR),
    "a PING of a wrong size (6.7)": (HELLO + frame(http2.PING, 0, 0, b"abc"), Code.FRAME_SIZE_ERROR),
    "a push (8.4)": (OPENED + frame(http2.PUSH_PROMISE, 4, 1, number(2)), Code.PROTOCOL_ERROR),
    "a stranger's flood": (HELLO + 300 * frame(http2.PRIORITY, 0, 1, bytes(5)), Code.ENHANCE_YOUR_CALM),
    "a stranger's empty frames": (OPENED + 300 * frame(0, 0, 1), Code.ENHANCE_YOUR_CALM),
    "a stranger's resets": (HELLO + b"".join(map(opened_and_reset, range(1, 400, 2))), Code.ENHANCE_YOUR_CALM),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("size", [1, 10**9])
def test_a_broken_rule_ends_the_connection(what, size):
    data, code = WRONG[what]
    server = Pair().server
    with pytest.raises(Violation) as raised:
        for place in range(0, len(data), size):
            server.receive(memoryview(data)[place : place + size])
    assert raised.value.code == code and str(raised.value)


def test_a_member_that_reads_no_answers_is_cut_off():
    pair = Pair()
    pair.server.trusted = True
    pair.server.receive(memoryview(HELLO + 900 * frame(http2.PING, 0, 0, bytes(8))))
    pair.server.choke(False)  # it has read them
    pair.server.receive(memoryview(900 * frame(http2.PING, 0, 0, bytes(8))))
    with pytest.raises(Violation, match="does not read"):
        pair.server.receive(memoryview(200 * frame(http2.PING, 0, 0, bytes(8))))


def test_a_member_that_opens_streams_and_reads_no_end_is_cut_off():
    pair = Pair()
    pair.server.trusted = True
    pair.server.choke(True)
    streams = range(1, 2 * http2.MAX_REPLIES + 20, 2)
    data = HELLO + b"".join(frame(http2.HEADERS, 5, stream, b"") for stream in streams)
    with pytest.raises(Violation, match="does not read"):
        for place in range(0, len(data), 9):
            pair.server.receive(memoryview(data)[place : place + 9])
            for flow in list(pair.server.flows.values()):
                pair.server.end(flow, TRAILERS)
    assert len(pair.ears) <= http2.MAX_REPLIES


def test_padding_priorities_and_extensions_are_skipped():
    data = HELLO + frame(http2.HEADERS, 4 | 8 | 32, 1, b"\x03" + bytes(5) + BLOCK + bytes(3))
    data += frame(0, 8, 1, b"\x02abc" + bytes(2)) + frame(99, 0, 7, b"unknown" * 1000) + frame(0, 8 | 1, 1, b"\x00d")
    for size in (1, 3, 10**9):
        pair = Pair()
        for place in range(0, len(data), size):
            pair.server.receive(memoryview(data)[place : place + size])
        assert pair.ears[0].headers == [REQUEST] and pair.ears[0].data == b"abcd" and pair.ears[0].ended


def keeps_little(pair):
    """What a stranger can make the server keep."""
    assert sum(len(ear.data) for ear in pair.ears) <= FIRST_WINDOW
    assert len(pair.server.flows) <= http2.MOST_STREAMS and len(pair.server._rest) <= 9 + http2.MAX_CONTROL_BYTES
    assert pair.server._headers is None or len(pair.server._headers[2]) <= http2.MAX_HEADER_BYTES
    assert sum(map(len, pair.server.out)) < 20_000


FRAMES = st.tuples(st.integers(0, 12), st.integers(0, 255), st.integers(0, 4), st.binary(max_size=40))


@given(st.lists(FRAMES, max_size=8))
@settings(max_examples=300, deadline=None)
def test_any_frames_are_taken_or_refused(frames):
    pair = Pair()
    with contextlib.suppress(Violation):
        pair.server.receive(memoryview(OPENED + b"".join(frame(*one) for one in frames)))
    keeps_little(pair)


@given(st.integers(0, len(OPENED) + 20), st.integers(0, 255))
@settings(max_examples=300, deadline=None)
def test_any_changed_byte_is_taken_or_refused(place, value):
    data = bytearray(OPENED + frame(0, 1, 1, b"some content"))
    data[min(place, len(data) - 1)] = value
    pair = Pair()
    with contextlib.suppress(Violation):
        pair.server.receive(memoryview(bytes(data)))
    keeps_little(pair)
