"""Flex-VFL over the network: parties with different models and optimisers, one slow party, one killed party.

No wall-clock thresholds: rounds are counted. On a busy machine a bell may ring before any step is done, so nothing here
depends on how many steps fit before it.
"""

import asyncio
import io
import json
import os
import shutil
import signal
import sys

import pytest

from colonnade.algorithms.flex.party import LOCAL
from colonnade.config.resolve import federation
from colonnade.config.schema import from_dict
from colonnade.data import load, party_share, save_share, server_share, split
from colonnade.deployment.party_training import training_party
from colonnade.deployment.server_training import training_server
from colonnade.deployment.up import prepare_up
from colonnade.drivers.processes import dial
from colonnade.drivers.processes.certificates import throw_away
from colonnade.drivers.processes.journal import read_journal
from colonnade.drivers.processes.logs import Log
from colonnade.experiments.run import prepare
from colonnade.protocol.codec import Codec

from ...starting import fork_member

PATIENCE_S = 120.0
QUARTERS = ("party-1", "party-2", "party-3", "party-4")


@pytest.fixture(autouse=True)
def at_any_load(monkeypatch):
    monkeypatch.setattr(dial, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr("colonnade.algorithms.flex.server.TRIES", 10**6)  # test_flex_refuses.py has that refusal


@pytest.fixture(scope="module")
def data():
    """A quarter of an image for each of four parties."""
    return split(load("digits"), parties=4, how="quarters")


@pytest.fixture(scope="module")
def shares(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shares")
    throw_away(QUARTERS, folder / "certificates")
    save_share(server_share(data), folder / "server.safetensors")
    for index, name in enumerate(QUARTERS):
        save_share(party_share(data, index), folder / f"{name}.safetensors")
    return folder


def config_of(name, shares, common, address="127.0.0.1:0", **own):
    certificates = shares / "certificates"
    section = "server" if name == "server" else "party"
    network = {
        "parties": list(QUARTERS), "address": address, "certificate": str(certificates / f"{name}.pem"),
        "key": str(certificates / f"{name}.key"), "authority": str(certificates / "ca.pem"),
        "members": str(certificates / "members.toml"), "admit_late": False,
    }  # fmt: skip
    return from_dict(common | {"network": network, section: {"data": str(shares / f"{name}.safetensors")} | own})


def over_the_network(shares, folder, common, tools, own=None, roles=None):
    """All processes in one event loop; return the server's summary. Each role goes into `roles` when it is made."""
    own, roles = own or {}, {} if roles is None else roles

    async def run():
        server = training_server(config_of("server", shares, common), folder / "server", Log("s", stream=io.StringIO()))
        roles["server"] = server.node.role
        serving = asyncio.ensure_future(server.run())
        address = folder / "server" / "address"
        await tools.until(lambda: address.is_file() or serving.done(), "the address")
        joining = []
        for name in QUARTERS:
            config = config_of(name, shares, common, address.read_text(), **own.get(name, {}))
            party = training_party(config, name, folder / name, Log(name, stream=io.StringIO()))
            roles[name] = party.node.role
            joining.append(asyncio.ensure_future(party.run()))
        summary = await serving
        ends = await asyncio.gather(*joining)
        assert [end.status for end in ends] == ["finished"] * len(QUARTERS)
        return summary

    return asyncio.run(asyncio.wait_for(run(), PATIENCE_S)), roles


MOMENTUM = {"name": "momentum", "momentum": 0.9}


def mixed(labels):
    """Four kinds of models. They learn at any load: every role takes one or two steps in each round, late or not.

    At this rate one step is enough, and two are not too many."""
    return {
        "protocol": {"name": "flex", "timeout_s": 0.015, "labels": labels, "max_steps": 2, "on_lost": "wait"},
        "model": {"party": ["lstm", "mlp:16", "cnn", "linear"], "embedding": 8, "server": "linear"},
        "train": {"batch_size": 64, "epochs": 4, "learning_rate": 0.2, "eval_every": "1 epoch"},
    }


@pytest.mark.parametrize("labels", ["server", "shared"])
def test_momentum_beside_sgd_and_an_lstm_beside_a_cnn_on_both_drivers(labels, data, shares, tmp_path, tools):
    """Both `labels` modes: party 1 (LSTM) has local momentum, the others (MLP, CNN, linear) plain SGD; both learn."""
    common = mixed(labels)
    own = {"party-1": {"optimiser": MOMENTUM}}
    summary, roles = over_the_network(shares, tmp_path, common, tools, own)
    party_1, *others = (roles[name] for name in QUARTERS)
    assert party_1.local.rule.momentum == 0.9 and all(role.local.rule.momentum == 0.0 for role in others)

    train = common["train"] | {"optimiser": {"server": "sgd", "party": [MOMENTUM, "sgd", "sgd", "sgd"]}}
    clock = {"compute": {"mean_s": 0.005}}
    simulated = prepare(from_dict(common | {"train": train, "clock": clock}), data).execute()
    for found in (summary, simulated):
        assert found["status"] == "finished" and found["epochs"] >= 4
        assert found["accuracy"] > 0.4, "ten classes"
        assert found["method"]["local_steps"]["party-1"] >= 1
    assert summary["updates"] == simulated["updates"] == 84, "four epochs of 1,294 rows"
    rows = [json.loads(line) for line in (tmp_path / "server" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["accuracy"] < 0.35 and rows[-1]["loss"] < rows[0]["loss"] and rows[-1]["missing"] == []


HELD = """
import time
from torch import nn

rounds = None  # of the server, so far

def hold(gradient):
    # other threads run meanwhile; the last step ends with the training
    end = min(rounds() + 3, 40)
    while rounds() < end:
        time.sleep(0.001)

class Held(nn.Module):
    # its backward pass lasts for three rounds of the server

    def __init__(self, inputs, outputs):
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)

    def forward(self, x):
        output = self.layer(x)
        if output.requires_grad:
            output.register_hook(hold)
        return output
"""


@pytest.mark.parametrize("labels", ["server", "shared"])
def test_rounds_do_not_wait_for_one_that_has_more_work(labels, shares, tmp_path, tools, monkeypatch):
    """Both `labels` modes: party 4's step ends three rounds after it began, so a server that waited would never finish.

    Each round has a party that takes a step in it, even if the bell rings before the step ends.
    """
    (tmp_path / "held_model.py").write_text(HELD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "held_model", raising=False)
    common = {
        "protocol": {"name": "flex", "timeout_s": 0.02, "labels": labels, "max_steps": 2},
        "model": {"party": ["linear"] * 3 + ["held_model:Held"], "embedding": 4, "server": "linear"},
        "train": {"batch_size": 64, "updates": 40, "learning_rate": 0.1, "eval_every": 20},
    }
    import held_model

    roles = {}
    held_model.rounds = lambda: roles["server"].k
    summary, _ = over_the_network(shares, tmp_path, common, tools, roles=roles)
    assert summary["status"] == "finished" and summary["updates"] == 40
    *quick, slow = (roles[name] for name in QUARTERS)
    assert slow.state.late >= 1, "it missed a bell"
    assert 1 <= slow.network.steps <= 14, "one in three rounds"
    assert sum(party.network.steps for party in quick) >= 40 - 14 - len(QUARTERS), "except for the last steps"
    rows = [json.loads(line) for line in (tmp_path / "server" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["loss"] < rows[0]["loss"], "they learn meanwhile"


UP = {
    "data": {"source": "digits", "parties": 2},
    "model": {"party": "linear", "embedding": 4},
    "protocol": {"name": "flex", "timeout_s": 0.1, "max_steps": 5},
    "train": {"updates": 80, "learning_rate": 0.1, "eval_every": 3},
    "network": {"heartbeat_s": 0.1, "lost_after_s": 0.4, "admit_late": False},
}


class Killing:
    """A federation of real processes, observed through its files."""

    def __init__(self, config, out, tools):
        self.tools = tools
        self.config, self.up = config, prepare_up(config, out)
        self.setting = federation(config)
        self.out = out
        self.killed, self.missed = False, asyncio.Event()

    async def start(self, *words, **more):
        """In place of `asyncio.create_subprocess_exec`; the killed party starts again after rounds without it."""
        if self.killed:
            await self.missed.wait()
        return await fork_member(*words, **more)

    def signal(self, number, *names):
        for name in names:
            os.kill(self.up.children[name].process.pid, number)

    def rows(self):
        path = self.out / "nodes" / "server" / "run" / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def away(self):
        """The updates whose evaluation lacked party 2."""
        return [row["update"] for row in self.rows() if row["missing"] == ["party-2"]]

    def starts(self, name):
        path = self.out / "nodes" / name / "log.jsonl"
        return path.read_text().count('"dialling"') if path.is_file() else 0

    def doing(self, name):
        """What a stopped party was doing, from its log alone."""
        role = next(role for role in self.setting.roles() if role.name == name)
        copy = self.out / "copy.log"
        shutil.copyfile(self.out / "nodes" / name / "run" / "state" / "journal-0.log", copy)
        _, records, *_ = read_journal(copy, Codec(self.setting.method.payloads))
        self.tools.replay(role, records)
        return role.state.doing

    async def kill_in_local_phase(self, name):
        """Stop the party and the server and look.

        If the party is not at its local steps, let both continue a little.
        """
        for _ in range(100):
            self.signal(signal.SIGSTOP, "server", name)
            if self.doing(name) == LOCAL:
                self.killed = True
                self.signal(signal.SIGKILL, name)
                self.signal(signal.SIGCONT, "server")
                return
            self.signal(signal.SIGCONT, "server", name)
            await asyncio.sleep(0.02)
        raise AssertionError(f"{name} is never at its local steps")

    async def run(self, tools):
        running = asyncio.ensure_future(self.up.run())
        try:
            await tools.until(lambda: len(self.rows()) >= 2 or running.done(), "the first rows")
            if running.done():
                return running.result()  # or what went wrong
            await self.kill_in_local_phase("party-2")
            await tools.until(lambda: len(self.away()) >= 2 or running.done(), "rounds without it")
            assert not running.done(), "the case needs a party that comes back"
            self.signal(signal.SIGSTOP, "server")  # otherwise, on a busy machine, the run ends before the party is back
            self.missed.set()
            await tools.until(lambda: self.starts("party-2") == 2 or running.done(), "the killed one's second start")
            self.signal(signal.SIGCONT, "server")
            return await running
        finally:
            if not running.done():
                self.signal(signal.SIGCONT, "server")
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


def test_one_killed_in_its_local_phase_is_left_out_and_comes_back(tmp_path, tools, monkeypatch):
    """labels = "server", real processes: SIGKILL between Begin and bell; rounds continue without it, then with it."""
    killing = Killing(from_dict(UP), tmp_path / "run", tools)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", killing.start)
    summary = asyncio.run(asyncio.wait_for(killing.run(tools), PATIENCE_S))
    assert summary["status"] == "finished" and summary["updates"] == 80 and summary["messages_given_up"] == 0
    assert len(set(killing.away())) >= 2, "rounds went on without it"
    assert killing.rows()[-1]["missing"] == [], "it is back"
    events = [json.loads(line)["event"] for line in (tmp_path / "run/nodes/party-2/log.jsonl").read_text().splitlines()]
    assert events.count("continuing") == 1 and "conversations restart" not in " ".join(events)
    assert summary["accuracy"] > 0.6
