"""A privacy budget that runs out over the network, with kills and restarts in between: never one upload too many."""

import asyncio
import io
import json
import os
import signal
import threading

import pytest

from colonnade.algorithms.leaving import Withdrawn
from colonnade.algorithms.vafl.messages import Embeddings
from colonnade.config.resolve import federation
from colonnade.config.schema import from_dict, read_toml
from colonnade.data import load, split
from colonnade.deployment.party_training import training_party
from colonnade.deployment.terms import shared_part
from colonnade.deployment.up import prepare_up
from colonnade.drivers.ledger_file import LedgerFile, read_ledger
from colonnade.drivers.processes.journal import read_journal
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.wire import End
from colonnade.privacy.gaussian import epsilon_of
from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import CheckpointError
from colonnade.protocol.events import Received
from colonnade.protocol.messages import EvaluationReply

DELTA = 1e-5
BUDGET = {"epsilon": 200.0, "delta": DELTA}  # μ = 16.3: about 1,660 rows at 0.4 each
TABLES = {
    "model": {"party": "linear", "embedding": 3, "server": "linear"},
    "protocol": {"name": "vafl", "table": "zeros"},
    "train": {"batch_size": 64, "epochs": 12, "eval_every": "3 epochs", "checkpoint_every": "1000 epochs"},
    "privacy": {"mechanism": "output", "clip": 1.0, "noise": 5.0},
    "party": {"budgets": {"party-2": BUDGET}},
    "network": {"checkpoint_s": 1e6, "max_log_mb": 1000},
}
NAMES = ("party-1", "party-2")


@pytest.fixture(scope="module")
def data():
    return split(load("breast-cancer"), parties=2)


class Killed(BaseException):
    """In the middle of a job: what it has written stays, its result is lost."""


class Federation:
    """Nodes and a post office; party-2 is killed repeatedly, each time after this many lines of its ledger."""

    def __init__(self, data, folder, tools, kill_after=()):
        self.data, self.folder, self.tools, self.kill_after = data, folder, tools, list(kill_after)
        self.post, self.received, self.kills = tools.Post(), [], 0

    def role(self, name):
        setting = federation(from_dict(TABLES), self.data)
        self.payloads = setting.method.payloads
        role = next(role for role in setting.roles() if role.name == name)
        if name == "server":
            handle = role.handle

            def watched(event, now):
                if isinstance(event, Received) and event.sender == "party-2":
                    self.received.append(event.message)
                return handle(event, now)

            role.handle = watched
        else:
            role.guard.keep(LedgerFile(self.folder / name / "ledger.jsonl", threading.Lock()))
        return role

    def start(self, name):
        role = self.role(name)
        peers = NAMES if name == "server" else ("server",)
        node = self.tools.make_node(role, self.payloads, self.folder / name, peers)
        if name == "party-2":
            self.lay_trap(role, node)
        self.post.nodes[name] = node
        node.open()

    def lay_trap(self, role, node):
        compute = role.compute

        def trapped(job):
            result = compute(job)
            lines = int(role.guard.ledger.head.partition(":")[0])
            if self.kill_after and lines >= self.kill_after[0]:
                self.kill_after.pop(0)
                node.jobs.close()  # its line is written, its result is not
                node.dead = True
            return result

        node.jobs._compute, node.dead = trapped, False

    async def run(self):
        for name in ("server", *NAMES):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
            self.start(name)
        for name in NAMES:
            self.post.meet(name)
        server = self.post.nodes["server"]
        while not server.finished:
            self.post.carry_all()
            if self.post.nodes["party-2"].dead:
                self.restart()
            for node in self.post.nodes.values():
                assert node.error is None, node.error
            await asyncio.sleep(0)
        for node in self.post.nodes.values():
            node.close()
        return self

    def restart(self):
        old = self.post.nodes["party-2"]
        self.tools.kill(old)
        old.role.guard.ledger.close()
        self.kills += 1
        self.start("party-2")
        assert not self.post.meet("party-2"), "it continues its conversation"

    def uploads(self):
        return [message for message in self.received if isinstance(message, Embeddings | EvaluationReply)]


def go(data, folder, tools, kill_after=()):
    return asyncio.run(asyncio.wait_for(Federation(data, folder, tools, kill_after).run(), 120))


def check(found, folder):
    """Compare the received messages with the ledger and the budget."""
    _, lines, account = read_ledger(folder / "party-2" / "ledger.jsonl")
    uploads = found.uploads()
    rows = sum(len(message.values) for message in uploads)
    assert epsilon_of(0.4 * rows**0.5, DELTA) <= epsilon_of(account.mu, DELTA) <= BUDGET["epsilon"]
    # A kill costs the line of the job on the lane and of one beside it. A withdrawal costs that of a running job.
    assert len(uploads) + found.kills <= len(lines) <= len(uploads) + 2 * found.kills + 1
    server = found.post.nodes["server"].role
    withdrawn = server.state.withdrawn
    assert list(withdrawn) == ["party-2"] and "its privacy budget does not allow another upload" in withdrawn["party-2"]
    assert sum(isinstance(message, Withdrawn) for message in found.received) == 1
    assert isinstance(found.received[-1], Withdrawn), "nothing comes after it"
    assert server.evaluation.missing == ["party-2"]
    return len(uploads), 0.4 * rows**0.5


def test_a_budget_runs_out_calmly(data, tmp_path, tools):
    uploads, mu = check(go(data, tmp_path, tools), tmp_path)
    assert uploads > 10 and epsilon_of(mu + 2, DELTA) > BUDGET["epsilon"], "it was used up"


