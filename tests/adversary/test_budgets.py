"""Limits of what the server keeps for a peer, over real sockets: waiting bytes, calls, joins and log lines."""

import asyncio
import io
import json
import os
import resource
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from colonnade.drivers.processes import descriptors, metrics, service
from colonnade.drivers.processes.certificates import Identity, throw_away
from colonnade.drivers.processes.conversation import Conversation
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.logs import Log, Once
from colonnade.drivers.processes.node import Node
from colonnade.drivers.processes.service import JOIN, SERVICE, Service
from colonnade.drivers.processes.wire import PROTOCOL, Hello, Kind, Position, control, open_envelope, seal_envelope
from colonnade.protocol.codec import Codec
from colonnade.protocol.events import Effect, Event, Received, Send
from colonnade.protocol.messages import Array, Message

WAIT_S = 60.0
LIMITS = Limits(max_message_mb=1.0, max_queue_mb=2.0, checkpoint_s=1e6, max_log_mb=1e3)


class Ball(Message, frozen=True):
    """Comes back as it is."""

    values: Array


class Echo:
    """A server's role that answers each message with the same."""

    name = "server"

    def handle(self, event: Event, now: int) -> list[Effect]:
        return [Send(event.sender, event.message)] if isinstance(event, Received) else []

    def compute(self, job: Any) -> Any:
        raise NotImplementedError

    def save(self) -> Any:
        return {}

    def load(self, saved: Any) -> None:
        pass

    def validate(self) -> None:
        pass

    def summary(self) -> dict[str, Any]:
        return {}


async def until(holds: Any) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    throw_away(["bank", "lab"], folder / "all")
    return folder / "all"


def identity(folder: Path, name: str) -> Identity:
    return Identity.load(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem")


@asynccontextmanager
async def serving(certificates: Path, folder: Path, limits: Limits) -> AsyncIterator[tuple[Node, Service, str]]:
    node = Node(Echo(), [Ball], folder / "state", ["bank", "lab"], limits, Log("server", stream=io.StringIO()))
    node.open()
    door = Service(node, identity(certificates, "server"), {}, lambda name, hello: None, dict)
    address = await door.start("127.0.0.1:0")
    try:
        yield node, door, address
    finally:
        await door.hang_up()
        node.close()


def narrow_channel(own: Identity, address: str) -> Any:
    """A channel that takes little before its owner reads."""
    credentials = grpc.ssl_channel_credentials(own.authority, own.key, own.certificate)
    options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_535), ("grpc.enable_retries", 0)]
    name = ("grpc.ssl_target_name_override", "server")
    return grpc.aio.secure_channel(address, credentials, [name, *options])


async def join(channel: Any) -> Any:
    call = channel.stream_stream(f"/{SERVICE}/{JOIN}")()
    hello = Hello(PROTOCOL, "", {}, 0, "", 0, "float32", 1, Position(0, 0, 0, 0))
    await call.write(control(Kind.HELLO, hello))
    assert open_envelope(await call.read(), "server").kind == Kind.WELCOME
    return call


def test_a_party_that_never_reads_is_dropped_before_its_answers_fill_the_memory(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "FAREWELL_S", 0.1)
    body = bytes(Codec([Ball]).encode(Ball(np.zeros(100_000, np.float32))))  # 400 kB

    async def run() -> None:
        async with serving(certificates, tmp_path, LIMITS) as (node, door, address):
            channel = narrow_channel(identity(certificates, "bank"), address)
            call, bank, most = await join(channel), node.peers["bank"], 0
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                for sequence in range(1, 60):
                    await call.write(seal_envelope(Kind.MESSAGE, sequence, 0, body))
                    await until(lambda n=sequence: bank.conversation.received >= n or bank.stream is None)
                    most = max(most, bank.conversation.waiting_bytes)
                    if bank.stream is None:
                        break
            assert bank.stream is None
            assert len(body) < most <= LIMITS.max_queue_bytes
            assert node.refused["queue"] == 1
            node.checkpoint()
            assert (tmp_path / "state" / "checkpoint.safetensors").stat().st_size < 100_000
            await until(lambda: door._calls["bank"] == 0)  # the server does not wait until the party has read the rest
            (await join(channel)).cancel()  # the party may come again
            await channel.close()

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


def test_a_queue_counts_its_bytes_across_acknowledgements_and_restarts() -> None:
    queue = Conversation("bank", 100, 1000)
    for _ in range(3):
        queue.put(bytes(400))
    assert queue.overflows
    queue.heard(1)
    assert not queue.overflows
    again = Conversation("bank", 100, 1000)
    again.load(queue.save())
    assert again.waiting_bytes == queue.waiting_bytes == 800
    again.give_up()
    assert again.waiting_bytes == 0


