"""Files that release 0.1.0 made (tests/data/make_release.py) are read by the code at hand, and its runs go on."""

import asyncio
import io
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from colonnade.config.schema import Config, from_dict, read_toml
from colonnade.data import load_alignment
from colonnade.deployment.party_host import PartyHost
from colonnade.deployment.party_side import PartySide
from colonnade.deployment.party_training import PartyTraining
from colonnade.deployment.server_host import ServerHost
from colonnade.deployment.server_side import ServerSide
from colonnade.deployment.server_training import ServerTraining
from colonnade.drivers.files import Disk
from colonnade.drivers.ledger_file import read_ledger
from colonnade.drivers.processes import dial
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.members import read_members
from colonnade.experiments.run import reopen
from colonnade.predict.asking import door_of
from colonnade.predict.processes import predicting_party, predicting_server
from colonnade.predict.tokens import Tokens
from colonnade.protocol.errors import CheckpointError

ARCHIVE = Path(__file__).parent / "data" / "release-0.1.0.tar.xz"
PARTIES = ("a", "b")
UPDATES = 300
PATIENCE_S = 120.0


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path / "federation")
    monkeypatch.setattr(dial, "FIRST_PAUSE_S", 0.02)
    return tmp_path


def config_of(run: str, role: str, address: str = "127.0.0.1:0") -> Config:
    tables = read_toml(f"{run}-{role}.toml")
    tables["network"]["address"] = address
    tables["predict"] = {"http": "127.0.0.1:0"}
    return from_dict(tables)


def side(run: str, role: str, address: str = "127.0.0.1:0") -> Any:
    config, out, log = config_of(run, role, address), Path("runs", f"{run}-{role}"), Log(role, stream=io.StringIO())
    return ServerSide(config, out, log) if role == "server" else PartySide(config, role, out, log)


async def until(condition: Any, what: str) -> None:
    for _ in range(int(PATIENCE_S / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"waited in vain for {what}")


async def together(run: str, as_server: Any, as_party: Any, then: Any) -> Any:
    """Start the server and both parties over loopback, then do what `then` does."""
    address = Path("runs", f"{run}-server", "address")
    address.unlink()
    server = as_server(side(run, "server"))
    running = [asyncio.ensure_future(server.run())]
    await until(lambda: address.is_file() or running[0].done(), "the server")
    hosts = [as_party(side(run, name, address.read_text())) for name in PARTIES]
    running += [asyncio.ensure_future(host.run()) for host in hosts]
    try:
        return await then(server, hosts, running)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def to_the_end(server: Any, hosts: Any, running: Any) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        summary, *ends = await asyncio.gather(*running)
    return summary, ends, [server.node, *(host.node for host in hosts)]


@pytest.mark.parametrize("run", ["vafl", "sync", "table"])
def test_a_federation_that_was_killed_goes_on_from_its_journals(
    run: str, release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Path("runs", f"{run}-server", "state", "journal-0.log").read_bytes()
    assert journal[:4] == b"CLJ5"
    monkeypatch.setattr(Disk, "boot_id", lambda self: journal[12:28])  # the machine has not restarted since
    training = lambda side: ServerHost(ServerTraining(side))  # noqa: E731
    taking_part = lambda side: PartyHost(PartyTraining(side))  # noqa: E731
    summary, ends, nodes = asyncio.run(together(run, training, taking_part, to_the_end))
    assert summary["status"] == "finished" and summary["updates"] >= UPDATES
    assert [end.status for end in ends] == ["finished", "finished"]
    assert all(node.replayed > 0 for node in nodes)
    assert summary["messages_given_up"] == 0 == sum(node.damaged_files for node in nodes)


def test_a_simulation_that_was_stopped_goes_on(release: Path) -> None:
    folder = release / "simulator" / "stopped"
    before = (folder / "metrics.jsonl").read_text().count("\n")
    assert before > 1
    summary = reopen(from_dict(read_toml(folder / "config.toml")), folder).execute()
    assert summary["status"] == "finished" and summary["updates"] == UPDATES
    assert (folder / "metrics.jsonl").read_text().count("\n") > before


def test_a_finished_federation_answers_predictions(release: Path) -> None:
    async def ask(server: Any, hosts: Any, running: Any) -> Any:
        await until(lambda: all(server.node.peers[name].stream for name in PARTIES), "the parties")
        with Tokens(server.out / "predict").lent() as token, closing(door_of(server.out, token)) as door:
            answer = await asyncio.to_thread(door.request, "POST", "/predict", {"ids": ["client-5", "client-6"]})
        return answer["answers"]

    answers = asyncio.run(together("done", predicting_server, predicting_party, ask))
    assert [set(answer["parties"]) for answer in answers] == [{"a", "b"}] * 2
    assert [token.name for token in Tokens(Path("runs/done-server/predict")).all()] == ["caller"]


def test_ledgers_alignments_and_members_are_read(release: Path) -> None:
    terms, releases, account = read_ledger(Path("runs/vafl-a/ledger.jsonl"))
    assert terms["ledger"] == 1 and len(releases) > 10 and account.mu > 0
    order = load_alignment("a-order.safetensors")
    assert order.name == "a" and len(order.rows) == 56
    assert set(read_members(Path("members.toml"))) == {"server", *PARTIES}


def test_a_state_of_an_unknown_release_is_refused_with_its_name(release: Path) -> None:
    journal = Path("runs/sync-a/state/journal-0.log")
    for number in range(3):
        journal = Path(f"runs/sync-a/state/journal-{number}.log")
        journal.write_bytes(b"CLJ9" + journal.read_bytes()[4:])
    with pytest.raises(CheckpointError, match=r"journal-\d.log: a journal of format 9, and release .* install"):
        side("sync", "a").read()
