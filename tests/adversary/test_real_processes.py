"""Eleven attacks that once worked, over real processes: `colonnade serve` and `colonnade join` as a member runs them.

The hostile member is a client in this test. It has a real certificate of the federation and speaks the wire. Each test
checks that the honest processes go on or end with a reason that names the member, that every summary is strict JSON,
and that the same commands work again.

    case                                                         test
     1  idle connections use up the descriptors                  test_outsiders.py, a server process
     2  silent calls use up the slots for calls                  test_outsiders.py, a server process
     3  a step far ahead, and wrong rows, in lock-step           test_a_liar_moves_no_honest_party
     4  a batch of a million rows                                test_a_million_rows_do_not_end_the_training
     5  a party that never reads its answers                     test_a_party_that_never_reads_costs_little_memory
     6  connected and silent                                     test_a_silent_party_ends_the_run_by_its_name
     7  HTTP: idle connections, and ids that grow                test_the_door_of_a_server_process
     8  predictions for any id                                   predict/test_hostile_predictions.py, party processes
     9  control characters and NaN                               test_a_terminal_and_a_summary_stay_clean
        joining 800 times a second                               test_outsiders.py, a server process
    10  one word of a party ends an AsySQN run                   test_one_partys_word_does_not_end_a_run_for_good
    11  a flipped bit in a checkpoint                            test_a_flipped_bit_is_named
"""

import asyncio
import io
import json
import math
import re
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tomli_w

import colonnade
from colonnade.algorithms import METHODS
from colonnade.algorithms.asysqn.messages import Diverged
from colonnade.algorithms.batches import Walk
from colonnade.algorithms.flex.messages import Ready
from colonnade.algorithms.leaving import Withdrawn
from colonnade.algorithms.vafl.messages import Embeddings, Skip
from colonnade.config.schema import from_dict, read_toml, to_dict
from colonnade.deployment.party_training import training_party
from colonnade.deployment.up import prepare_up
from colonnade.drivers.processes.certificates import Identity
from colonnade.drivers.processes.dial import ask_status
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.service import JOIN, SERVICE
from colonnade.drivers.processes.wire import (
    Bye,
    Kind,
    Position,
    Refusal,
    control,
    open_envelope,
    read_control,
    seal_envelope,
)
from colonnade.predict.asking import door_of
from colonnade.predict.tokens import Tokens
from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import ColonnadeError, ConfigError
from colonnade.protocol.messages import Message
from colonnade.testing.grpc_client import open_channel

from ..predict.test_hostile_predictions import GROWS, NAMES, config_of, make_files
from ..predict.test_hostile_predictions import Federation as Predicting
from ..starting import PATIENCE_S, Command, Commands

HONEST, LIAR = "party-1", "party-2"
ROWS, WIDTH, BATCH = 80, 4, 16
FAR = 2**40 - 1  # the last step that a role takes for one
GOODBYE = Bye("0" * 64, 0.5)
HOSTILE = "\x1b]0;owned\x07 \x9b2J \r\nserver: ended status=finished"


@pytest.fixture(scope="module")
def starter() -> Iterator[Commands]:
    found = Commands()
    yield found
    found.close()


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """gRPC wants one event loop for all calls of a process."""
    found = asyncio.new_event_loop()
    yield found
    found.close()


