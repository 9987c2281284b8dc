"""Random and mutated frames against the codec and against a live server: no crash, no growth in memory.

    python benchmarks/fuzz.py [--frames 100000] [--live 100000] [--seed 0] [--workers 1]

The codec may answer with a message or a CodecError and nothing else. The live server is the real one on loopback,
with an honest party in training and a hostile one that holds a valid certificate: every wrong frame costs
the hostile party its connection, while the honest one continues. Exits with 1 if anything else happens. (Uploads
that are right in form and absurd in value are left out: they poison any training that admits such a party.)
"""

import argparse
import asyncio
import contextlib
import ctypes
import gc
import io
import json
import logging
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import colonnade.drivers.processes  # noqa: F401 - it sets an option of gRPC, which gRPC reads at its import

# isort: split
import grpc
import msgspec
import numpy as np

from colonnade.algorithms.evaluation import EVALUATION_PAYLOADS
from colonnade.algorithms.vafl.messages import VAFL_PAYLOADS, Embeddings, FreshRequest, Gradient, Query
from colonnade.config.schema import from_dict, read_toml
from colonnade.deployment.party_host import PartyHost
from colonnade.deployment.party_training import PartyTraining, training_party
from colonnade.deployment.server_host import ServerHost
from colonnade.deployment.server_training import ServerTraining, training_server
from colonnade.deployment.up import prepare_up
from colonnade.drivers.processes import service
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.wire import (
    ENVELOPE_BYTES,
    Hello,
    Kind,
    Position,
    Refusal,
    control,
    open_envelope,
    read_control,
    seal_envelope,
)
from colonnade.protocol.codec import DTYPES, VERSION, Codec
from colonnade.protocol.errors import CodecError
from colonnade.protocol.messages import EvaluationReply, EvaluationRequest, Message
from colonnade.testing.grpc_client import open_channel

MESSAGES = tuple(kind for kind in (*VAFL_PAYLOADS, *EVALUATION_PAYLOADS) if issubclass(kind, Message))
MAX_GROWTH_MB = 48.0
TRIES = 5
ANSWER_S = 30.0


def real_messages(generator: np.random.Generator, rows: int = 200, width: int = 32) -> list[Message]:
    """One of each kind, as honest roles send them."""
    batch = generator.choice(rows, 16, replace=False).astype(np.int32)
    values = generator.normal(size=(16, width)).astype(np.float32)
    return [
        Embeddings(0, 16, batch, values),
        Embeddings(0, 0, batch[:3], values[:3], True, 7),
        Query(0),
        Gradient(1, 5, values),
        FreshRequest(3, batch),
        EvaluationRequest(1, 0, 100),
        EvaluationReply(1, 0, 4, values),
    ]


def by_hand(header: bytes, body: bytes = b"") -> bytes:
    """A frame around an arbitrary header."""
    return b"CLN" + bytes([VERSION]) + len(header).to_bytes(4, "little") + header + bytes(-len(header) % 8) + body


EXTENTS: tuple[Any, ...] = (
    0,
    1,
    -1,
    16,
    2**31,
    2**40,
    2**63 - 1,
    2**63,
    2**64 - 1,
    1.5,
    True,
    None,
    "4",
    [1],
    {},
    b"x",
)
BOMBS = (
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xdc\xff\xff",
    b"\x91",
    b"\x81\x01",
    b"\xc6\xff\xff\xff\xff",
)


def strange_header(random: Random) -> bytes:
    """The frame of an array or a bomb that no honest codec writes."""
    if random.random() < 0.3:
        inside = random.choice(BOMBS) * random.choice((1, 2, 500, 5000))
        return by_hand(b"\x82\xa4type\xaaEmbeddings\xa4rows" + inside)
    dtype = random.choice((*DTYPES, "|O", ">f4", "<c8", "<U4", "<M8[s]", "", 3, None))
    shape = [random.choice(EXTENTS) for _ in range(random.randrange(7))]
    fields = {"type": "EvaluationReply", "number": 1, "start": 0, "step": 0, "values": [dtype, shape]}
    if random.random() < 0.2:
        fields[random.choice(["number", "start", "step"])] = random.choice(EXTENTS)
    with contextlib.suppress(OverflowError):
        return by_hand(msgspec.msgpack.encode(fields), random.randbytes(8 * random.randrange(9)))
    return by_hand(b"\xc1")


