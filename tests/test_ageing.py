"""A federation grows old, with real processes and typed commands: no state is lost, and no operator edits a file.

May     bank, shop and insurer train. Meanwhile every certificate is renewed, one after the other, the bank's
        process restarts as another release, and the insurer is revoked.
June    The run continues with new rows. The insurer is gone, and a clinic is new. The server answers predictions.
"""

import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars
import pytest

from .starting import Command, Commands

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks")
PATIENCE_S = 120.0
MAY, JUNE = ("bank", "shop", "insurer"), ("bank", "shop", "clinic")
SETTINGS = {
    "protocol.name": "vafl",
    "protocol.pause_s": 0.03,  # so that May lasts for longer than it takes to stop a party
    "protocol.max_delay": 200,  # and is not over before that party continues
    "model.party": "mlp:4",
    "model.embedding": 3,
    "train.eval_every": 200,
    "train.seed": 1,
    "network.lost_after_s": 600,  # no party counts as lost because it is stopped or the machine is slow
}


class Operators:
    """The folders of all members, and what their operators type in them."""

    def __init__(self, home: Path, starter: Commands) -> None:
        self.home, self._starter = home, starter
        self.ports = [_free_port() for _ in range(2)]
        for name in ("server", "bank", "shop", "insurer", "clinic"):
            (home / name / "data").mkdir(parents=True)

    def start(self, folder: str, words: str, release: str = "") -> Command:
        """Start a command; `words` is what is typed, or a JSON list if a word has a blank in it."""
        log = self.home / f"{folder}-{re.sub(r'[^a-z]+', '-', words)[:60]}.log"
        split = json.loads(words) if words.startswith("[") else words.split()
        return self._starter.start(log, *split, folder=self.home / folder, release=release)

    def type(self, folder: str, words: str) -> str:
        """Type a command that ends by itself; return what it printed."""
        command = self.start(folder, words)
        code, printed = command.wait(), command.log.read_text()
        assert code == 0, f"{folder}$ colonnade {words}\n{printed[-2000:]}"
        return printed

    def tables(self, month: str, rows: int, seed: int) -> None:
        draw = np.random.default_rng(seed)
        x, ids = draw.normal(size=(rows, 4)), [f"{month}{number}" for number in range(rows)]
        for place, name in enumerate(("bank", "shop", "insurer", "clinic")):
            columns = {"client": ids, f"{name}-1": x[:, place], f"{name}-2": x[:, place] ** 2}
            polars.DataFrame(columns).write_csv(self.home / name / "data" / f"{month}.csv")
        labels = (x[:, 0] + x[:, 1] > 0).astype(int)
        polars.DataFrame({"client": ids, "default": labels}).write_csv(self.home / "server" / "data" / f"{month}.csv")

    def make_server(self, month: str, parties: tuple[str, ...], updates: int) -> None:
        settings = SETTINGS | {"train.updates": updates, "predict.http": f"127.0.0.1:{self.ports[1]}"}
        chosen = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        own = ["--data", f"data/{month}.csv", "--id", "client", "--label", "default", "--stay"]
        place = ["--dir", month, "--parties", ",".join(parties), "--address", f"127.0.0.1:{self.ports[0]}"]
        self.type("server", json.dumps(["init", "server", *place, *own, *chosen]))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def said(command: Command, words: str, times: int = 1) -> None:
    """Wait until a command has said this so often."""
    end = time.monotonic() + PATIENCE_S
    while len(re.findall(words, command.log.read_text() if command.log.exists() else "")) < times:
        assert time.monotonic() < end, f"not said: {words}\n{command.log.read_text()[-3000:]}"
        assert command.code is None, f"ended before it said: {words}\n{command.log.read_text()[-3000:]}"
        time.sleep(0.05)


@pytest.fixture
def operators(tmp_path: Path) -> Iterator[Operators]:
    starter = Commands()
    yield Operators(tmp_path, starter)
    starter.close()