class Federation:
    """Folders of a server and its parties, and the processes that run in them."""

    def __init__(
        self, starter: Commands, loop: asyncio.AbstractEventLoop, folder: Path, protocol: dict[str, Any], **tables: Any
    ) -> None:
        self._starter, self._loop = starter, loop
        parties = tables.pop("parties", 2)
        draw = np.random.default_rng(0)
        x = draw.standard_normal((ROWS + 20, 2 * parties)).astype(np.float32)
        made = colonnade.from_arrays(x[:ROWS], x[:ROWS].sum(1) > 0, x_test=x[ROWS:], y_test=x[ROWS:].sum(1) > 0)
        data = colonnade.split(made, parties=parties, validation_fraction=0.0)
        network = {"heartbeat_s": 0.2, "lost_after_s": 5.0} | tables.pop("network", {})
        train = {"updates": 10**6, "batch_size": BATCH, "learning_rate": 0.01, "eval_every": 100}
        model = {"party": "linear", "embedding": WIDTH, "server": "linear"}
        config = {
            "protocol": protocol,
            "data": {"validation_fraction": 0.0},
            "model": model | tables.pop("model", {}),
            "train": train | tables.pop("train", {}),
            "network": network,
        }
        self.up = prepare_up(from_dict(config | tables), folder / "run", data)
        self.codec = Codec([kind for kind in METHODS[protocol["name"]].payloads if issubclass(kind, Message)])
        self.processes: dict[str, Command] = {}

    def serve(self, *words: str) -> Command:
        """Start the server, and wait until it listens."""
        folder = self.up.nodes / "server"
        (folder / "run" / "address").unlink(missing_ok=True)
        words = ("serve", str(folder / "config.toml"), "--out", str(folder / "run"), *words)
        self.processes["server"] = found = self._starter.start(folder / "log.jsonl", *words)
        self.until(lambda: self.up.address or found.code is not None)
        return found

    def join(self, name: str, *words: str) -> Command:
        self.up.write_config(name, self.up.address)
        folder = self.up.nodes / name
        words = ("join", str(folder / "config.toml"), "--party", name, "--out", str(folder / "run"), *words)
        self.processes[name] = found = self._starter.start(folder / "log.jsonl", *words)
        return found

    def start(self, *words: str) -> None:
        """Start the server, with these words, and the honest party."""
        self.serve("--log-json", *words)
        self.join(HONEST, "--log-json")
        self.until(lambda: self.party(HONEST)["state"] == "connected")

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()

    def act(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(work, PATIENCE_S))

    def until(self, holds: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < end, self.log()[-3:]
            time.sleep(0.02)

    def status(self) -> dict[str, Any]:
        while True:
            with suppress(ConfigError):  # it is busy
                return dict(json.loads(self.act(ask_status(self.identity("server"), self.up.address, Limits(), 10.0))))
            assert self.processes["server"].code is None, self.log()[-3:]

    def party(self, name: str) -> dict[str, Any]:
        return dict(next(party for party in self.status()["parties"] if party["name"] == name))

    def goes_on(self) -> None:
        """The updates of the server grow, and no honest process has ended."""
        before = self.status()["updates"]
        self.until(lambda: self.status()["updates"] > before + 3)
        assert all(process.code is None for process in self.processes.values())

    def log(self, name: str = "server") -> list[str]:
        return (self.up.nodes / name / "log.jsonl").read_text(encoding="utf-8").splitlines()

    def summary(self, name: str = "server") -> dict[str, Any]:
        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is not JSON")

        text = (self.up.nodes / name / "run" / "summary.json").read_text(encoding="utf-8")
        return dict(json.loads(text, parse_constant=refuse))

    def identity(self, name: str) -> Identity:
        folder = self.up.nodes / "certificates"
        return Identity.load(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem")


@pytest.fixture
def federation(starter: Commands, loop: asyncio.AbstractEventLoop, tmp_path: Path) -> Iterator[Any]:
    made: list[Federation] = []

    def make(protocol: dict[str, Any], **tables: Any) -> Federation:
        made.append(Federation(starter, loop, tmp_path / str(len(made)), protocol, **tables))
        return made[-1]

    yield make
    for found in made:
        found.end()


class Liar:
    """A member with a real certificate that says what it likes."""

    def __init__(self, here: Federation, name: str = LIAR) -> None:
        self.here, self.name, self._instance = here, name, secrets.randbelow(2**62)
        here.up.write_config(name, here.up.address)
        config = from_dict(read_toml(here.up.nodes / name / "config.toml"))
        self._party = training_party(config, name, here.up.out / f"liar-{name}", Log(name, stream=io.StringIO()))

    @asynccontextmanager
    async def channel(self, *options: tuple[str, int]) -> AsyncIterator[Any]:
        own = self._party.application.side.identity
        boundless = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
        async with open_channel(own, self.here.up.address, Limits(), *boundless, *options) as channel:
            yield channel

    async def join(self, channel: Any) -> Any:
        """A stream after the welcome."""
        call = channel.stream_stream(f"/{SERVICE}/{JOIN}")()
        await call.write(control(Kind.HELLO, self._party.application.hello(self._instance, Position(0, 0, 0, 0))))
        assert open_envelope(await call.read(), "server").kind == Kind.WELCOME
        return call

    def frame(self, message: Message, number: int = 1) -> bytes:
        return seal_envelope(Kind.MESSAGE, number, 0, bytes(self.here.codec.encode(message)))

    async def _say(self, messages: tuple[Message, ...], last_word: Bye | None) -> list[Any]:
        async with self.channel() as channel:
            call, found = await self.join(channel), []
            for number, message in enumerate(messages, 1):
                await call.write(self.frame(message, number))
            while (data := await call.read()) is not grpc.aio.EOF:
                found += self._read(data)
                over = open_envelope(data, "server").kind == Kind.END
                if not over and last_word is None and found:
                    break
                if over or last_word is not None:
                    word = control(Kind.BYE, last_word) if over else seal_envelope(Kind.ACK, 0, 0)  # or a heartbeat
                    with suppress(grpc.aio.AioRpcError):  # the server may have ended the call by now
                        await call.write(word)
            call.cancel()
        return found

    def _read(self, data: bytes) -> list[Any]:
        envelope = open_envelope(data, "server")
        if envelope.kind == Kind.REFUSAL:
            return [read_control(envelope, Kind.REFUSAL, Refusal, "server").cause]
        return [self.here.codec.decode(envelope.body, "server")] if envelope.kind == Kind.MESSAGE else []

    def says(self, *messages: Message) -> Any:
        """Join, say this, wait for an answer and hang up; returns the answer, as text if it is a refusal."""
        (answer,) = self.here.act(self._say(messages, None))
        return answer

    def stays(self, *messages: Message, last_word: Bye = GOODBYE) -> None:
        """Join, say this and nothing more, until the server ends the call, with or without a farewell."""
        with suppress(grpc.aio.AioRpcError):
            self.here.act(self._say(messages, last_word))


def upload(step: int, rows: Any, width: int = WIDTH) -> Embeddings:
    rows = np.array(rows, np.int32)
    return Embeddings(step, len(rows), rows, np.ones((len(rows), width), np.float32))


@pytest.mark.parametrize("name", ["sync", pytest.param("flex", marks=pytest.mark.slow)])
def test_a_liar_moves_no_honest_party(name: str, federation: Any) -> None:
    here = federation({"name": name}, train={"updates": 12, "eval_every": 6})
    here.start()
    liar = Liar(here)
    if name == "sync":
        lies: list[Message] = [upload(FAR, np.arange(BATCH)), upload(0, np.arange(BATCH))]
    else:
        lies = [Ready(FAR, np.ones((BATCH, WIDTH), np.float32)), Ready(0, np.ones((3, WIDTH), np.float32))]
    assert liar.says(lies[0]) == Skip(0), "only the liar hears of it"
    refused = liar.says(lies[1])
    assert "differ from the agreed walk" in refused or "shape" in refused
    assert here.party(LIAR)["refused"] == 1 and here.party(HONEST)["refused"] == 0
    here.processes[HONEST].kill()  # its state must not have moved
    here.join(HONEST, "--log-json")
    here.join(LIAR, "--log-json")  # now it is honest
    assert [here.processes[who].wait() for who in ("server", HONEST, LIAR)] == [0, 0, 0]
    assert here.summary()["status"] == "finished" and here.summary()["updates"] == 12
    assert here.summary(HONEST).get("skipped", 0) == 0


def test_a_million_rows_do_not_end_the_training(federation: Any) -> None:
    here = federation({"name": "vafl", "table": "zeros", "pause_s": 0.01})
    here.start()
    here.goes_on()
    assert "differ from the agreed walk" in Liar(here).says(upload(0, np.zeros(10**6)))
    here.goes_on()
    status = here.status()
    assert status["epochs"] == pytest.approx(status["updates"] * BATCH / (2 * ROWS)), "the rows were not counted"
    assert here.party(LIAR)["refused"] == 1
    assert here.processes[HONEST].stop() == here.processes["server"].stop() == 0
    here.start()
    here.goes_on()


def test_a_party_that_never_reads_costs_little_memory(federation: Any) -> None:
    """Answers of 128 kB wait for it, until there are 2 MB of them."""
    width = 2048
    network = {"max_message_mb": 1.0, "max_queue_mb": 2.0, "max_queue": 1024, "checkpoint_s": 0.5}
    protocol = {"name": "vafl", "table": "zeros", "pause_s": 0.01}
    here = federation(protocol, network=network, model={"embedding": width})
    here.start()
    here.goes_on()
    before, liar = here.processes["server"].memory_mb(), Liar(here)
    walk = Walk(ROWS, BATCH, here.up.config.train.seed, "batches", 1)

    async def never_read() -> int:
        narrow = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_535))
        async with liar.channel(*narrow) as channel:
            call, sent = await liar.join(channel), 0
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
                for step in range(400):
                    await call.write(liar.frame(upload(step, walk.batch(step), width), step + 1))
                    sent += 1
                    await asyncio.sleep(0.01)
            call.cancel()
        return sent

    assert 10 < here.act(never_read()) < 400
    here.goes_on()
    assert here.status()["refused_by_limit"]["queue"] >= 1
    assert here.processes["server"].memory_mb() - before < 60
    state = here.up.nodes / "server" / "run" / "state"
    assert sum(path.stat().st_size for path in state.glob("checkpoint*")) < 8 * 2**20
    assert here.processes["server"].stop() == 0