def mutated(random: Random, frames: list[bytes]) -> bytes:
    """A mutated frame; some were never valid."""
    frame = bytearray(random.choice(frames))
    place = random.randrange(len(frame))
    match random.randrange(9):
        case 0:
            return random.randbytes(random.randrange(200))
        case 1:
            return bytes(frame[:place])
        case 2:
            return bytes(frame) + random.randbytes(random.randrange(1, 64))
        case 3:
            other = random.choice(frames)
            return bytes(frame[:place]) + other[random.randrange(len(other)) :]
        case 4:
            frame[4:8] = random.choice((random.randrange(2**32), len(frame), 0, 2**32 - 1)).to_bytes(4, "little")
        case 5:
            return strange_header(random)
        case 6:  # in the header, where it hurts most
            for _ in range(random.randrange(1, 5)):
                frame[random.randrange(8, min(len(frame), 120))] = random.randrange(256)
        case 7:
            frame[place:place] = random.randbytes(random.randrange(1, 16))
        case _:
            for _ in range(random.randrange(1, 9)):
                frame[random.randrange(len(frame))] ^= 1 << random.randrange(8)
    return bytes(frame)


@dataclass
class Tally:
    """The counts of one test."""

    frames: int = 0
    connections: int = 0
    refused: int = 0
    seconds: float = 0.0
    before_mb: float = 0.0
    after_mb: float = 0.0
    trouble: list[str] = field(default_factory=list)

    def line(self, what: str) -> str:
        """One line of text."""
        memory = f"{self.before_mb:.1f} → {self.after_mb:.1f} MB"
        where = f"{self.connections} connections, " if self.connections else ""
        rate = self.frames / max(self.seconds, 1e-9)
        return f"{what:6} {self.frames} frames, {where}{self.refused} refused, {rate:.0f}/s, memory {memory}"


def memory_mb() -> float:
    """Resident memory, after everything that can be freed is freed."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # memory that the allocator keeps is no growth
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def fuzz_codec(frames: int, seed: int) -> Tally:
    """Decode this many frames; any exception other than CodecError escapes."""
    codec, random, tally = Codec(MESSAGES, 2**20, finite=True), Random(seed), Tally()
    good = [bytes(codec.encode(message)) for message in real_messages(np.random.default_rng(seed))]
    begin = time.perf_counter()
    for number in range(frames):
        if number == frames // 10:
            tally.before_mb = memory_mb()
        frame = mutated(random, good)
        tally.frames += 1
        try:
            codec.decode(frame, "fuzz")
        except CodecError:
            tally.refused += 1
    tally.seconds, tally.after_mb = time.perf_counter() - begin, memory_mb()
    return tally


# The live server


class Arena:
    """The real server in this process, an honest party in training, and room for hostile ones."""

    def __init__(
        self, folder: Path, hostile: int = 1, protocol: dict[str, Any] | None = None, **network: Any
    ) -> None:  # fmt: skip
        limits = {
            "heartbeat_s": 0.5,
            "lost_after_s": 20.0,
            "max_message_mb": 1.0,
            "max_refusals": 10**9,
            "max_joins": 10**9,
        }
        tables = {
            "data": {"parties": 1 + hostile},
            "train": {"seconds": 3600.0, "learning_rate": 1e-4, "eval_every": 200, "checkpoint_every": 1000},
            "protocol": protocol or {"name": "vafl", "table": "zeros", "pause_s": 0.005},
            "network": limits | network,
        }
        self.up = prepare_up(from_dict(tables), folder)
        self.honest, *self.hostile = self.up.parties
        self.complaints: list[str] = []  # of the event loop and of gRPC
        self._log = folder / "server.jsonl"  # not in memory, which is measured
        self.server: ServerHost[ServerTraining]
        self.party: PartyHost[PartyTraining]

    async def open(self) -> None:
        """Start the server and the honest party, and wait until it trains."""
        await self.start()
        await self.goes_on()

    async def start(self) -> None:
        """Start the server and the honest party."""
        asyncio.get_running_loop().set_exception_handler(self._complain)
        self._handler = _Listener(self.complaints)
        logging.getLogger("grpc").addHandler(self._handler)
        self._written = self._log.open("w", encoding="utf-8")
        log = Log("server", as_json=True, stream=self._written)
        folder = self.up.nodes / "server"
        self.server = training_server(from_dict(read_toml(folder / "config.toml")), folder / "run", log)
        self.serving = asyncio.ensure_future(self.server.run())
        await self.until((folder / "run" / "address").exists)
        self.address = (folder / "run" / "address").read_text()
        self.party = self.process_of(self.honest)
        self.training = asyncio.ensure_future(self.party.run())

    async def close(self) -> None:
        """Stop both; raise what failed in them."""
        self.party.node.ended.set()
        await self.training
        self.server.node.ended.set()
        await self.serving
        self._written.close()
        logging.getLogger("grpc").removeHandler(self._handler)

    def process_of(self, name: str) -> PartyHost[PartyTraining]:
        """The process of a party, ready to run."""
        self.up.write_config(name, self.address)
        folder = self.up.nodes / name
        log = Log(name, stream=io.StringIO())
        return training_party(from_dict(read_toml(folder / "config.toml")), name, folder / "run", log)

    async def until(self, holds: Callable[[], object], timeout_s: float = ANSWER_S) -> None:
        """Wait until a condition holds; raises TimeoutError after `timeout_s`."""
        end = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > end:
                raise TimeoutError("the expected condition did not occur")
            for task in (self.serving, getattr(self, "training", self.serving)):
                if task.done():
                    raise RuntimeError(f"the server or the honest party has ended: {task.result()}")
            await asyncio.sleep(0.005)

    async def goes_on(self) -> None:
        """The honest party exchanges more messages, and the server's updates grow."""
        peer, role = self.server.node.peers[self.honest], self.server.application.role
        messages, updates = peer.messages_in, role.progress.k
        await self.until(lambda: peer.messages_in > messages + 2)
        await self.until(lambda: role.progress.k > updates + 2)

    def log(self) -> list[dict[str, Any]]:
        """The server's log so far."""
        return [json.loads(line) for line in self._log.read_text(encoding="utf-8").splitlines()]

    def _complain(self, _loop: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, RuntimeError) and str(error) == "Event loop is closed":
            return  # from gRPC, which has one queue for all loops: a late event of an earlier loop
        self.complaints.append(f"{context.get('message')}: {error!r}")