def test_a_federation_grows_old(operators: Operators) -> None:
    typed = operators.type
    operators.tables("may", 120, 1)
    operators.make_server("may", MAY, updates=1500)
    typed("server", "invite bank shop insurer --config may/server.toml")
    for name in MAY:
        typed(name, f"accept ../server/may/{name}.invitation --data data/may.csv --id client --stay")
    requests = " ".join(f"../{name}/{name}.request" for name in MAY)
    typed("server", f"admit {requests} --config may/server.toml")
    for name in MAY:
        typed(name, f"accept ../server/may/{name}.answer")
    align(operators, MAY, "may/server.toml", "")

    # May: all certificates are renewed during the training, one after the other.
    server = operators.start("server", "train may/server.toml --out runs/may")
    parties = {name: operators.start(name, f"train {name}.toml --out runs/may") for name in MAY}
    for name in MAY:
        said(parties[name], "joined peer=server")
    os.kill(parties["shop"].pid, signal.SIGSTOP)  # the training soon waits for it, and does not end meanwhile
    for name in ("server", "bank", "insurer", "shop"):
        if name == "shop":
            os.kill(parties["insurer"].pid, signal.SIGSTOP)
            os.kill(parties["shop"].pid, signal.SIGCONT)
        typed("server", f"certs renew {name}")
        typed("server", "admit --config may/server.toml")  # writes the answers again, with the new list
        for party in MAY:
            typed(party, f"accept ../server/may/{party}.answer")
        for one in (server, *parties.values()):
            os.kill(one.pid, signal.SIGHUP)
        said(server if name == "server" else parties[name], "certificate renewed")
        said(server, f"members changed renewed={name}")

    # The bank restarts, with its renewed certificate, as another release.
    assert parties["bank"].stop() in (0, 143)
    parties["bank"] = operators.start("bank", "train bank.toml --out runs/may", release="0.9.9")
    said(parties["bank"], "continuing")
    said(parties["bank"], "joined peer=server", 2)
    os.kill(parties["insurer"].pid, signal.SIGCONT)

    # The insurer leaves: it is refused, and the others train on.
    typed("server", "certs revoke insurer")
    os.kill(server.pid, signal.SIGHUP)
    assert parties["insurer"].wait() == 2
    assert "the certificate of 'insurer' was revoked" in parties["insurer"].log.read_text()
    said(server, "ended status=finished")
    summary = json.loads((operators.home / "server" / "runs" / "may" / "summary.json").read_text())
    assert summary["updates"] == 1500
    assert summary["messages_given_up"] == 0, "no conversation had to restart"
    for one in (server, parties["bank"], parties["shop"]):
        said(one, "predicting")
        assert one.stop() in (0, 143)

    # June: new rows, the insurer is gone, a clinic is new.
    operators.tables("june", 150, 2)
    operators.make_server("june", JUNE, updates=40)
    typed("server", "invite clinic --config june/server.toml")
    typed("clinic", "accept ../server/june/clinic.invitation --data data/june.csv --id client --stay")
    typed("server", "admit ../clinic/clinic.request --config june/server.toml")
    for name in JUNE:
        typed(name, f"accept ../server/june/{name}.answer")
    now = f""" --set network.parties={json.dumps(JUNE, separators=(",", ":"))} --set train.updates=40"""
    align(operators, JUNE, "june/server.toml", now + " --set party.data=data/june.csv")
    server = operators.start("server", "train june/server.toml --out runs/june --continue runs/may")
    again = {
        name: operators.start(
            name, f"train {name}.toml --out runs/june --continue runs/may{now} --set party.data=data/june.csv"
        )
        for name in ("bank", "shop")
    }
    again["clinic"] = operators.start("clinic", "train clinic.toml --out runs/june")
    said(server, "ended status=finished")
    rows = [json.loads(line) for line in (operators.home / "server/runs/june/metrics.jsonl").read_text().splitlines()]
    whole = next(row for row in rows if not row["missing"])
    assert whole["accuracy"] > 0.7, "June begins with what May has learned"

    # Predictions, with all three parties.
    for one in (server, *again.values()):
        said(one, "predicting")
    for one in again.values():
        said(one, "joined peer=server", 2)
    printed = typed(
        "server",
        "predict june/server.toml --run runs/june --ids data/june.csv --column client --out scores.csv",
    )
    assert "150 ids: answered by bank, shop, clinic" in printed
    scores = polars.read_csv(operators.home / "server" / "scores.csv")
    truth = polars.read_csv(operators.home / "server" / "data" / "june.csv")
    assert (scores["prediction"] == truth["default"]).mean() > 0.8

    # The audit log has it all, and its chain is whole.
    audit = typed("server", "audit show runs/may --last 0")
    for words in ("members changed", "renewed=bank", "removed=insurer", "was revoked"):
        assert words in audit
    assert "Whole" in typed("server", "audit verify runs/may")
    for one in (server, *again.values()):
        assert one.stop() in (0, 143)


def align(operators: Operators, parties: tuple[str, ...], config: str, more: str) -> None:
    """Each member aligns with its own config."""
    running = [operators.start("server", f"align {config}")]
    for name in parties:
        own = "" if name == "clinic" else more
        running.append(operators.start(name, f"align {name}.toml --party {name}{own}"))
    for one in running:
        assert one.wait() == 0, one.log.read_text()[-2000:]
