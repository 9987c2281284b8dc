"""`colonnade run --driver processes`: real processes, killed and stopped as an operator would do it.

Most members are forked (see tests/starting.py). The first `up` of the last test starts its members, which are `serve`
and `join`, in full; its last `up` starts in full, too.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from colonnade.config.schema import Config, from_dict
from colonnade.deployment import up
from colonnade.drivers.processes.certificates import throw_away_files
from colonnade.experiments.run import prepare
from colonnade.protocol.errors import ColonnadeError

from ...starting import LINUX, WITH_MEMBERS, Popen, run

PATIENCE_S = 120.0
CONFIG = """
[data]
source = "digits"
parties = 2
[model]
party = "linear"
embedding = 4
[protocol]
name = "sync"
[train]
epochs = 30
eval_every = 10
learning_rate = 0.3
"""


class Command:
    """A `colonnade` process and the processes it started."""

    def __init__(self, folder, *arguments, start=Popen, forks=False):
        """With `forks`, the processes that it starts are forked, where the system is Linux."""
        self.out = folder / "run"
        self.errors = folder / f"errors-{time.monotonic_ns()}"
        with self.errors.open("wb") as file:
            self.process = start(
                [
                    sys.executable,
                    *(["-c", WITH_MEMBERS] if forks and LINUX else ["-m", "colonnade"]),
                    *map(str, arguments),
                ],
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120", "TERM": "dumb"},
            )

    def children(self):
        """Role to pid, of the processes that write the roles' logs; from /proc."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                log = (folder / "fd" / "1").readlink()
            except OSError:
                continue
            if log.name == "log.jsonl" and log.parent.parent == self.out / "nodes":
                found[log.parent.name] = int(folder.name)
        return found

    def rows(self):
        path = self.out / "nodes" / "server" / "run" / "metrics.jsonl"
        return path.read_text().count("\n") if path.is_file() else 0

    def until(self, condition, what):
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, f"ended before {what}: {self.errors.read_text()}"
            assert time.monotonic() < end, f"waited in vain for {what}: {self.errors.read_text()}"
            time.sleep(0.02)

    def ended(self):
        self.process.wait(PATIENCE_S)
        return self.process.returncode, self.errors.read_text()

    def clear(self):
        """Kill whatever a failed test left behind."""
        for pid in ([self.process.pid] if self.process.poll() is None else []) + list(self.children().values()):
            os.kill(pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)


@pytest.fixture
def colonnade(tmp_path):
    (tmp_path / "config.toml").write_text(CONFIG)
    started = []

    def start(*arguments, **more):
        started.append(Command(tmp_path, *arguments, **more))
        return started[-1]

    yield start
    for command in started:
        command.clear()


def whole(out):
    """Return the summary of a finished run and check that its folder is complete."""
    for name in ("config.toml", "metrics.jsonl", "summary.json", "staleness.json", "timeline.json", "command.txt"):
        assert (out / name).is_file(), name
    summary = json.loads((out / "summary.json").read_text())
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    updates = [row["update"] for row in rows]
    assert updates == sorted(set(updates)), "a row is there twice"
    assert rows[-1]["test_value"] == summary["value"] and summary["status"] == "finished"
    assert summary["epochs"] >= 30 and summary["parties"] == 2 and summary["driver"] == "processes"
    assert summary["messages_given_up"] == 0
    calm = prepare(from_dict(tomllib.loads(CONFIG))).execute()
    assert summary["weights_sha256"] == calm["weights_sha256"], "the same as in the simulator, bit for bit"
    timeline = json.loads((out / "timeline.json").read_text())
    assert timeline["roles"] == ["server", "party-1", "party-2"] == list(summary["utilisation"])
    states = [np.array(timeline[name]) for name in ("busy", "offline", "unknown")]
    assert {part.shape for part in states} == {(3, len(timeline["busy"][0]))}
    assert np.min(states) >= 0 and np.max(np.sum(states, 0)) <= 1.003
    assert all(map(any, timeline["busy"])), "every role was seen at work"
    assert [any(row) for row in timeline["offline"]] == [False, True, True], "both started later than the server"


class Mortal:
    """A child with a list of exit codes, one for each look."""

    def __init__(self, name, *codes):
        self.name, self.codes, self.starts, self.code = name, list(codes), 0, None
        self.log = "its log"

    @property
    def hopeless(self):
        return self.starts > up.RESTARTS

    async def start(self):
        self.starts += 1
        self.code = None

    def end(self):
        self.code = self.codes.pop(0) if self.codes else self.code

    def stop(self):
        pass

    async def gone(self, timeout_s):
        pass

    def last_words(self):
        return "farewell"


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """A federation without processes: children end while `up` asks the server for its status."""

    def make(*children):
        made = up.FederationUp(Config(), tmp_path, tuple(child.name for child in children[1:]), ())
        made.children = {child.name: child for child in children}

        async def start():
            for child in children:
                await child.start()

        async def ask():
            for child in children:
                child.end()

        monkeypatch.setattr(made, "start", start)
        monkeypatch.setattr(made, "status", ask)
        monkeypatch.setattr(made, "_collect", lambda: {"status": "finished"})
        return made

    return make


def look_after(federation):
    return asyncio.run(asyncio.wait_for(federation.run(lambda status: None), PATIENCE_S))


def test_a_server_that_is_killed_while_it_is_asked_is_started_again(federation):
    server, party = Mortal("server", -9, -9, 0), Mortal("bank", -9)
    assert look_after(federation(server, party)) == {"status": "finished"}
    assert server.starts == 3 and party.starts == 2


@pytest.mark.parametrize("who", ["server", "bank"])
def test_one_that_gives_up_by_itself_ends_all_with_its_words(who, federation):
    server, party = (Mortal(name, *([2] if name == who else [])) for name in ("server", "bank"))
    with pytest.raises(ColonnadeError, match=f"{who} ended: farewell .see its log."):
        look_after(federation(server, party))


