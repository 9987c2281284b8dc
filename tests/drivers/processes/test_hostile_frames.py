"""Hostile frames: the codec refuses them, and a live server only closes their sender's connection.

The frames, the hostile party and the live server are those of benchmarks/fuzz.py, which sends many more.
"""

import asyncio
import contextlib
import importlib.util
import io
import sys
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import grpc
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.algorithms.vafl.messages import Embeddings, Gradient, Query
from colonnade.drivers.processes import service
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.node import Node
from colonnade.drivers.processes.wire import (
    Bye,
    Hello,
    Kind,
    Position,
    control,
    open_envelope,
    read_control,
    seal_envelope,
)
from colonnade.protocol.codec import MAX_HEADER_BYTES, Codec
from colonnade.protocol.errors import CodecError, RemoteProtocolError
from colonnade.protocol.events import Effect, Event, Received
from colonnade.protocol.messages import EvaluationReply, Payload


def load_fuzz() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "fuzz.py"
    spec = importlib.util.spec_from_file_location("colonnade_fuzz", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


fuzz = load_fuzz()
MAX_CALLS = Limits().max_calls
CODEC = Codec(fuzz.MESSAGES, 2**20, finite=True)
GOOD = [bytes(CODEC.encode(message)) for message in fuzz.real_messages(np.random.default_rng(0))]


# The codec


def refusal(frame: bytes, codec: Codec = CODEC) -> str:
    with pytest.raises(CodecError) as caught:
        codec.decode(frame, "mallory")
    assert caught.value.peer == "mallory"
    assert len(caught.value.cause) < 400  # the log and the reply to the sender contain it
    return caught.value.cause


def test_twenty_thousand_mutated_frames_are_decoded_or_refused() -> None:
    tally = fuzz.fuzz_codec(20_000, seed=1)
    assert tally.frames == 20_000
    assert 10_000 < tally.refused < 20_000
    assert tally.after_mb - tally.before_mb < 8


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    refusal(data)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=300), st.binary(max_size=64))
def test_random_headers_are_refused_or_decoded(header: bytes, body: bytes) -> None:
    with contextlib.suppress(CodecError):
        CODEC.decode(fuzz.by_hand(header, body))


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5) | st.integers(-9, 9), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=300)
@given(anything, anything, st.binary(max_size=40))
def test_anything_in_place_of_fields_is_refused_or_decoded(rows: object, values: object, body: bytes) -> None:
    fields = {"type": "Embeddings", "step": 0, "batch": 0, "rows": rows, "values": values}
    with contextlib.suppress(CodecError):
        CODEC.decode(fuzz.by_hand(msgspec.msgpack.encode(fields), body))


def reply_of(dtype: object, shape: object, body: bytes = b"") -> bytes:
    fields = {"type": "EvaluationReply", "number": 1, "start": 0, "step": 0, "values": [dtype, shape]}
    return fuzz.by_hand(msgspec.msgpack.encode(fields), body)