@pytest.mark.parametrize("name", ["sync", pytest.param("flex", marks=pytest.mark.slow)])
def test_a_silent_party_ends_the_run_by_its_name(name: str, federation: Any) -> None:
    """In lock-step the run needs it; `flex` goes on without it."""
    here = federation({"name": name}, train={"updates": 40, "eval_every": 20}, network={"give_up_s": 2.0})
    here.start()
    Liar(here).stays()
    if name == "flex":
        assert here.processes["server"].wait() == here.processes[HONEST].wait() == 0
        assert here.summary()["status"] == "finished"
        return
    assert here.processes["server"].wait() == here.processes[HONEST].wait() == 1
    assert here.summary()["status"] == here.summary(HONEST)["status"] == "stalled"
    assert re.fullmatch(rf"waited \d+ s for {LIAR}: an upload for update 1 .*", here.summary()["note"])
    here.start("--set", "network.give_up_s=600")  # the same folders again
    here.join(LIAR, "--log-json")
    assert [here.processes[who].wait() for who in ("server", HONEST, LIAR)] == [0, 0, 0]
    assert here.summary()["status"] == "finished" and here.summary()["updates"] == 40


def test_a_terminal_and_a_summary_stay_clean(federation: Any) -> None:
    protocol = {"name": "vafl", "table": "zeros", "pause_s": 0.01}
    here = federation(protocol, train={"updates": 150, "eval_every": 50})
    here.serve()  # for a terminal
    here.join(HONEST)
    Liar(here).stays(Withdrawn(HOSTILE), last_word=Bye(HOSTILE, math.nan))
    assert here.processes["server"].wait() == here.processes[HONEST].wait() == 0
    assert here.summary()["status"] == "finished" and LIAR in here.summary()["note"]
    for who in ("server", HONEST):
        text = "\n".join(here.log(who))
        assert all(line.isprintable() for line in text.split("\n")), text
        assert not any(line.startswith("server: ended") for line in text.split("\n"))
    assert "\\x1b]0;owned" in "\n".join(here.log())