def test_one_that_is_killed_again_and_again_is_hopeless(federation):
    server = Mortal("server", *[-9] * 20)
    with pytest.raises(ColonnadeError, match="server ended: farewell"):
        look_after(federation(server))
    assert server.starts == up.RESTARTS + 1


def test_killed_members_are_started_again_and_the_run_is_whole(colonnade, tmp_path):
    out = tmp_path / "run"
    command = colonnade("run", "config.toml", "--driver", "processes", "--out", out, forks=True)
    command.until(lambda: command.rows() >= 2, "the first rows")
    first = command.children()
    assert set(first) == {"server", "party-1", "party-2"}
    os.kill(first["party-2"], signal.SIGSTOP)  # `sync` now waits for it, as long as this test needs

    certificates = out / "nodes" / "certificates"
    address = (out / "nodes" / "server" / "run" / "address").read_text()
    files = [f"--{key}={certificates / file}" for key, file in
             (("certificate", "party-1.pem"), ("key", "party-1.key"), ("authority", "ca.pem"))]  # fmt: skip
    asked = run(
        [sys.executable, "-m", "colonnade", "status", address, *files, "--json"],
        capture_output=True, text=True, check=True, timeout=PATIENCE_S,
    )  # fmt: skip
    status = json.loads(asked.stdout)
    assert status["protocol"] == "sync" and status["waits_for"] in ([], ["party-2"])
    assert [party["name"] for party in status["parties"]] == ["party-1", "party-2"]

    for name in ("server", "party-2"):
        os.kill(first[name], signal.SIGKILL)
    code, said = command.ended()
    assert code == 0, said
    whole(out)
    assert command.children() == {}
    for name in ("server", "party-2"):
        lines = (out / "nodes" / name / "log.jsonl").read_text().splitlines()
        assert "continuing" in [json.loads(line)["event"] for line in lines]

    report = colonnade("report", out)
    assert report.ended()[0] == 0 and (out / "report.html").stat().st_size > 10_000
    assert "Which role waited" in (out / "report.html").read_text()


RECORD = ("metrics.jsonl", "summary.json", "timeline.json", "staleness.json")


def record_of(out):
    """The files of a finished run, in its own folder and those of its roles."""
    paths = [folder / name for folder in (out, out / "nodes" / "server" / "run") for name in RECORD]
    paths += [out / "nodes" / party / "run" / "summary.json" for party in ("party-1", "party-2")]
    return {path: path.read_bytes() for path in paths}


def age(nodes):
    """As an older release left the folder two months ago: expired, without ca.key, and states with fingerprints."""
    folder, parties = nodes / "certificates", ["party-1", "party-2"]
    for path, data in throw_away_files(parties, folder, 30, datetime.now(UTC) - timedelta(days=60)).items():
        path.write_bytes(data)
    (folder / "ca.key").unlink()
    for name in parties:
        path = nodes / name / "run" / "state" / "made_with.json"
        made_with = json.loads(path.read_text())
        del made_with["shared"]["federation"]
        made_with["shared"]["members"] = dict.fromkeys(["party-1", "party-2", "server"], "ab" * 32)
        path.write_text(json.dumps(made_with))


def test_one_signal_ends_every_phase_and_a_finished_record_stays_as_it_is(colonnade, tmp_path):
    """One Ctrl-C or SIGTERM in each phase: training, predicting, telling the end again, predicting again."""
    out = tmp_path / "run"
    nodes = out / "nodes"
    stay = ("--predict", "--set", "predict.http=127.0.0.1:0")
    command = colonnade("up", "config.toml", *stay, "--out", out)
    command.until(lambda: command.rows() >= 2, "the first rows")
    os.kill(command.process.pid, signal.SIGINT)
    code, said = command.ended()
    assert code == 130 and f"colonnade run --driver processes --resume {out}" in said.replace("\n", "")
    assert "Traceback" not in said and command.children() == {}
    assert not (out / "summary.json").exists()
    before = (out / "metrics.jsonl").read_text().splitlines()
    assert before

    age(nodes)
    again = colonnade("run", "--driver", "processes", "--resume", out, forks=True)
    again.until((nodes / "server" / "run" / "predict" / "http").is_file, "the door for questions")
    os.kill(again.process.pid, signal.SIGTERM)
    code, said = again.ended()
    assert code == 130 and f"colonnade up --resume {out} --predict" in said.replace("\n", "")
    assert "Traceback" not in said and again.children() == {}
    whole(out)
    assert (out / "metrics.jsonl").read_text().splitlines()[: len(before)] == before
    assert "conversations restart" not in (nodes / "server" / "log.jsonl").read_text()
    assert (nodes / "certificates" / "ca.key").stat().st_mode & 0o777 == 0o600

    record = record_of(out)
    own = {name: (nodes / name / "config.toml", "--out", nodes / name / "run") for name in ("server", "party-1")}
    serve = colonnade("serve", *own["server"])
    join = colonnade("join", *own["party-1"], "--party", "party-1")
    serve.until(lambda: "listening" in serve.errors.read_text(), "the server that tells the end again")
    join.until(lambda: "predicting" in join.errors.read_text(), "the party that predicts again")
    for one in (serve, join):
        os.kill(one.process.pid, signal.SIGTERM)
    for one in (serve, join):
        code, said = one.ended()
        assert code == 0 and "Traceback" not in said, said
    assert record_of(out) == record

    over = colonnade("up", "--resume", out, start=subprocess.Popen)
    code, said = over.ended()
    assert code == 0 and "This run had already ended" in said and "sync: finished" in said
    assert record_of(out) == record