def test_a_queue_between_parties_has_room_for_a_share_of_all_data_and_no_more() -> None:
    """A share of 5,000 bytes in ten messages, then a message of 100 bytes in each later event. None is acknowledged."""
    queue = Conversation("bank", 1000, 1000, bursts=True)
    for _ in range(10):
        queue.put(bytes(500), event=1)
        assert not queue.overflows
    again = Conversation("bank", 1000, 1000, bursts=True)
    again.load(queue.save())
    later = 0
    while not again.overflows:
        later += 1
        again.put(bytes(100), event=1 + later)
    assert again.waiting_bytes == 1000 + 2 * 5000 + 100
    plain = Conversation("bank", 1000, 1000, bursts=True)
    for event in range(100):
        plain.put(bytes(100), event)
        if plain.overflows:
            break
    assert plain.waiting_bytes == 1000 + 2 * 100 + 100, "without a burst, the limit is the usual one"


class Sharing(Echo):
    """A party's role that sends another party 16 messages of 100 kB for each message of the server."""

    name = "bank"

    def handle(self, event: Event, now: int) -> list[Effect]:
        if not isinstance(event, Received):
            return []
        return [Send("lab", Ball(np.zeros(25_000, np.float32)))] * 16


def test_a_party_that_never_acknowledges_another_party_is_given_up(tmp_path: Path) -> None:
    """Each burst is 1.6 MB; the limit is 2 MB and two bursts."""

    async def run() -> None:
        log = Log("bank", stream=io.StringIO())
        node = Node(Sharing(), [Ball], tmp_path / "state", ["server"], LIMITS, log, far=["lab"])
        node.open()
        body = memoryview(bytes(Codec([Ball]).encode(Ball(np.zeros(1, np.float32)))))
        queue, most = node.peers["lab"].conversation, 0
        for sequence in range(1, 5):
            node.received(node.peers["server"], sequence, body)
            most = max(most, queue.waiting_bytes)
            assert node.refused["queue"] == (sequence == 4)
        assert 4.8e6 < most < LIMITS.max_queue_bytes + 2 * 1.7e6
        node.close()

    asyncio.run(run())


def test_a_queue_has_room_for_two_of_the_largest_messages() -> None:
    assert Limits(max_message_mb=500.0).max_queue_bytes == 1000 * 2**20
    assert Limits().max_queue_bytes == 128 * 2**20


def test_a_checkpoint_waits_until_there_are_descriptors(certificates: Path, tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(certificates, tmp_path, LIMITS) as (node, _, _):
            before, (soft, hard) = node._journals, resource.getrlimit(resource.RLIMIT_NOFILE)
            taken: list[int] = []
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
                with suppress(OSError):
                    while True:
                        taken.append(os.open(os.devnull, os.O_RDONLY))
                node._save_by = 0.0  # a checkpoint is due
                node.lost(node.peers["bank"])  # any event
            finally:
                for descriptor in taken:
                    os.close(descriptor)
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert node.error is None
            assert node._journals == before
            node._save_by = 0.0
            node.lost(node.peers["bank"])
            assert node._journals == before + 1

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


def test_connections_leave_descriptors_for_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    monkeypatch.setattr(descriptors, "open_descriptors", lambda: list(range(30)))
    assert descriptors.connections_allowed(10_000) == 1024 - 30 - descriptors.RESERVE
    assert descriptors.connections_allowed(500) == 500


def test_the_metrics_have_every_refusal() -> None:
    status: dict = {} | {"parties": [], "refused_by_limit": {"calls": 3, "joins": 1}}
    samples = [sample for family in metrics._Collector(lambda: status).collect() for sample in family.samples]
    found = {sample.labels["limit"]: sample.value for sample in samples if sample.name == "colonnade_refused_total"}
    assert found == {"calls": 3, "joins": 1}


def test_changes_of_one_peer_fill_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, written = [1000.0], io.StringIO()
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    changes = Once(Log("server", as_json=True, stream=written))
    for number in range(800):
        changes.info("joined", peer="bank", known=number)
    changes.info("joined", peer="lab")
    clock[0] += 61.0
    changes.info("joined", peer="bank")
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert len([line for line in lines if line["event"] == "joined"]) == Once.MAX_CHANGES + 2
    assert lines[Once.MAX_CHANGES]["event"].startswith("many changes of one peer")
    assert lines[-1]["repeated"] == 800 - Once.MAX_CHANGES