BOMBS = {
    "an array of 2^40": reply_of("<f8", [2**40]),
    "a product beyond 64 bits": reply_of("<f8", [2**32, 2**32, 2**32, 2**32]),
    "an extent of 2^64 - 1": reply_of("<f8", [2**64 - 1, 0]),
    "a list of 2^32 - 1": fuzz.by_hand(b"\x82\xa4type\xaaEmbeddings\xa4rows\xdd\xff\xff\xff\xff"),
    "a map of 2^32 - 1": fuzz.by_hand(b"\x82\xa4type\xaaEmbeddings\xa4rows\xdf\xff\xff\xff\xff"),
    "bytes of 2^32 - 1": fuzz.by_hand(b"\x82\xa4type\xaaEmbeddings\xa4rows\xc6\xff\xff\xff\xff"),
    "nested long lists": fuzz.by_hand(b"\x82\xa4type\xaaEmbeddings\xa4rows" + b"\xdd\x00\xff\xff\xff" * 900),
    "a list nested to the limit": fuzz.by_hand(
        b"\x82\xa4type\xaaEmbeddings\xa4rows" + b"\x91" * (MAX_HEADER_BYTES - 40)
    ),
    "a map nested to the limit": fuzz.by_hand(b"\x82\xa4type\xaaEmbeddings\xa4rows" + b"\x81\x01" * 500_000),
    "a header of 4 GB": GOOD[0][:4] + b"\xff\xff\xff\xff" + GOOD[0][8:],
    "a long unknown name": fuzz.by_hand(msgspec.msgpack.encode({"type": "x" * 900_000})),
    "a long text as shape": reply_of("<f4", ["9" * 900_000]),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_without_the_memory_they_ask_for(name: str) -> None:
    frame = BOMBS[name]
    tracemalloc.start()
    try:
        refusal(frame)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 * len(frame) + 2**20


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("<f4", [-1]), ("<f4", [1.0]), ("<f4", [True]), ("<f4", [2**63]), ("|O", [1]), (">f4", [2]), ("<f4", [[2]]),
     ("<f4", [1, 1, 1, 1, 1]), (["<f4"], [1]), ("<f4", "2"), ("<f4", b"2"), ("<f4,<f4", [1]), ("<c8", [1])],
)  # fmt: skip
def test_dtypes_and_shapes_that_are_none_are_refused(dtype: object, shape: object) -> None:
    refusal(reply_of(dtype, shape, bytes(8)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8"])
def test_what_is_not_finite_is_refused(dtype: str, value: float) -> None:
    values = np.zeros((4, 4), dtype)
    values[3, 3] = value
    assert "NaN or infinity" in refusal(bytes(Codec(fuzz.MESSAGES).encode(EvaluationReply(1, 0, 0, values))))


def test_truth_values_are_zero_or_one() -> None:
    """numpy counts a byte of 7 as seven times True."""
    CODEC.decode(reply_of("|b1", [8], bytes([0, 1] * 4)))
    assert "0 and 1" in refusal(reply_of("|b1", [8], bytes([0, 1, 7, 1] * 2)))


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(st.text(max_size=4), anything, max_size=4), st.binary(max_size=60))
def test_control_frames_of_anything_are_read_or_refused(fields: dict[str, Any], garbage: bytes) -> None:
    for body in (msgspec.msgpack.encode(fields), garbage):
        envelope = open_envelope(seal_envelope(Kind.HELLO, 0, 0, body), "mallory")
        with contextlib.suppress(CodecError):
            read_control(envelope, Kind.HELLO, Hello, "mallory")


# The live server


def live(
    folder: Path, act: Callable[[Any, Any], Awaitable[None]], *, delays: bool = False, hostile: int = 1, **network: Any
) -> list[dict[str, Any]]:
    """Let `act` misbehave. The honest party keeps training, and no error is left unhandled. Return the server's log."""

    async def run() -> list[dict[str, Any]]:
        async with fuzz.arena(folder / "run", hostile, **network) as here:
            mallory = fuzz.Mallory(here, here.hostile[0])
            await act(here, mallory)
            await here.goes_on()
            await mallory.close()
            await here.goes_on()
            here.server.node.role.validate()
            log: list[dict[str, Any]] = here.log()
        assert here.complaints == []
        return log

    with contextlib.nullcontext() if delays else fuzz.no_delays():
        return asyncio.run(run())


def events(log: list[dict[str, Any]], event: str, peer: str | None = None) -> list[dict[str, Any]]:
    return [line for line in log if line["event"] == event and peer in (None, line.get("peer"))]


def upload(codec: Codec, **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "step": 0,
        "batch": 2,
        "rows": np.arange(2, dtype=np.int32),
        "values": np.zeros((2, 32), np.float32),
    } | changes
    return bytes(codec.encode(Embeddings(**fields)))


def honest(codec: Codec, here: Any, step: int = 0) -> bytes:
    """The upload that party-2 owes in this step. The server refuses other rows."""
    rows = here.server.node.role.walks[1].batch(step)
    return upload(codec, step=step, batch=len(rows), rows=rows, values=np.zeros((len(rows), 32), np.float32))


def test_every_wrong_message_costs_its_sender_the_stream_and_no_more(tmp_path: Path) -> None:
    codec = Codec(fuzz.MESSAGES)
    rows, values = np.arange(2, dtype=np.int32), np.zeros((2, 32), np.float32)
    nan, inf = values.copy(), values.copy()
    nan[0, 0], inf[1, 1] = np.nan, np.inf
    ok = b"an honest upload"
    wrong: dict[str, list[bytes]] = {
        "NaN or infinity": [fuzz.message_frame(upload(codec, values=nan))],
        "holds NaN": [fuzz.message_frame(upload(codec, values=inf))],
        "row numbers outside": [fuzz.message_frame(upload(codec, rows=np.array([0, 2**30], np.int32)))],
        "row numbers outside 0": [fuzz.message_frame(upload(codec, rows=np.array([0, -1], np.int32)))],
        "row numbers": [fuzz.message_frame(upload(codec, rows=np.arange(2.0)))],
        "embeddings of shape (2, 31)": [fuzz.message_frame(upload(codec, values=values[:, :31]))],
        "embeddings of shape (3, 32)": [fuzz.message_frame(upload(codec, values=np.zeros((3, 32), np.float32)))],
        "float32": [fuzz.message_frame(upload(codec, values=values.astype(np.float64)))],
        "a batch of 3": [fuzz.message_frame(upload(codec, batch=3))],
        "a batch of -1": [fuzz.message_frame(upload(codec, batch=-1))],
        "embeddings of step": [fuzz.message_frame(upload(codec, step=2**62))],
        "queries step 7": [fuzz.message_frame(bytes(codec.encode(Query(7))))],
        "does not expect a Gradient": [fuzz.message_frame(bytes(codec.encode(Gradient(0, 0, values))))],
        "sends message 2 after 0": [fuzz.message_frame(upload(codec), 2)],
        "sends message 18446744073709551615 after 1": [ok, fuzz.message_frame(upload(codec), 2**64 - 1)],
        "not sent to it yet": [fuzz.message_frame(upload(codec), 1, 2**64 - 1)],
        "acknowledges": [seal_envelope(Kind.ACK, 0, 2**63)],
        "not a Colonnade frame": [fuzz.message_frame(b"garbage" * 9)],
        "unknown kind 99": [b"\x63" + bytes(40)],
        "too short": [b"\x03"],
        "kind HELLO": [control(Kind.HELLO, Bye("", 0.0))],
        "kind WELCOME": [seal_envelope(Kind.WELCOME, 0, 0)],
        "kind END": [seal_envelope(Kind.END, 0, 0, b"x" * 1000)],
        "REFUSAL cannot be read": [seal_envelope(Kind.REFUSAL, 0, 0)],
        "BYE cannot be read": [seal_envelope(Kind.BYE, 0, 0, b"\xff\xff")],
        "ACK cannot be read": [seal_envelope(Kind.ACK, 0, 0, b"\xff\xff")],
        "bytes of news": [seal_envelope(Kind.ACK, 0, 0, bytes(5000))],
    }  # fmt: skip

    async def act(here: Any, mallory: Any) -> None:
        for cause, tried in wrong.items():
            frames = [fuzz.message_frame(honest(codec, here)) if frame is ok else frame for frame in tried]
            answer = await fuzz.offend(mallory, *frames)
            answer = answer or await fuzz.offend(mallory, *frames)  # cut off within another message: no refusal
            assert cause in answer, (cause, answer)
            assert len(answer) < 600
        evaluation = EvaluationReply(here.server.node.role.evaluation.number, 1, 0, rows.astype(np.float32))
        await fuzz.offend(mallory, fuzz.message_frame(bytes(codec.encode(evaluation))))

    log = live(tmp_path, act)
    assert len(events(log, "refused", "party-2")) >= 15  # causes that differ only in numbers are one
    assert not events(log, "refused", "party-1")
    assert not events(log, "lost")


def test_two_thousand_random_frames_leave_the_server_as_it_was(tmp_path: Path) -> None:
    with fuzz.no_delays():
        tally = asyncio.run(fuzz.fuzz_server(2000, 3, tmp_path / "run"))
    assert tally.trouble == []
    assert tally.refused > 200
    assert tally.after_mb - tally.before_mb < 16


def test_frames_above_the_limit_never_reach_a_decoder(tmp_path: Path) -> None:
    async def act(here: Any, mallory: Any) -> None:
        for size in (2**20 + 1, 4 * 2**20):
            answer = await fuzz.offend(mallory, fuzz.message_frame(bytes(size)))
            assert answer, size
        channel = mallory.new_channel(("grpc.max_send_message_length", -1))
        mallory.channel, before = channel, mallory.channel
        try:
            answer = await fuzz.offend(mallory, fuzz.message_frame(bytes(16 * 2**20)))
            assert "RESOURCE_EXHAUSTED" in answer
        finally:
            await channel.close()
            mallory.channel = before
        await here.until(lambda: mallory.peer.stream is None)

    live(tmp_path, act)


def test_a_hello_of_garbage_is_refused_with_few_words(tmp_path: Path) -> None:
    async def act(here: Any, mallory: Any) -> None:
        good = msgspec.to_builtins(mallory.hello())
        deep: Any = 1
        for _ in range(400):
            deep = {"a": deep}
        bodies = [
            b"",
            b"\xff" * 50,
            b"\x91" * 5000,
            msgspec.msgpack.encode(good | {"more": 1}),
            msgspec.msgpack.encode(good | {"protocol": "x" * 500_000}),
            msgspec.msgpack.encode(good | {"protocol": 77, "release": "x" * 500_000}),
            msgspec.msgpack.encode(good | {"shared": {"train": "x" * 500_000}}),
            msgspec.msgpack.encode(good | {"shared": good["shared"] | {"train": {1: 2, "a": 3, b"b": 4}}}),
            msgspec.msgpack.encode(good | {"shared": good["shared"] | {"train": deep}}),
            msgspec.msgpack.encode(good | {"rows": -1}),
            msgspec.msgpack.encode(good | {"width": 2**64 - 1}),
            msgspec.msgpack.encode(good | {"ids_sha256": "z" * 500_000}),
        ]
        for body in bodies:
            call = mallory.call()
            await call.write(seal_envelope(Kind.HELLO, 0, 0, body))
            answer = await fuzz.answer_of(call)
            assert 0 < len(answer) < 600, body[:40]
        call = mallory.call()
        await call.write(seal_envelope(Kind.HELLO, 0, 0, bytes(2**20 - 100)))
        assert await fuzz.answer_of(call)
        strange = {
            Position(2**63, 2**63, 2**63, 2**63): Kind.REFUSAL,
            Position(-1, -1, -1, -1): Kind.REFUSAL,
            Position(-1, 0, 0, 0): Kind.WELCOME,
            Position(0, 9, 9, 9): Kind.WELCOME,
        }
        for position, kind in strange.items():
            call = mallory.call()
            await call.write(control(Kind.HELLO, mallory.hello(position)))
            first = open_envelope(await asyncio.wait_for(call.read(), fuzz.ANSWER_S), "server")
            assert first.kind == kind
            call.cancel()

    live(tmp_path, act)


def test_a_guest_that_never_says_hello_is_sent_away(tmp_path: Path) -> None:
    async def act(here: Any, mallory: Any) -> None:
        calls = [mallory.call() for _ in range(5)]
        for call in calls:
            await fuzz.answer_of(call)
            assert call.done()
        call = mallory.call()
        await call.done_writing()
        assert "before its hello" in await fuzz.answer_of(call)
        await here.until(lambda: here.server.service._calls.get(mallory.name) == 0)

    log = live(tmp_path, act, handshake_s=0.5)
    assert len(events(log, "handshake not finished")) == 1


def test_a_guest_with_too_many_calls_keeps_no_party_out(tmp_path: Path) -> None:
    """Calls without a hello last until the handshake times out: one party gets a few of them, not all."""

    async def act(here: Any, mallory: Any) -> None:
        channels = [mallory.new_channel() for _ in range(4)]
        calls = [mallory.call(channel) for channel in channels for _ in range(60)]
        await here.until(lambda: here.server.service._calls.get(mallory.name, 0) >= MAX_CALLS)
        other = fuzz.Mallory(here, here.hostile[1])  # an honest party that comes now
        call = await other.join()
        call.cancel()
        await other.close()
        assert here.server.service._calls[mallory.name] <= MAX_CALLS + 1
        for call in calls:
            call.cancel()
        for channel in channels:
            await channel.close()

    log = live(tmp_path, act, hostile=2)
    assert len([line for line in events(log, "refused") if "too many calls" in line["cause"]]) == 1


def test_a_guest_that_never_reads_is_dropped_when_too_much_waits(tmp_path: Path) -> None:
    codec = Codec(fuzz.MESSAGES)

    async def act(here: Any, mallory: Any) -> None:
        peer, conversation = mallory.peer, mallory.peer.conversation
        call = await mallory.join()
        longest = sequence = 0
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while peer.stream is not None and sequence < 2000:
                body = honest(codec, here, sequence)
                sequence += 1
                before = here.server.node.role.progress.k
                await asyncio.wait_for(call.write(fuzz.message_frame(body, sequence)), fuzz.ANSWER_S)
                await here.until(lambda before=before: here.server.node.role.progress.k > before or peer.stream is None)
                longest = max(longest, len(conversation.outbox))
        assert peer.stream is None
        assert 0 < longest <= 9
        call.cancel()
        await (await mallory.join()).done_writing()  # it may reconnect

    log = live(tmp_path, act, max_queue=8, max_in_flight=4)
    assert [line for line in log if "too many messages wait" in line["event"]]


def test_what_still_waits_here_cannot_be_acknowledged(tmp_path: Path) -> None:
    """Two messages may be under way. The third is queued, so a peer that acknowledges it is lying."""
    codec = Codec(fuzz.MESSAGES)

    async def act(here: Any, mallory: Any) -> None:
        conversation = mallory.peer.conversation
        call = await mallory.join()
        for sequence in range(1, 5):
            before = conversation.sent
            await call.write(fuzz.message_frame(honest(codec, here, sequence - 1), sequence))
            await here.until(lambda before=before: conversation.sent > before)
        await call.write(seal_envelope(Kind.ACK, 0, conversation.sent))
        assert "not sent to it yet" in await fuzz.answer_of(call)

    live(tmp_path, act, max_in_flight=2, max_queue=64)


def test_a_guest_that_never_reads_holds_few_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server waits a moment for a guest to read, and then abandons the call: no such call stays."""
    monkeypatch.setattr(service, "FAREWELL_S", 0.5)
    codec = Codec(fuzz.MESSAGES)
    narrow = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_535)]

    async def hold(here: Any, mallory: Any, call: Any) -> None:
        """Make the server write more than the window takes, then appear to be gone."""
        for sequence in range(1, 61):  # answers of 4 kB
            before = mallory.peer.messages_out
            await call.write(fuzz.message_frame(honest(codec, here, sequence - 1), sequence))
            await here.until(lambda before=before: mallory.peer.messages_out > before)
        await call.write(b"garbage")
        await here.until(lambda: mallory.peer.stream is None)

    async def act(here: Any, mallory: Any) -> None:
        welcome, held, most = 0, [], 0
        try:
            for _ in range(2 * MAX_CALLS):
                channel = mallory.new_channel(*narrow)
                call = mallory.call(channel)
                held.append((channel, call))
                try:
                    await call.write(control(Kind.HELLO, mallory.hello()))
                    data = await asyncio.wait_for(call.read(), fuzz.ANSWER_S)
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    break  # ended even before the hello
                if data is grpc.aio.EOF:
                    break
                welcome += 1
                await hold(here, mallory, call)
                most = max(most, here.server.service._calls[mallory.name])
            await here.goes_on()
        finally:
            for channel, call in held:
                call.cancel()
                await channel.close()
        assert welcome > 1 and most <= MAX_CALLS
        await here.until(lambda: here.server.service._calls[mallory.name] == 0)
        (await mallory.join()).cancel()

    live(tmp_path, act)


@pytest.mark.slow  # on busy cores the hostile client can be slower than the limits that the server has for it
def test_floods_leave_nothing_behind(tmp_path: Path) -> None:
    """Repeats are dropped; a party has at most one upload and one query queued, however many it sends."""
    codec = Codec(fuzz.MESSAGES)

    async def act(here: Any, mallory: Any) -> None:
        node, peer = here.server.node, mallory.peer
        call = await mallory.join()
        reader = asyncio.ensure_future(fuzz.answer_of(call))
        acknowledged = step = 0
        for _ in range(1000):
            await call.write(fuzz.message_frame(honest(codec, here), 1))
        await here.until(lambda: peer.conversation.repeats_dropped >= 999)
        before = fuzz.memory_mb()
        for sequence in range(2, 3002):
            step += sequence % 3 != 0
            body = honest(codec, here, step) if sequence % 3 else bytes(codec.encode(Query(step)))
            await call.write(fuzz.message_frame(body, sequence, acknowledged))
            if sequence % 50 == 0:
                await here.until(lambda sequence=sequence: peer.conversation.received >= sequence)
                acknowledged = min(peer.stream._next - 1, peer.conversation.sent)
                assert len(node.role.state.queue) <= 4
        await here.until(lambda: peer.conversation.received == 3001)
        await here.goes_on()
        assert peer.stream is not None  # all of these frames were allowed
        assert len(peer.conversation.outbox) <= node.limits.max_queue
        assert len(node.jobs.pending) <= 2
        assert fuzz.memory_mb() - before < 16
        call.cancel()
        await asyncio.gather(reader, return_exceptions=True)

    live(tmp_path, act)


def test_a_second_stream_of_the_same_process_takes_the_place_of_the_first(tmp_path: Path) -> None:
    async def act(here: Any, mallory: Any) -> None:
        calls = [await mallory.join() for _ in range(20)]
        for call in calls[:-1]:
            await fuzz.answer_of(call)
            assert call.done()
        assert mallory.peer.stream is not None
        calls[-1].cancel()
        await here.until(lambda: mallory.peer.stream is None)
        tasks = [task for task in asyncio.all_tasks() if not task.done()]
        assert len(tasks) < 40

    live(tmp_path, act)


class Deaf:
    """A role that accepts no message from any peer."""

    name = "server"

    def handle(self, event: Event, now: int) -> list[Effect]:
        if isinstance(event, Received):
            raise RemoteProtocolError(event.sender, "is not expected to say anything")
        return []

    def compute(self, job: Payload) -> Payload:
        return job

    def save(self) -> dict[str, int]:
        return {}

    def load(self, state: Any) -> None:
        pass

    def validate(self) -> None:
        pass

    def summary(self) -> dict[str, Any]:
        return {}


def test_refused_messages_do_not_fill_the_disk(tmp_path: Path) -> None:
    """Messages are logged before they are refused; the node starts a new log when the log is long."""

    async def run() -> int:
        limits = Limits(max_log_mb=0.1, checkpoint_s=3600.0)
        node = Node(Deaf(), fuzz.MESSAGES, tmp_path, ["mallory"], limits, Log("server", stream=io.StringIO()))
        node.open()
        peer = node.peers["mallory"]
        for _ in range(2000):
            with pytest.raises(RemoteProtocolError, match="not expected"):
                node.received(peer, 1, memoryview(GOOD[0]))
        size = sum(path.stat().st_size for path in tmp_path.iterdir())
        assert node.error is None
        node.close()
        return size

    assert 2000 * len(GOOD[0]) > 4 * 2**20
    assert asyncio.run(run()) < 2**20


def test_random_is_the_same_everywhere() -> None:
    """A failure of the long run can be reproduced from its seed."""
    frames = [fuzz.mutated(Random(7), GOOD) for _ in range(2)]
    assert frames[0] == frames[1]
