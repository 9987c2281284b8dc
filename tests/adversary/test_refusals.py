"""A message that a role refuses is not taken: its sender learns why, and both sides begin a new conversation.

The server, an honest party and a hostile one talk over the real network, in this process (see benchmarks/fuzz.py).
"""

import asyncio
import importlib.util
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from colonnade.algorithms.vafl.messages import Embeddings
from colonnade.drivers.processes import dial, service
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.node import Node
from colonnade.protocol import state
from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.events import Event, Send


def load_fuzz() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"
    spec = importlib.util.spec_from_file_location("colonnade_fuzz_refusals", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


fuzz = load_fuzz()
OUTSIDE = Embeddings(0, 2, np.array([0, 2**30], np.int32), np.zeros((2, 32), np.float32))
FRAME = fuzz.message_frame(bytes(Codec(fuzz.MESSAGES).encode(OUTSIDE)))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "FIRST_PAUSE_S", 0.01)


def live(folder: Path, act: Callable[[Any], Awaitable[None]], **network: Any) -> None:
    async def run() -> None:
        async with fuzz.arena(folder / "run", 1, **network) as here:
            with unchanged_by_refusals(here.server.node), unchanged_by_refusals(here.party.node):
                await act(here)
                await here.goes_on()
            assert not here.complaints

    with fuzz.no_delays():
        asyncio.run(run())


@contextmanager
def unchanged_by_refusals(node: Node) -> Iterator[None]:
    """A role that refuses a message must be as it was before."""
    role, handle = node.role, node.role.handle

    def checked(event: Event, now: int) -> Any:
        before = state.pack(role.save())
        try:
            return handle(event, now)
        except RemoteProtocolError:
            assert state.pack(role.save()) == before
            raise

    object.__setattr__(role, "handle", checked)  # a role refuses attributes that no checkpoint would hold
    yield
    object.__delattr__(role, "handle")


def test_the_sender_is_told_and_sends_again_in_a_new_conversation(tmp_path: Path) -> None:
    """An honest party whose upload was damaged once; today its process would end."""

    async def act(here: Any) -> None:
        other = here.process_of(here.hostile[0])
        node, peer = other.node, here.server.node.peers[here.hostile[0]]
        send, damaged = node._send, []

        def damage_the_third(effect: Send) -> None:
            if isinstance(effect.message, Embeddings):
                damaged.append(peer.messages_in)
                effect = Send(effect.to, OUTSIDE) if len(damaged) == 3 else effect
            send(effect)

        node._send = damage_the_third
        running = asyncio.ensure_future(other.run())
        await here.until(lambda: peer.standing.refused == 1)
        before = peer.messages_in
        await here.until(lambda: running.done() or peer.messages_in > before + 5)
        assert not running.done()
        assert peer.conversation.goes_on_with(node.peers["server"].conversation.position())
        node.ended.set()
        await running
        told = node.log.stream.getvalue()
        assert "the server refused a message: " in told
        assert "row numbers outside 0" in told
        assert f"{peer.name} row numbers" not in told

    live(tmp_path, act)


def test_a_party_that_is_refused_too_often_is_given_up_and_the_others_train_on(tmp_path: Path) -> None:
    async def act(here: Any) -> None:
        mallory = fuzz.Mallory(here, here.hostile[0])
        answers = [await fuzz.offend(mallory, FRAME) for _ in range(3)]
        assert all(answer.startswith("row numbers outside 0") for answer in answers[:2])
        assert answers[2].startswith("refused 3 times, the last time: row numbers outside 0")
        assert not mallory.peer.present
        with pytest.raises(RuntimeError, match="not welcome: .*refused 3 times"):
            await mallory.join()
        lost = [line["cause"] for line in here.log() if line["event"] == "lost"]
        assert lost == answers[2:]
        party = here.server.status()["parties"][1]
        assert (party["state"], party["refused"]) == ("given up", 3)
        with pytest.raises(RemoteProtocolError, match="server: refused this party: refused 3 times"):
            await here.process_of(mallory.name).run()  # a new process of that party
        await mallory.close()

    live(tmp_path, act, max_refusals=3)


def test_a_run_that_needs_a_party_that_was_given_up_ends_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "FAREWELL_S", 0.1)  # the hostile party does not say goodbye
    monkeypatch.setattr(service, "MAX_ABSENT_S", 0.1)

    async def run() -> None:
        here = fuzz.Arena(tmp_path / "run", 1, {"name": "sync"}, max_refusals=1)
        await here.start()
        mallory = fuzz.Mallory(here, here.hostile[0])
        await fuzz.offend(mallory, FRAME)
        await mallory.close()
        summary = await asyncio.wait_for(here.serving, fuzz.ANSWER_S)
        assert summary["status"] == "stalled"
        assert summary["note"].startswith(f"cannot continue without {mallory.name}: refused 1 times, the last time: ")
        assert (await here.training).status == "stalled"
        here._written.close()

    asyncio.run(run())


def test_a_party_that_refuses_the_server_says_so_and_both_begin_a_new_conversation(tmp_path: Path) -> None:
    async def act(here: Any) -> None:
        party, server = here.party.node, here.server.node
        number = server.peers[here.honest].conversation.number
        server._perform(Send(here.honest, OUTSIDE))
        await here.until(lambda: party.peers["server"].standing.refused == 1)
        await here.goes_on()
        assert server.peers[here.honest].conversation.number != number
        causes = [line["cause"] for line in here.log() if line["event"] == "disconnected"]
        assert any(cause.startswith("it refused a message: ") for cause in causes)

    live(tmp_path, act)


def test_a_party_that_refused_the_server_too_often_ends_with_the_reason(tmp_path: Path) -> None:
    async def run() -> None:
        async with fuzz.arena(tmp_path / "run", 1) as here:
            other = here.process_of(here.hostile[0])
            other.node.limits = Limits(max_refusals=2)
            wrong = Send(here.hostile[0], OUTSIDE)
            running = asyncio.ensure_future(other.run())
            peer = here.server.node.peers[here.hostile[0]]
            number = 0
            for count in (1, 2):
                await here.until(lambda old=number: peer.stream is not None and peer.conversation.number != old)
                number = peer.conversation.number
                here.server.node._perform(wrong)
                await here.until(lambda n=count: other.node.peers["server"].standing.refused == n)
            with pytest.raises(RemoteProtocolError, match="server: refused 2 times, the last time: .*Embeddings"):
                await running
            await here.goes_on()

    asyncio.run(run())