class _Listener(logging.Handler):
    def __init__(self, heard: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if not text.startswith("ExecuteBatchError raised in core"):  # a call was cut while its end was under way
            self._heard.append(text)


@contextlib.asynccontextmanager
async def arena(folder: Path, hostile: int = 1, **network: Any) -> AsyncIterator[Arena]:
    """An arena, opened and closed."""
    found = Arena(folder, hostile, **network)
    await found.open()
    try:
        yield found
    finally:
        await found.close()


class Mallory:
    """A hostile party with a valid certificate."""

    def __init__(self, arena: Arena, name: str) -> None:
        self._process = arena.process_of(name)
        self._address, self.peer, self.name = arena.address, arena.server.node.peers[name], name
        self.channel = self.new_channel()
        self.instance = secrets.randbelow(2**62)  # one process: it may replace its own stream

    def new_channel(self, *options: tuple[str, int]) -> Any:
        """A separate connection, with other options than honest parties use."""
        who, limits = self._process.application.side.identity, self._process.node.limits
        return open_channel(who, self._address, limits, *options)

    def hello(self, position: Position | None = None) -> Hello:
        """The hello of an honest party."""
        return self._process.application.hello(self.instance, position or Position(0, 0, 0, 0))

    def call(self, channel: Any = None) -> Any:
        """A stream on which nothing has been sent."""
        return (channel or self.channel).stream_stream(f"/{service.SERVICE}/{service.JOIN}")()

    async def join(self) -> Any:
        """A stream after a welcome; the conversation restarts."""
        for _ in range(TRIES):
            call = self.call()
            try:
                await call.write(control(Kind.HELLO, self.hello()))
                first = open_envelope(await asyncio.wait_for(call.read(), ANSWER_S), "server")
                break
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise  # the server cuts a connection on which an ended call was not read: connect again
        else:
            raise RuntimeError(f"not connected after {TRIES} tries")
        if first.kind != Kind.WELCOME:
            raise RuntimeError(f"not welcome: {bytes(first.body)!r}")
        return call

    async def close(self) -> None:
        await self.channel.close()


async def answer_of(call: Any) -> str:
    """The cause of a refusal; "" if the stream ended without one."""
    cause = ""
    try:
        while (data := await asyncio.wait_for(call.read(), ANSWER_S)) is not grpc.aio.EOF:
            envelope = open_envelope(data, "server")
            if envelope.kind == Kind.REFUSAL:
                cause = read_control(envelope, Kind.REFUSAL, Refusal, "server").cause
    except grpc.aio.AioRpcError as error:
        cause = cause or f"{error.code().name}: {error.details()}"
    return cause


async def offend(mallory: Mallory, *frames: bytes) -> str:
    """Join, send these frames, and return the server's answer to the last."""
    call = await mallory.join()
    try:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # refused before the last one
            for frame in frames:
                await call.write(frame)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.done_writing()
        return await answer_of(call)
    finally:
        call.cancel()


def message_frame(body: bytes, sequence: int = 1, acknowledged: int = 0) -> bytes:
    """A message frame in its envelope."""
    return seal_envelope(Kind.MESSAGE, sequence, acknowledged, body)


def hostile_frame(random: Random, good: list[bytes]) -> bytes:
    """A whole frame of a stream: bad envelopes, bad contents, bad numbers."""
    body = mutated(random, good)
    match random.randrange(8):
        case 0:
            return body
        case 1:
            return bytes([random.randrange(256)]) + random.randbytes(ENVELOPE_BYTES - 1) + body
        case 2:
            return message_frame(random.choice(good), random.choice((0, 2, 3, 2**40, 2**63, 2**64 - 1)))
        case 3:
            return message_frame(random.choice(good), 1, random.choice((1, 100, 2**63, 2**64 - 1)))
        case 4:
            return seal_envelope(random.choice(list(Kind)), random.randrange(3), 0, body)
        case _:
            return message_frame(body)


def poisons(codec: Codec, frame: bytes) -> bool:
    """Right in form, finite, and absurd: it ends a training by divergence, which no check of frames can prevent."""
    try:
        found = codec.decode(frame[ENVELOPE_BYTES:])
    except CodecError:
        return False
    return isinstance(found, Embeddings) and float(np.abs(found.values).max(initial=0.0)) > 100.0


def prelude(random: Random, good: list[bytes]) -> Iterator[bytes]:
    """Possible first messages of an honest party: an upload, repeats of it, heartbeats."""
    for _ in range(random.randrange(4)):
        yield seal_envelope(Kind.ACK, 0, 0)
    if random.random() < 0.3:
        for _ in range(random.randrange(1, 5)):
            yield message_frame(good[0], 1)


@contextlib.contextmanager
def no_delays() -> Iterator[None]:
    """Refuse without delay: the waiting is not measured."""
    before = service.REFUSAL_DELAYS_S
    service.REFUSAL_DELAYS_S = (0.0,) * 6
    try:
        yield
    finally:
        service.REFUSAL_DELAYS_S = before


async def fuzz_server(frames: int, seed: int, folder: Path) -> Tally:
    """Send this many frames, each judged by the live server."""
    random, tally = Random(seed), Tally()
    codec = Codec(MESSAGES, finite=True)
    good = [bytes(codec.encode(message)) for message in real_messages(np.random.default_rng(seed))]
    with no_delays():
        async with arena(folder) as here:
            mallory, begin = Mallory(here, here.hostile[0]), time.perf_counter()
            while tally.frames < frames:
                if not tally.before_mb and tally.frames >= frames // 5:
                    tally.before_mb = memory_mb()
                sent = [*prelude(random, good), hostile_frame(random, good)]
                if poisons(codec, sent[-1]):
                    continue
                tally.frames += len(sent)
                tally.connections += 1
                tally.refused += bool(await offend(mallory, *sent))
                if random.random() < 0.001:
                    await here.goes_on()
            tally.seconds, tally.after_mb = time.perf_counter() - begin, memory_mb()
            await mallory.close()
            await here.goes_on()
            here.server.node.role.validate()
        tally.trouble = here.complaints
    return tally


def fuzz(what: str, frames: int, seed: int) -> Tally:
    """Run one of the two tests; in a worker."""
    if what == "codec":
        return fuzz_codec(frames, seed)
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(fuzz_server(frames, seed, Path(folder) / "run"))


def main() -> int:
    """Run both tests and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=100_000, help="frames against the codec")
    parser.add_argument(
        "--live", type=int, default=None, help="frames against the live server; default: as many as --frames"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes, each with a server of its own")
    chosen = parser.parse_args()
    live, good = chosen.frames if chosen.live is None else chosen.live, True
    with ProcessPoolExecutor(chosen.workers, get_context("spawn")) as pool:
        for what, frames in {"codec": chosen.frames, "server": live}.items():
            parts = [(what, -(-frames // chosen.workers), chosen.seed + worker) for worker in range(chosen.workers)]
            for tally in pool.map(fuzz, *zip(*parts, strict=True)):
                print(tally.line(what), flush=True)
                for line in tally.trouble[:10]:
                    print(f"  {line}")
                good = good and not tally.trouble and tally.after_mb - tally.before_mb < MAX_GROWTH_MB
    print("no crash, no growth" if good else "FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
