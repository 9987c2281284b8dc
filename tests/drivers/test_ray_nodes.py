"""A real Ray cluster of several nodes on loopback; one is lost: its raylet and workers are killed with SIGKILL."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from colonnade.config.schema import from_dict
from colonnade.experiments.run import prepare

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]

PATIENCE_S = 400.0
CONFIG = """
[data]
source = "digits"
parties = 3
[model]
party = "linear"
embedding = 4
[protocol]
name = "sync"
[train]
epochs = 200
eval_every = 20
checkpoint_every = 100
learning_rate = 0.3
"""
SOON = {  # a lost node is noticed within seconds
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 4,
}


class Nodes:
    """A head without CPUs of its own, and workers that join and leave."""

    def __init__(self):
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        cluster_utils = pytest.importorskip("ray.cluster_utils")
        head = {"num_cpus": 0, "include_dashboard": False, "node_ip_address": "127.0.0.1", "_system_config": SOON}
        self.cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        self.address = self.cluster.address
        assert self.address.startswith("127.0.0.1:")

    def add(self, cpus=2, **more):
        return self.cluster.add_node(num_cpus=cpus, node_ip_address="127.0.0.1", **more)

    def kill(self, node, workers=True):
        """The effect of a power cut; without `workers`, the workers find out by themselves."""
        raylet = node.all_processes["raylet"][0].process.pid
        pids = [raylet, *(children_of(raylet) if workers else [])]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.cluster.remove_node(node, allow_graceful=False)


def children_of(parent):
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "stat").read_text().rpartition(")")[2].split()[1] == str(parent):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.fixture
def nodes():
    made = Nodes()
    yield made
    made.cluster.shutdown()


class Command:
    """A `colonnade` process."""

    def __init__(self, folder, *arguments):
        self.said = folder / f"said-{time.monotonic_ns()}"
        with self.said.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "colonnade", *map(str, arguments)],
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "TERM": "dumb"},
            )

    def until(self, condition, what):
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, f"ended before {what}: {self.said.read_text()}"
            assert time.monotonic() < end, f"waited in vain for {what}: {self.said.read_text()}"
            time.sleep(0.05)

    def ended(self):
        self.process.wait(PATIENCE_S)
        return self.process.returncode, self.said.read_text()


@pytest.fixture
def colonnade(tmp_path, nodes):
    (tmp_path / "config.toml").write_text(CONFIG)
    started = []

    def start(*arguments):
        started.append(Command(tmp_path, *arguments, "--address", nodes.address))
        return started[-1]

    yield start
    for command in started:
        if command.process.poll() is None:
            command.process.kill()
            command.process.wait()


def rows(folder):
    path = folder / "metrics.jsonl"
    return path.read_text().count("\n") if path.is_file() else 0


def log(out, name):
    path = out / "nodes" / name / "log.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines if line.startswith("{")]


def homes(out, name):
    """The nodes that a role has lived on, in order."""
    return [line["node"] for line in log(out, name) if line["event"] == "actor"]


@pytest.mark.parametrize(("method", "workers"), [("sync", True), ("vafl", False)])
def test_a_federation_survives_the_loss_of_the_node_with_all_its_roles(method, workers, nodes, colonnade, tmp_path):
    first, out = nodes.add(), tmp_path / "run"
    setting = f"protocol.name={method}"
    command = colonnade("run", "config.toml", "--driver", "ray", "--out", out, "--set", setting)
    command.until(lambda: rows(out / "nodes" / "server" / "run") >= 3, "the first rows")
    nodes.add()
    nodes.kill(first, workers)
    code, said = command.ended()
    assert code == 0, said
    summary = json.loads((out / "summary.json").read_text())
    assert summary["status"] == "finished" and summary["driver"] == "ray" and summary["messages_given_up"] == 0
    for name in ("server", "party-1", "party-2", "party-3"):
        there = homes(out, name)
        assert len(set(there)) == 2, f"{name} lived on {there}"
        assert "continuing" in [line["event"] for line in log(out, name)]
        assert f"{name} was lost, and continues" in said
    updates = [json.loads(line)["update"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert updates == sorted(set(updates)), "a row is there twice"
    if method == "sync":
        calm = prepare(from_dict(tomllib.loads(CONFIG))).execute()
        assert summary["weights_sha256"] == calm["weights_sha256"], "the same as in the simulator, bit for bit"


def test_a_simulation_survives_the_loss_of_its_workers_and_ends_the_same(nodes, colonnade, tmp_path):
    first, out = nodes.add(), tmp_path / "run"
    nodes.add()
    command = colonnade("run", "config.toml", "--workers", "ray", "--out", out, "--set", "train.epochs=60")
    command.until(lambda: rows(out) >= 12, "rows behind the first checkpoint")
    nodes.kill(first)
    code, said = command.ended()
    assert code == 0, said
    summary = json.loads((out / "summary.json").read_text())
    tables = tomllib.loads(CONFIG)
    tables["train"]["epochs"] = 60
    run = prepare(from_dict(tables))
    calm = run.execute()
    for key in ("status", "trace_sha256", "weights_sha256", "updates", "value", "bytes_up"):
        assert summary[key] == calm[key], key
    assert "workers were lost" in summary["note"]
    assert rows(out) == len(run.rows) and "workers were lost" in said


def test_a_sweep_survives_the_loss_of_a_node(nodes, colonnade, tmp_path):
    first, out = nodes.add(cpus=1), tmp_path / "out"
    nodes.add(cpus=1)
    grid = ["--grid", "train.learning_rate=0.1,0.3", "--protocols", "sync,vafl", "--set", "train.epochs=100"]
    command = colonnade("sweep", "config.toml", *grid, "--workers", "ray", "--out", out)
    command.until(lambda: sum(rows(folder) >= 15 for folder in out.glob("*-seed0")) >= 2, "two runs under way")
    nodes.kill(first)
    code, said = command.ended()
    assert code == 0, said
    listed = json.loads((out / "comparison.json").read_text())
    assert [one["status"] for one in listed] == ["finished"] * 4, said
    assert "sync: best at train.learning_rate" in said
    for one in listed:
        tables = tomllib.loads(CONFIG)
        rate = float(one["label"].rpartition("=")[2])
        tables["train"] |= {"epochs": 100, "learning_rate": rate}
        tables["protocol"]["name"] = one["protocol"]
        assert prepare(from_dict(tables)).execute()["weights_sha256"] == one["weights_sha256"]


def test_a_role_that_waits_for_a_busy_cluster_says_so_and_comes(nodes, colonnade, tmp_path):
    nodes.add(cpus=1)
    first, second = tmp_path / "first", tmp_path / "second"
    options = ["--driver", "ray", "--set", "resources.server={cpus=1}", "--set", "resources.party={cpus=0}"]
    long = colonnade("run", "config.toml", *options, "--set", "train.epochs=20000", "--out", first)
    long.until(lambda: rows(first / "nodes" / "server" / "run") >= 2, "the first rows")
    waiting = colonnade("run", "config.toml", *options, "--set", "train.epochs=5", "--out", second)
    waiting.until(lambda: "server has not been running" in waiting.said.read_text(), "a word about waiting")
    assert "it asks for 1 CPU; the cluster has free: nothing" in waiting.said.read_text()
    long.process.send_signal(signal.SIGINT)
    assert long.ended()[0] == 130
    code, said = waiting.ended()
    assert code == 0, said


def test_nodes_with_other_versions_are_refused(nodes, colonnade, tmp_path):
    other = tmp_path / "other" / "colonnade"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text('__version__ = "0.0.9"\n')
    nodes.add()
    nodes.add(env_vars={"PYTHONPATH": str(other.parent)})
    for words in (
        ["run", "config.toml", "--driver", "ray"],
        ["run", "--workers", "ray"],
        ["compare", "--workers", "ray"],
    ):
        code, said = colonnade(*words, "--out", tmp_path / "out").ended()
        assert code == 2 and "has colonnade 0.0.9" in said and "Traceback" not in said, said
    assert not (tmp_path / "out").exists()