def test_one_partys_word_does_not_end_a_run_for_good(federation: Any) -> None:
    train = {"updates": 60, "eval_every": 30, "learning_rate": 0.05}
    here = federation({"name": "asysqn-sgd"}, parties=3, train=train, network={"give_up_s": 5.0})
    here.serve("--log-json")
    for name in (HONEST, "party-3"):
        here.join(name, "--log-json")
    here.until(lambda: all(here.party(name)["state"] == "connected" for name in (HONEST, "party-3")))
    Liar(here).stays(Diverged("the end is near", True))
    names = ("server", HONEST, "party-3")
    codes = {name: here.processes[name].wait() for name in names}
    assert codes == dict.fromkeys(names, 1)
    assert here.summary()["status"] == "stalled" and LIAR in here.summary()["note"]
    here.serve("--log-json", "--set", "network.give_up_s=600")  # the same folders again
    for name in (HONEST, LIAR, "party-3"):
        here.join(name, "--log-json")
    assert [here.processes[name].wait() for name in ("server", HONEST, LIAR, "party-3")] == [0] * 4
    assert here.summary()["status"] == "finished" and here.summary()["updates"] >= 60


def test_a_flipped_bit_is_named(federation: Any) -> None:
    protocol = {"name": "vafl", "table": "zeros", "pause_s": 0.01, "on_lost": "continue"}
    here = federation(protocol, network={"checkpoint_s": 0.3})
    here.start()
    state = here.up.nodes / "server" / "run" / "state"
    here.until(lambda: len(list(state.glob("checkpoint*"))) > 1)
    here.goes_on()
    here.processes["server"].kill()
    path = state / "checkpoint.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    here.processes[HONEST].kill()
    here.start()
    here.goes_on()
    assert any("damaged" in line and path.name in line for line in here.log())
    assert [here.processes[who].stop() for who in (HONEST, "server")] == [0, 0]


