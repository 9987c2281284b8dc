"""live.json of a server with real connections, what it answers to a page, and what a page makes of it."""

import asyncio
import io
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from colonnade.config.schema import Config, from_dict
from colonnade.dashboard.content import content
from colonnade.dashboard.figures import Figures
from colonnade.dashboard.source import FolderSource, ServerSource, State
from colonnade.data import load, party_share, save_share, server_share, split
from colonnade.deployment import live
from colonnade.deployment.party_training import training_party
from colonnade.deployment.server_training import training_server
from colonnade.drivers.processes import dial, service
from colonnade.drivers.processes.certificates import Identity, throw_away
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.logs import Log
from colonnade.protocol.errors import ConfigError
from colonnade.results.live import read_live

NAMES = ("party-1", "party-2")
COMMON: dict[str, Any] = {
    "protocol": {"name": "vafl"},
    "model": {"party": "linear", "embedding": 4, "server": "linear"},
    "train": {"epochs": 100_000, "eval_every": "0.2s"},
    "privacy": {"mechanism": "output", "clip": 1.0, "noise": 1000.0},
}


@pytest.fixture(scope="module")
def shares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shares")
    data = split(load("digits"), parties=len(NAMES))
    throw_away(NAMES, folder)
    save_share(server_share(data), folder / "server.safetensors")
    for index, name in enumerate(NAMES):
        save_share(party_share(data, index), folder / f"{name}.safetensors")
    return folder


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "NEWS_S", 0.1)
    monkeypatch.setattr(service, "NEWS_PAUSE_S", 0.0)
    monkeypatch.setattr(live, "LOOK_S", 0.02)


def config_of(name: str, shares: Path, address: str = "127.0.0.1:0") -> Config:
    network = {
        "parties": list(NAMES), "address": address, "certificate": str(shares / f"{name}.pem"),
        "key": str(shares / f"{name}.key"), "authority": str(shares / "ca.pem"),
        "members": str(shares / "members.toml"),
    }  # fmt: skip
    own: dict[str, Any] = {"data": str(shares / f"{name}.safetensors")}
    if name == "party-2":
        own["budget"] = {"epsilon": 3.0, "delta": 1e-5}
    return from_dict(COMMON | {"network": network, "server" if name == "server" else "party": own})


class Running:
    """A federation in a thread of its own, until it is stopped."""

    def __init__(self, shares: Path, folder: Path) -> None:
        self.shares, self.folder = shares, folder
        self.log = io.StringIO()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> "Running":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = training_server(
            config_of("server", self.shares), self.folder / "server", Log("server", stream=self.log)
        )
        running = [asyncio.ensure_future(server.run())]
        address = self.folder / "server" / "address"
        while not address.is_file():
            await asyncio.sleep(0.01)
        for name in NAMES:
            party = training_party(
                config_of(name, self.shares, address.read_text()),
                name,
                self.folder / name,
                Log(name, stream=self.log),
            )
            running.append(asyncio.ensure_future(party.run()))
        stop = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait([stop, *running], return_when=asyncio.FIRST_COMPLETED)
        server.node.stop()
        await asyncio.wait(running[:1])
        for task in (*running, stop):
            task.cancel()
        self.ended = await asyncio.gather(*running, stop, return_exceptions=True)

    def until(self, condition: Any, what: str) -> Any:
        ends = time.monotonic() + 40
        while time.monotonic() < ends and self._thread.is_alive():
            if found := condition():
                return found
            time.sleep(0.02)
        self._thread.join(30)
        raise AssertionError(f"waited in vain for {what}: {getattr(self, 'ended', '')} {self.log.getvalue()[-2000:]}")


def told(found: State) -> bool:
    """Whether both parties have told how busy they were, and there are measurements."""
    if found.record is None or found.record.timeline is None or len(found.record.rows) < 3:
        return False
    busy = found.record.timeline["busy"]
    return all(sum(row) > 0 for row in busy[1:]) and set(found.live["privacy"]) == set(NAMES)


def test_a_page_of_a_server_that_trains(shares: Path, tmp_path: Path) -> None:
    with Running(shares, tmp_path) as federation:
        folder = tmp_path / "server"
        federation.until((folder / "live.json").is_file, "live.json")
        source = FolderSource(folder)
        beside = federation.until(lambda: told(found := source.state()) and found, "lanes in the folder")
        address = (folder / "address").read_text()
        identity = Identity.load(shares / "party-1.pem", shares / "party-1.key", shares / "ca.pem")
        asked = ServerSource(identity, address, Limits())
        try:
            there = federation.until(lambda: told(found := asked.state()) and found, "lanes of the server")
            lines = federation.until(lambda: len(asked.state().record.rows) > len(there.record.rows), "more lines")
            assert lines
            own = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            rows = asked.state().record.rows
            assert rows == own[: len(rows)], "every line once"
        finally:
            asked.close()
        for state in (beside, there):
            shown = content(state, Figures())
            assert shown["state"]["word"] in ("training", "waiting") and not shown["simulated"]
            assert [party["state"] for party in shown["parties"]] == ["connected", "connected"]
            assert all(0 < party["shares"]["busy"] <= 1 for party in shown["parties"])
            assert shown["parties"][1]["epsilon"].endswith(" of 3") and " of " not in shown["parties"][0]["epsilon"]
            assert {"timeline", "metric", "privacy", "utilisation"} <= set(shown["figures"])
            assert {"joined", "run"} <= {event["kind"] for event in shown["events"]}
    found = read_live(tmp_path / "server")
    assert found is not None and found["status"]["state"] == "stopped"
    assert content(FolderSource(tmp_path / "server").state(), Figures())["state"]["word"] == "stopped"


def test_an_address_without_a_server_is_refused_at_once(shares: Path) -> None:
    identity = Identity.load(shares / "party-1.pem", shares / "party-1.key", shares / "ca.pem")
    with pytest.raises(ConfigError, match="ADDRESS"):
        ServerSource(identity, "127.0.0.1:1", Limits())