def test_kills_between_the_line_and_the_message_cost_releases_and_never_add_one(data, tmp_path, tools):
    calm, _ = check(go(data, tmp_path / "calm", tools), tmp_path / "calm")
    found = go(data, tmp_path / "killed", tools, kill_after=(2, 5, 6, 15))
    killed, _ = check(found, tmp_path / "killed")
    assert found.kills == 4 and killed < calm


def test_a_ledger_that_lost_what_the_log_knows_of_is_refused(data, tmp_path, tools):
    """No checkpoint was ever made: the receipts in the log show the loss."""

    async def scene():
        found = Federation(data, tmp_path, tools)
        found.start("server")
        found.start("party-2")
        found.post.meet("party-2")
        while len(found.received) < 4:
            found.post.carry_all()
            await asyncio.sleep(0)
        node = found.post.nodes["party-2"]
        tools.kill(node)
        node.role.guard.ledger.close()
        path = tmp_path / "party-2" / "ledger.jsonl"
        whole = path.read_text()
        path.write_text("".join(whole.splitlines(keepends=True)[:2]))
        with pytest.raises(
            CheckpointError, match=r"ledger.jsonl: ends with line 2, but line \d was written: the file was rolled back"
        ):
            found.start("party-2")
        os.close(found.post.nodes["party-2"]._lock)  # its process ends
        found.post.nodes["party-2"].role.guard.ledger.close()
        path.write_text(whole)
        found.start("party-2")
        assert not found.post.meet("party-2")
        for other in found.post.nodes.values():
            other.close()

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_fresh_noise_after_a_restart(data, tmp_path, tools):
    """The interrupted job runs again under another key."""
    seeds = []
    for _ in range(2):
        role = Federation(data, tmp_path, tools).role("party-2")
        role.guard.key.renew(os.urandom(32))
        seeds.append(role.guard.key.seed("noise", 1))
        role.guard.ledger.close()
    assert seeds[0] != seeds[1]


@pytest.mark.parametrize("on", [True, False])
def test_a_party_that_is_accounted_tells_its_account_and_no_digest(on, data, tmp_path):
    """With the sha256 of unperturbed weights the server could check any guess about the rows."""
    tables = TABLES if on else {key: value for key, value in TABLES.items() if key not in ("privacy", "party")}
    up = prepare_up(from_dict(tables), tmp_path / "run", data)
    up.write_config("party-2", "127.0.0.1:1")
    config = from_dict(read_toml(tmp_path / "run" / "nodes" / "party-2" / "config.toml"))
    assert (config.party.budget == from_dict(TABLES).party.budgets["party-2"]) is on
    (tmp_path / "out").mkdir()
    process = training_party(config, "party-2", tmp_path / "out", Log("party-2", stream=io.StringIO()))
    bye = process.application.farewell(End("finished"), None)
    assert (bye.weights == "") is on and (bye.privacy is not None) is on
    said = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert len(said["weights"]) == 64, "its own folder may know"
    assert (said["privacy"] is not None) is on
    shared = shared_part(config, "")
    assert ("privacy" in shared) is on and "budget" not in json.dumps(shared)


@pytest.mark.slow
def test_real_processes_killed_with_signal_9(data, tmp_path):
    # Every update waits for both parties, so the other is not done before the killed one has restarted.
    protocol = {"name": "t-sync", "t": 2, "table": "zeros"}
    network = TABLES["network"] | {"lost_after_s": 300.0}
    tables = TABLES | {"protocol": protocol, "network": network}
    up = prepare_up(from_dict(tables), tmp_path / "run", data)
    ledger = tmp_path / "run" / "nodes" / "party-2" / "run" / "ledger.jsonl"
    kills = []

    def lines():
        return ledger.read_bytes().count(b"\n") if ledger.exists() else 0

    async def killer():
        for after in (4, 9, 14):
            while lines() < after:
                await asyncio.sleep(0.002)
            child = up.children["party-2"].process
            os.kill(child.pid, signal.SIGKILL)
            kills.append(after)
            await child.wait()

    async def scene():
        killing = asyncio.ensure_future(killer())
        try:
            return await asyncio.wait_for(up.run(), 300)
        finally:
            killing.cancel()

    summary = asyncio.run(scene())
    assert len(kills) == 3 and list(summary["privacy"]["withdrawn"]) == ["party-2"]
    _, releases, account = read_ledger(ledger)
    codec = Codec(federation(from_dict(tables), data).method.payloads)
    _, records, *_ = read_journal(tmp_path / "run" / "nodes" / "server" / "run" / "state" / "journal-0.log", codec)
    heard = [record.event.message for record in records if getattr(record.event, "sender", "") == "party-2"]
    uploads = [message for message in heard if isinstance(message, Embeddings | EvaluationReply)]
    assert isinstance(heard[-1], Withdrawn)
    assert len(uploads) <= len(releases) <= len(uploads) + 2 * len(kills) + 1
    assert sum(len(message.values) for message in uploads) <= sum(line["rows"] for line in releases)
    assert epsilon_of(account.mu, DELTA) <= BUDGET["epsilon"]
    assert summary["privacy"]["parties"]["party-2"]["mu"] == pytest.approx(account.mu)
    assert summary["weights_sha256"] is None, "a digest of unperturbed weights is not sent"
    assert "party-2 withdrew: its privacy budget does not allow another upload" in summary["note"]
    print(f"{len(uploads)} uploads, {len(releases)} lines, {len(kills)} kills, ε = {epsilon_of(account.mu, DELTA):.2f}")