def test_the_door_of_a_server_process(starter: Commands, tmp_path: Path) -> None:
    """Trained in this process; the server and the parties that predict are processes."""
    make_files(tmp_path)
    trained = Predicting(tmp_path)
    asyncio.run(trained.train())
    trained.log.close()
    (trained.out / "address").unlink()
    processes: list[Command] = []

    def start(name: str, *words: str) -> None:
        address = "127.0.0.1:0" if name == "server" else (trained.out / "address").read_text()
        config, own = tmp_path / f"{name}.toml", tmp_path / "run" / name
        config.write_text(tomli_w.dumps(to_dict(config_of(tmp_path, name, address))))
        words = (*words[:1], str(config), *words[1:], "--predict", "--out", str(own), "--log-json")
        processes.append(starter.start(tmp_path / f"{name}.log", *words))

    def until(holds: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < end and all(process.code is None for process in processes)
            time.sleep(0.02)

    try:
        start("server", "serve")
        until((trained.out / "predict" / "http").is_file)
        for name in NAMES:
            start(name, "join", "--party", name)
        with Tokens(trained.out / "predict").lent() as token, closing(door_of(trained.out, token)) as door:
            until(lambda: len([p for p in door.request("GET", "/status")["parties"] if p["state"] == "connected"]) == 2)
            host, _, port = door.url.removeprefix("https://").rpartition(":")
            idle = [socket.create_connection((host, int(port)), timeout=PATIENCE_S) for _ in range(64)]
            answer = door.request("POST", "/predict", {"ids": ["C001"]})["answers"][0]
            assert answer["parties"] == list(NAMES)
            with pytest.raises(ColonnadeError, match="longer than 200"):
                door.request("POST", "/predict", {"ids": ["C001", GROWS]})
            assert door.request("POST", "/predict", {"ids": ["C002"]})["answers"][0]["parties"] == list(NAMES)
            for one in idle:
                one.close()
        assert all(process.code is None for process in processes)
        assert [process.stop() for process in processes] == [0, 0, 0]
    finally:
        for process in processes:
            process.kill()
