"""docs/deploy.md: its commands, typed as printed, train a federation of three processes."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from colonnade.config.schema import apply_overrides, from_dict, read_toml
from colonnade.deployment.party_side import PartySide
from colonnade.drivers.processes.certificates import throw_away
from colonnade.drivers.processes.logs import Log
from colonnade.protocol.errors import ConfigError

from ..starting import Popen, run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
BLOCKS = "\n".join(re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = re.findall(r"^(server|clinic|lab)\$ (.+)$", BLOCKS, re.MULTILINE)
SHORT = ["--set", "train.updates=300", "--set", "train.eval_every=100"]
SHORT += ["--set", "network.admit_late=false"]  # otherwise so short a training may end before the lab has started
PATIENCE_S = 120.0


def words(command):
    first, *rest = shlex.split(command)
    return [sys.executable, "-m", "colonnade", *rest] if first == "colonnade" else [first, *rest]


def type_in(folder, command):
    start = run if command.startswith("colonnade ") else subprocess.run
    return start(words(command), cwd=folder, check=True, capture_output=True, text=True, timeout=60).stdout


def wait_for(path, process):
    until = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert process.poll() is None and time.monotonic() < until, f"no {path.name}"
        time.sleep(0.05)
    return path.read_text()


@pytest.fixture
def start():
    """Start a process; the fixture kills any that still runs at the end."""
    started = []

    def call(folder, command, *more):
        with (folder / "log").open("wb") as log:
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            started.append(Popen([*words(command), *SHORT, *more], cwd=folder, stdout=log, stderr=log, env=environment))
        return started[-1]

    yield call
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_the_page_trains(tmp_path, start):
    make = re.search(r"^\$ python (\S+) /tmp/deploy$", BLOCKS, re.MULTILINE)[1]
    run([sys.executable, ROOT / make, tmp_path], check=True, capture_output=True)
    long_running = {}
    for who, command in COMMANDS:
        if command.startswith(("colonnade serve", "colonnade join")):
            long_running[who] = command
        elif not command.startswith("colonnade status"):
            type_in(tmp_path / who, command)
    for party in ("clinic", "lab"):  # no member got another member's key
        assert [path.name for path in (tmp_path / party).glob("*.key")] == [f"{party}.key"]

    server = start(tmp_path / "server", long_running["server"], "--set", "network.address=127.0.0.1:0")
    address = wait_for(tmp_path / "server/runs/server/address", server)
    here = ("--set", f"network.address={address}")
    refused = start(tmp_path / "clinic", long_running["clinic"], *here, "--set", "model.embedding=16")
    assert refused.wait(PATIENCE_S) == 2
    assert "model.embedding: 16 there, 8 here" in (tmp_path / "clinic/log").read_text()
    clinic = start(tmp_path / "clinic", long_running["clinic"], *here)
    ask = next(command for _, command in COMMANDS if command.startswith("colonnade status"))
    assert "not here yet" in type_in(tmp_path / "clinic", ask.replace("127.0.0.1:7450", address))  # the lab
    lab = start(tmp_path / "lab", long_running["lab"], *here)
    for who, process in (("server", server), ("clinic", clinic), ("lab", lab)):
        assert process.wait(PATIENCE_S) == 0, (tmp_path / who / "log").read_text()
    summary = json.loads((tmp_path / "server/runs/server/summary.json").read_text())
    assert summary["status"] == "finished" and summary["value"] > 0.8 and summary["weights_sha256"]
    assert json.loads((tmp_path / "lab/runs/lab/summary.json").read_text())["status"] == "finished"


def test_the_configs_differ_only_below_the_line():
    texts = [(ROOT / f"examples/deploy/{name}.toml").read_text() for name in ("server", "clinic", "lab")]
    assert len({re.search(r"# --- shared.*?(?=# --- the)", text, re.DOTALL)[0] for text in texts}) == 1


def test_a_state_fits_only_what_it_was_made_with(tmp_path, monkeypatch):
    run([sys.executable, ROOT / "examples/deploy/make_folders.py", tmp_path], check=True)
    folder = tmp_path / "clinic"
    throw_away(["clinic", "lab"], folder / "keys")
    monkeypatch.chdir(folder)
    shutil.copytree("keys", ".", dirs_exist_ok=True)

    def party(**more):
        tables = apply_overrides(read_toml("clinic.toml"), more)
        return PartySide(from_dict(tables), "clinic", folder / "run", Log("clinic"))

    party().refuse_others_state()
    party(**{"network.address": "elsewhere:1", "party.learning_rate": 0.5}).refuse_others_state()
    with pytest.raises(
        ConfigError, match=r"holds a run with other settings \(shared.model.embedding: 8 there, 16 here\)"
    ):
        party(**{"model.embedding": 16}).refuse_others_state()
