"""Callers that are not members, and a member that calls too much: none of them stops the server's process.

The server may open 200 descriptors, and it writes a checkpoint every half second, which needs some of them. An honest
party trains with it, on a connection of its own.
"""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest

from colonnade.config.schema import from_dict, read_toml
from colonnade.deployment.party_host import PartyHost
from colonnade.deployment.party_training import PartyTraining, training_party
from colonnade.deployment.up import prepare_up
from colonnade.drivers.processes import certificates
from colonnade.drivers.processes.certificates import Identity
from colonnade.drivers.processes.dial import ask_status
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.service import JOIN, SERVICE, STATUS
from colonnade.drivers.processes.wire import Kind, Position, control, open_envelope
from colonnade.protocol.errors import ConfigError
from colonnade.testing.grpc_client import open_channel

from ..starting import Popen

T = TypeVar("T")
DESCRIPTORS = 200
WAIT_S = 60.0
HONEST, CALLER, SILENT = "party-1", "party-2", "party-3"  # all are members; only the first one trains
LIMITS = Limits()
NETWORK = {"heartbeat_s": 0.5, "lost_after_s": 30.0, "checkpoint_s": 0.5}


class Federation:
    """A server's process with few descriptors, and a party in training."""

    def __init__(self, folder: Path, network: dict[str, float]) -> None:
        tables = {
            "data": {"parties": 3},
            "train": {"seconds": 3600.0, "eval_every": 500, "batch_size": 32},
            "protocol": {"name": "vafl", "table": "zeros", "pause_s": 0.01},
            "network": NETWORK | network,
        }
        self.up = prepare_up(from_dict(tables), folder / "run")
        self.certificates = self.up.nodes / "certificates"
        shutil.rmtree(self.certificates)  # those of `up` have no authority that could sign a further one
        certificates.init(self.certificates)
        for name in self.up.parties:
            certificates.sign(certificates.request(name, self.certificates), self.certificates)
        self._loop = asyncio.new_event_loop()  # gRPC wants one loop for all calls of a process
        self._thread = threading.Thread(target=self._loop.run_forever)

    def start(self) -> None:
        """Wait until the federation trains."""
        folder = self.up.nodes / "server"
        own = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS // 2}, {DESCRIPTORS}))"
        command = [sys.executable, "-c", f"{own}; from colonnade.cli.main import main; main()", "serve"]
        with (folder / "log.jsonl").open("ab") as log:
            self.server = Popen(
                [*command, str(folder / "config.toml"), "--out", str(folder / "run"), "--log-json"],
                stdout=log,
                stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        self._thread.start()
        self.until((folder / "run" / "address").exists)
        self.address = (folder / "run" / "address").read_text()
        self._honest = self.party(HONEST, self.up.nodes / HONEST / "run")
        self._training = asyncio.run_coroutine_threadsafe(self._honest.run(), self._loop)
        self.goes_on()

    def party(self, name: str, out: Path) -> PartyHost[PartyTraining]:
        self.up.write_config(name, self.address)
        log = Log(name, level="warning")
        return training_party(from_dict(read_toml(self.up.nodes / name / "config.toml")), name, out, log)

    def act(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    def until(self, holds: Callable[[], object]) -> None:
        end = time.monotonic() + WAIT_S
        while not holds():
            self.lives()
            assert time.monotonic() < end
            time.sleep(0.02)

    def lives(self) -> None:
        assert self.server.poll() is None, self.log()[-3:]

    def goes_on(self) -> None:
        """The server's updates grow, and it writes checkpoints."""
        before = self.status()["updates"]
        written = len(self.lines("checkpoint"))
        self.until(lambda: self.status()["updates"] > before + 3)
        self.until(lambda: len(self.lines("checkpoint")) > written)

    def status(self) -> dict[str, Any]:
        """Asked for by the operator, on a new connection. It may take a few tries while the port is crowded."""
        end = time.monotonic() + WAIT_S
        while True:
            try:
                answer = self.act(ask_status(self.identity("server"), self.address, LIMITS, 5.0))
                return dict(json.loads(answer))
            except ConfigError:
                self.lives()
                assert time.monotonic() < end

    def log(self) -> list[dict[str, Any]]:
        text = (self.up.nodes / "server" / "log.jsonl").read_text(encoding="utf-8")
        return [
            json.loads(line) for line in text.splitlines(keepends=True) if line.startswith("{") and line[-1] == "\n"
        ]

    def lines(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.log() if line["event"] == event]

    def identity(self, name: str) -> Identity:
        folder = self.certificates
        return Identity.load(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem")

    def stop(self) -> None:
        if "_training" in vars(self):
            self._loop.call_soon_threadsafe(self._honest.node.stop)
            self._training.result(WAIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.server.send_signal(signal.SIGTERM)
        try:
            self.server.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.wait()


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    found = Federation(tmp_path_factory.mktemp("federation"), {"handshake_s": 1.0, "max_joins": 30})
    try:
        found.start()
        yield found
    finally:
        found.stop()
    assert found.server.returncode == 0


@contextlib.asynccontextmanager
async def silent_calls(identity: Identity, address: str, count: int) -> AsyncIterator[list[Any]]:
    """Status calls that send no request, on a few connections."""
    channels = [open_channel(identity, address, LIMITS) for _ in range(4)]
    calls = [channel.stream_stream(f"/{SERVICE}/{STATUS}")() for channel in channels for _ in range(count // 4)]
    reading = [asyncio.ensure_future(call.read()) for call in calls]
    try:
        yield reading
    finally:
        for call in calls:
            call.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        for channel in channels:
            await channel.close()


def test_idle_connections_use_no_descriptor_that_the_server_needs(federation: Federation) -> None:
    host, _, port = federation.address.rpartition(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(2 * DESCRIPTORS)]
    try:
        federation.goes_on()  # each status is asked for on a new connection
        federation.goes_on()
        refused = federation.status()["refused_by_limit"]
        assert refused["connections"] + refused.get("handshake", 0) > 0
    finally:
        for sock in idle:
            sock.close()
    assert len([line for line in federation.lines("refused") if line.get("host") == host]) <= 2  # one of each cause


@pytest.mark.parametrize("member", [True, False])
def test_calls_that_send_nothing_lock_no_other_caller_out(federation: Federation, tmp_path: Path, member: bool) -> None:
    silent = federation.identity(SILENT) if member else stranger(federation, tmp_path)
    limit, name = ("calls", SILENT) if member else ("strangers", "stranger")
    assert limit not in federation.status()["refused_by_limit"]

    async def act() -> None:
        async with silent_calls(silent, federation.address, 120) as reading:
            await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            for _ in range(3):
                await ask_status(federation.identity(CALLER), federation.address, LIMITS, WAIT_S)
            _, waiting = await asyncio.wait(reading, timeout=WAIT_S)
            assert not waiting  # the server ends a call that sends nothing

    federation.act(act())
    federation.goes_on()
    assert federation.status()["refused_by_limit"][limit] > 20
    assert len([line for line in federation.lines("refused") if line.get("peer") == name]) <= 2


def stranger(federation: Federation, folder: Path) -> Identity:
    """A certificate of another name by the federation's authority, on no list."""
    home = federation.certificates
    pem = certificates.sign(certificates.request("stranger", folder), home)
    return Identity(
        "stranger", (folder / "stranger.key").read_bytes(), pem.read_bytes(), (home / "ca.pem").read_bytes()
    )


def test_joining_and_hanging_up_fills_no_log(federation: Federation, tmp_path: Path) -> None:
    party = federation.party(CALLER, tmp_path / "run")
    instance = secrets.randbelow(2**62)

    async def join(channel: Any) -> Kind | None:
        call = channel.stream_stream(f"/{SERVICE}/{JOIN}")()
        try:
            await call.write(control(Kind.HELLO, party.application.hello(instance, Position(0, 0, 0, 0))))
            data = await call.read()
            return None if data is grpc.aio.EOF else Kind(open_envelope(data, "server").kind)
        finally:
            call.cancel()

    async def act() -> list[Kind | None]:
        answers: list[Kind | None] = []
        async with open_channel(federation.identity(CALLER), federation.address, LIMITS) as channel:
            while answers.count(Kind.REFUSAL) < 2 and len(answers) < 200:
                answers.append(await join(channel))
        return answers

    answers = federation.act(act())
    assert answers.count(Kind.REFUSAL) == 2
    assert 30 <= answers.count(Kind.WELCOME) < 60
    federation.goes_on()
    assert federation.status()["refused_by_limit"]["joins"] == 2
    lines = [line for line in federation.log() if line.get("peer") == CALLER]
    assert len([line for line in lines if line["event"] == "joined"]) <= 20
    assert len([line for line in lines if line["event"] == "disconnected"]) <= 20
    assert len([line for line in lines if line["event"] == "refused"]) == 1
