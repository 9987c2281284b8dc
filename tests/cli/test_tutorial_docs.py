"""docs/tutorial.md: its commands, typed as printed, with three folders, real processes and made-up numbers."""

import asyncio
import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import polars
import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app

from ..starting import Popen, fork_member

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = "\n".join(re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL))
BLOCKS = re.sub(r" *\\\n *", " ", BLOCKS)  # commands of several lines
PARTS = re.split(r"^(three|bank|shop|insurer|)\$ (.+)\n", BLOCKS, flags=re.MULTILINE)[1:]
TYPED = list(zip(PARTS[::3], PARTS[1::3], PARTS[2::3], strict=True))  # where, command, what the page says it printed
PATIENCE_S = 120.0
# A small federation: little to compute, no port that others use, no deadline on a slow machine.
SMALL = "--rows 700 --new 200"
SHRINK = {"batch_size = 256": "batch_size = 32", "0.001": "0.01", "epochs = 10": "epochs = 6", ":7450": ":{port}"}
SHRINK |= {"[network]\n": "[network]\nlost_after_s = 60\n"}  # no party counts as lost because the machine is slow
SHRINK |= {"[predict]\n": '[predict]\nhttp = "127.0.0.1:0"\ndeadline_s = 60\n'}


class Typist:
    """Types each command in its folder. Commands that keep running have a log each and stop at a typed Ctrl-C."""

    def __init__(self, home, shrunk):
        self.home, self.shrunk = home, shrunk
        self.running = []  # (folder, process, log)
        (home / "bin").mkdir()
        shim = home / "bin" / "python"
        shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        shim.chmod(0o700)
        path = f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self.environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}

    def type(self, where, command):
        """Type a command; return its output."""
        folder = {"": ROOT, "three": self.home}.get(where, self.home / where)
        command = command.replace("/tmp/three", str(self.home))
        if command == "^C":
            return self.interrupt(folder)
        if command.startswith(("colonnade serve", "colonnade join")):
            return self.start(folder, command)
        if command.startswith("colonnade predict"):
            self.wait_until_all_predict()
        if command.startswith("colonnade "):
            return self.type_here(folder, command)
        if self.shrunk and "three_folders.py" in command:
            command = f"{command} {SMALL}"
        done = subprocess.run(
            ["bash", "-c", command], check=False, cwd=folder, env=self.environment, capture_output=True, text=True,
            timeout=PATIENCE_S,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout.replace(str(self.home), "/tmp/three")

    def type_here(self, folder, command):
        """Run a command that ends by itself inside this process."""
        with contextlib.chdir(folder):
            result = CliRunner().invoke(app, shlex.split(command)[1:], catch_exceptions=False)
        assert result.exit_code == 0, f"{command}\n{result.output}"
        return result.output

    def start(self, folder, command):
        log = self.home / f"{len(self.running)}.log"
        with log.open("wb") as file:
            words = [sys.executable, "-m", *shlex.split(command)]
            process = Popen(words, cwd=folder, env=self.environment, stdout=file, stderr=file)
        self.running.append((folder, process, log))
        return ""

    def interrupt(self, folder):
        ended = [(process, log) for where, process, log in self.running if where == folder and process.poll() is None]
        for process, _ in ended:
            process.send_signal(signal.SIGINT)
        for process, log in ended:
            process.wait(PATIENCE_S)
            assert "Traceback" not in log.read_text(), log.read_text()
        return ""

    def wait_until_all_predict(self):
        for _, process, log in self.running:
            until = time.monotonic() + PATIENCE_S
            while process.poll() is None and "joined" not in log.read_text().partition("predicting")[2]:
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.05)
        self.all_joined()

    def all_joined(self):
        """Wait until the server has met all running parties."""
        alive = [log for _, process, log in self.running if process.poll() is None]
        assert alive, [log.read_text() for _, _, log in self.running]
        server, parties = alive[0], len(alive) - 1
        until = time.monotonic() + PATIENCE_S
        while server.read_text().partition("predicting")[2].count("joined") < parties:
            assert time.monotonic() < until, server.read_text()
            time.sleep(0.05)

    def close(self):
        for _, process, _ in self.running:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def typist(tmp_path, monkeypatch):
    monkeypatch.setattr(asyncio, "create_subprocess_exec", fork_member)  # `align` starts every member
    typist = Typist(tmp_path, shrunk=True)
    yield typist
    typist.close()


def shrink(path):
    """Shrink the server's config, once it is as the page wants it; the parties get theirs from it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = path.read_text()
    for before, after in SHRINK.items():
        assert before in text, before
        text = text.replace(before, after.format(port=port))
    path.write_text(text)


def alike(line):
    """A printed line without its numbers, dates, fingerprints and the width of its columns."""
    return re.sub(r"[0-9a-f]{16,64}|C?[0-9][0-9,.:e-]*", "#", re.sub(" +", " ", line.strip()))


def test_the_tutorial_goes_all_the_way(typist):
    printed = {}
    for where, command, says in TYPED:
        out = typist.type(where, command)
        if command.startswith("colonnade init server"):
            shrink(typist.home / "bank/server.toml")
        printed[command] = out
        stays = command == "^C" or command.startswith(("colonnade serve", "colonnade join", "colonnade align"))
        shown = [] if stays else [line for line in says.splitlines() if line not in ("", "...")]
        got = {alike(line) for line in out.splitlines()}
        assert {alike(line) for line in shown} <= got, f"{command}\n{out}"

    assert printed["cmp scores.csv again.csv && echo the same"] == "the same\n"
    for party in ("shop", "insurer"):  # no member got another member's key or table
        names = [path.name for path in (typist.home / party).rglob("*") if path.suffix in (".key", ".csv")]
        assert sorted(names) == sorted([f"{party}.key", f"{party}.csv", "new.csv"])
    rests = {name: polars.read_csv(typist.home / f"bank/{name}.csv")["parties"] for name in ("scores", "away")}
    assert (rests["scores"] == "bank shop insurer").sum() > 100
    assert not rests["away"].str.contains("shop").any()
    alone = next(out for command, out in printed.items() if command.startswith("colonnade run"))
    gained = next(out for command, out in printed.items() if "auc.py" in command)
    together, away = map(float, re.findall(r"AUC (\S+)", gained))
    assert float(re.search(r"auc, \d+ test rows +│ +(\S+)", alone)[1]) + 0.05 < together and away < together


def test_it_needs_no_editor():
    commands = [command for _, command, _ in TYPED]
    assert len(commands) <= 24
    assert not [command for command in commands if re.match(r"sed|printf|echo|cp |cat ", command)]
