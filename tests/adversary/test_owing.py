"""A party that is connected and never gives what it owes: the run goes on without it, or ends and says why.

The server, an honest party and a silent one talk over the real network, in this process (see benchmarks/fuzz.py).
"""

import asyncio
import importlib.util
import io
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from colonnade.cli.live import status_table
from colonnade.deployment.debts import Debt, Debts
from colonnade.deployment.server_host import ServerHost
from colonnade.deployment.server_training import ServerTraining
from colonnade.drivers.processes import service
from colonnade.drivers.processes.standing import Standing


def load_fuzz() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"
    spec = importlib.util.spec_from_file_location("colonnade_fuzz_owing", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


fuzz = load_fuzz()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "FAREWELL_S", 0.1)  # the silent member does not say goodbye
    monkeypatch.setattr(service, "MAX_ABSENT_S", 0.1)


@asynccontextmanager
async def silent_member(folder: Path, **protocol: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A running server with an honest party, and a party that connects and says nothing."""
    here = fuzz.Arena(folder / "run", 1, protocol)
    await here.start()
    mallory = fuzz.Mallory(here, here.hostile[0])
    call = await mallory.join()
    await here.until(lambda: here.server.node.peers[here.honest].messages_in > 0)
    await here.until(lambda: list(here.server.application.owes()) == [mallory.name])
    try:
        yield here, mallory
    finally:
        call.cancel()
        await mallory.close()
        here.party.node.ended.set()
        here.server.node.ended.set()
        await asyncio.gather(here.training, here.serving)
        here._written.close()


def pass_time(server: ServerHost[ServerTraining], seconds: float = 601.0) -> None:
    """As if the parties had owed what they owe for so long."""
    owes, server._debts = server.application.owes(), Debts()
    server._debts.note(owes, owes, 0.0)
    server._debts.note(owes, owes, seconds)
    server._looked_at = time.monotonic()
    server._collect_debts()


@pytest.mark.parametrize("protocol", [{"name": "t-sync", "t": 2}, {"name": "flex"}], ids=["t-sync", "flex"])
def test_others_train_on_without_a_silent_member(protocol: dict[str, Any], tmp_path: Path) -> None:
    async def run() -> None:
        async with silent_member(tmp_path, **protocol) as (here, mallory):
            owed = here.server.application.owes()[mallory.name]
            pass_time(here.server)
            await here.goes_on()
            assert not mallory.peer.present
            causes = [line["cause"] for line in here.log() if line["event"] == "lost"]
            assert causes == [f"owed {owed} for 601 s"]
            with pytest.raises(RuntimeError, match=rf"not welcome: .*owed {re.escape(owed)} .*; it may join again in "):
                await mallory.join()

    asyncio.run(run())


@pytest.mark.parametrize("protocol", ["sync", "sync-min"])
def test_a_run_that_needs_a_silent_member_ends_and_says_what_it_owes(protocol: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with silent_member(tmp_path, name=protocol) as (here, mallory):
            owed = here.server.application.owes()[mallory.name]
            pass_time(here.server)
            summary = await asyncio.wait_for(here.serving, fuzz.ANSWER_S)
            assert summary["status"] == "stalled"
            assert summary["note"] == f"waited 601 s for {mallory.name}: {owed} (network.give_up_s)"

    asyncio.run(run())


def test_the_status_says_who_owes_what(tmp_path: Path) -> None:
    async def run() -> None:
        async with silent_member(tmp_path, name="sync") as (here, mallory):
            pass_time(here.server, 17.0)
            told = here.server.status()
            assert told["waits_for"] == [mallory.name]
            assert told["parties"][1]["owes"] == here.server.application.owes()[mallory.name]
            assert told["parties"][1]["owed_s"] == 17.0
            console = Console(file=io.StringIO(), width=160)
            console.print(status_table(told))
            assert f"{told['parties'][1]['owes']}: owed by {mallory.name} (17 s)" in console.file.getvalue()

    asyncio.run(run())


def test_only_the_same_debt_grows_older_and_only_while_the_server_does_not_compute() -> None:
    debts, both = Debts(), ("lab", "bank")
    debts.note({"lab": "step 1", "bank": "step 1"}, both, 5.0)
    assert debts.of("lab") == Debt("step 1")
    debts.note({"lab": "step 1", "bank": "step 1"}, both, 5.0)
    debts.note({"lab": "step 1", "bank": "step 2"}, both, 0.0)  # computing
    debts.note({"lab": "step 1", "bank": "step 2"}, both, 3.0)
    assert debts.overdue(4.0) == {"lab": Debt("step 1", 8.0)}
    debts.note({"bank": "step 2"}, both, 1.0)
    assert debts.of("lab") is None
    assert debts.of("bank") == Debt("step 2", 4.0)


def test_a_party_that_comes_late_has_its_whole_time() -> None:
    debts = Debts()
    for connected in ((), (), ("lab",), ("lab",)):
        debts.note({"lab": "step 1"}, connected, 500.0)
    assert debts.of("lab") == Debt("step 1", 1000.0, 500.0)
    assert debts.overdue(999.0)
    assert not debts.overdue(1000.0)


def test_a_member_that_always_owes_is_kept_out_for_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    standing = Standing()
    for wait_s in (600, 1200, 2400):
        standing.overdue("an upload", 601.0, 600.0)
        assert standing.kept_out() == f"owed an upload for 601 s; it may join again in {wait_s} s"
        clock[0] += wait_s
        assert standing.kept_out() == ""


def test_refusals_are_forgotten_after_ten_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    standing = Standing()
    for _ in range(10):
        assert not standing.refuse("a wrong shape", 3)
        clock[0] += 301.0
    assert standing.refused == 10
    standing.refuse("a wrong shape", 3)
    assert standing.refuse("a wrong step", 3)
    assert standing.given_up == "refused 3 times, the last time: a wrong step"
