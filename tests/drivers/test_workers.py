"""Workers compute beside the clock: for every method, the same trace and weights as with one thread."""

import asyncio
import io
import json
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import colonnade
from colonnade.algorithms import METHODS
from colonnade.algorithms.vafl.messages import Embed, Refine
from colonnade.api import Result
from colonnade.config.schema import ResourcesConfig, RoleResources, from_dict, read_toml
from colonnade.deployment.party_side import PartySide
from colonnade.deployment.server_side import ServerSide
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.simulator import Simulator
from colonnade.experiments import run as run_module
from colonnade.experiments.run import Run, prepare, reopen
from colonnade.protocol.errors import ConfigError, TrainingDiverged, WorkerLost
from colonnade.results.live import read_live

SAME = ("status", "trace_sha256", "weights_sha256", "updates", "value", "loss", "clock_s", "bytes_up", "bytes_down")
AVERAGED = {"party": "polynomial:1", "embedding": 4, "aggregate": "mean"}
MODELS = dict.fromkeys(("fedvs", "wait", "ignore", "wait-dp"), AVERAGED)
CLOCK = {
    "compute": {"kind": "lognormal", "mean_s": 0.05},
    "network": {"latency_s": 0.01, "bandwidth_mbps": 50.0},
    "faults": [
        {"party": "party-2", "kind": "crash", "at_s": 0.31, "until_s": 0.6},
        {"party": "party-1", "kind": "duplicate", "rate": 0.2},
    ],
}


@pytest.fixture(scope="module")
def data() -> Any:
    draw = np.random.default_rng(0)
    x = draw.random((120, 12)).astype(np.float32)
    return colonnade.split(colonnade.from_arrays(x, (x.sum(1) > 6).astype(np.int64)), parties=4, scale="minmax")


def run_of(data: Any, method: str, workers: int | str, **changes: Any) -> Run:
    tables = {
        "protocol": {"name": method},
        "model": MODELS.get(method, {"party": "mlp:6", "embedding": 3}),
        "clock": {} if METHODS[method].joint is not None else CLOCK,
        "train": {"batch_size": 16, "updates": 40, "eval_every": 10, "learning_rate": 0.1},
    }
    if METHODS[method].capabilities.party_labels:
        tables["model"] = {}
    return prepare(from_dict(tables | changes), data, workers=workers)


@pytest.mark.parametrize("method", METHODS)
def test_two_workers_give_the_trace_and_the_weights_of_one(method: str, data: Any) -> None:
    one, two = (run_of(data, method, workers).execute() for workers in (1, 2))
    assert {key: two[key] for key in SAME} == {key: one[key] for key in SAME}
    assert one["updates"] > 0


def test_layers_that_draw_do_not_disturb_each_other(data: Any) -> None:
    import torch
    from torch import nn

    def noisy(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, 64), nn.Dropout(0.5), nn.Linear(64, outputs))

    before = torch.get_rng_state()
    config = run_of(data, "vafl", 1).federation.config
    config = replace(config, model=replace(config.model, party=[noisy] * 4))
    one, two = (prepare(config, data, workers=workers).execute() for workers in (1, 3))
    assert two["weights_sha256"] == one["weights_sha256"]
    assert torch.equal(torch.get_rng_state(), before)


def meeting(run: Run, kind: type[Any] = object) -> list[Any]:
    """Two parties' first jobs of a kind meet at a barrier that one thread cannot pass; return those that passed."""
    barrier, met = Barrier(2, timeout=60), []
    for node in run.simulator.nodes[1:3]:
        compute, first = node.role.compute, [True]

        def meet(job: Any, compute: Any = compute, first: list[bool] = first) -> Any:
            if isinstance(job, kind) and first and first.pop():
                barrier.wait()
                met.append(job)
            return compute(job)

        node.role.compute = meet  # type: ignore[method-assign]
    return met


def test_workers_really_compute_at_the_same_time(data: Any) -> None:
    run = run_of(data, "sync", 2, clock={})
    met = meeting(run)
    assert run.execute()["status"] == "finished" and len(met) == 2


def test_a_gradient_that_is_only_learnt_from_is_not_waited_for(data: Any) -> None:
    """The work takes no time on the clock, and one party's comes before the other's."""
    run = run_of(data, "sync", 2, clock={"network": {"latency_s": 0.01, "bandwidth_mbps": 1.0}})
    met = meeting(run, Refine)
    assert run.execute()["status"] == "finished" and len(met) == 2


@pytest.mark.parametrize("method", ["vafl", "flex"])
def test_what_may_be_withheld_is_waited_for(method: str, data: Any) -> None:
    privacy = {"mechanism": "output", "clip": 1.0, "noise": 0.5}
    budgets = {"party-3": {"epsilon": 40.0, "delta": 1e-3}}  # spent before the end
    one, two = (
        run_of(data, method, workers, privacy=privacy, party={"budgets": budgets}).execute() for workers in (1, 2)
    )
    assert {key: two[key] for key in (*SAME, "note")} == {key: one[key] for key in (*SAME, "note")}
    assert "party-3 withdrew" in one["note"]


def test_a_run_is_saved_and_gone_on_with(data: Any, tmp_path: Any) -> None:
    whole = run_of(data, "vafl", 1).execute()
    tables = run_of(data, "vafl", 2).federation.config
    run = prepare(tables, data, tmp_path / "run", workers=2)
    with run._with_workers():
        run.simulator.advance(120)
        assert run.folder is not None
        run.folder.save_checkpoint(run._checkpoint())
    again = reopen(tables, tmp_path / "run", lambda config: data, workers=2).execute()
    assert (again["trace_sha256"], again["weights_sha256"]) == (whole["trace_sha256"], whole["weights_sha256"])


@pytest.mark.parametrize("kind", [Embed, Refine])
def test_what_fails_on_a_worker_fails_the_run(kind: type[Any], data: Any) -> None:
    run = run_of(data, "vafl", 2)
    compute = run.simulator.nodes[1].role.compute

    def fail(job: Any) -> Any:
        if isinstance(job, kind):
            raise TrainingDiverged("party-1: its steps are no numbers")
        return compute(job)

    run.simulator.nodes[1].role.compute = fail  # type: ignore[method-assign]
    summary = run.execute()
    assert summary["status"] == "diverged" and "no numbers" in summary["note"]


@pytest.mark.parametrize("workers", [0, -1])
def test_less_than_one_worker_is_refused(workers: int, data: Any) -> None:
    with pytest.raises(ConfigError, match="--workers"):
        run_of(data, "vafl", workers)


@pytest.fixture(scope="module")
def cluster() -> Any:
    """A Ray of our own on loopback, with two CPUs."""
    pytest.importorskip("ray")
    from colonnade.drivers.ray.cluster import connected

    with connected(cpus=2):
        yield


RAY_METHODS = ["vafl"]  # the others are slow
SLOW = [name for name in METHODS if name not in ("vafl", "wait-dp")]  # wait-dp: its ledgers are written here


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name in RAY_METHODS else pytest.mark.slow) for name in RAY_METHODS + SLOW]
)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_ray_gives_the_trace_the_weights_and_the_predictions_of_one_worker(
    method: str, data: Any, cluster: Any
) -> None:
    runs = [run_of(data, method, workers) for workers in (1, "ray")]
    one, away = (Result(run, run.execute()) for run in runs)
    assert {key: away.summary[key] for key in SAME} == {key: one.summary[key] for key in SAME}
    rows = np.random.default_rng(1).random((9, 12)).astype(np.float32)
    np.testing.assert_array_equal(away.predict(rows), one.predict(rows))


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_run_with_secret_draws_is_gone_on_with_on_ray(data: Any, cluster: Any, tmp_path: Any) -> None:
    """The key is in no checkpoint, so a worker that takes over a role must give it one."""
    whole = run_of(data, "cascaded", 1).execute()
    config = run_of(data, "cascaded", 1).federation.config
    run = prepare(config, data, tmp_path / "run")
    run.simulator.advance(120)
    assert run.folder is not None
    run.folder.save_checkpoint(run._checkpoint())
    again = reopen(config, tmp_path / "run", lambda config: data, workers="ray").execute()
    assert {key: again[key] for key in SAME} == {key: whole[key] for key in SAME}


NOTHING = RoleResources(cpus=0)  # the workers of the tests above hold all CPUs
ACTORS = {
    "clock": {},
    "predict": {"http": "127.0.0.1:0"},
    "resources": {"server": {"cpus": 0}, "party": {"cpus": 0}},
}


# So that no party is left out: actors start one after the other, and an asynchronous method begins with the first.
ALL_THERE = {name: {"on_lost": "wait", "max_delay": 5} for name in ("vafl", "cascaded", "zoo", "frozen")} | {
    "t-sync": {"on_lost": "wait", "t": 4},
    "flex": {"on_lost": "wait"},
    "adaptive-flex": {"on_lost": "wait"},
    "ignore": {"fastest": 4},
    "wait-dp": {"epsilon": 1e14},  # and so little noise that predictions can be compared
}


def trained_by_actors(run: Run, out: Path, predicted: Any) -> tuple[dict[str, Any], Any]:
    """The summary, and the federation's predictions from the folders that the actors left."""
    from colonnade.deployment.on_ray import FederationOnRay
    from colonnade.deployment.up import prepare_up

    setting, nodes = run.federation, out / "nodes"
    summary = asyncio.run(prepare_up(setting.config, out, setting.data, kind=FederationOnRay).run())
    config_of = lambda name: from_dict(read_toml(nodes / name / "config.toml"))  # noqa: E731
    log = Log("a role", stream=io.StringIO())

    def party(name: str, address: str) -> PartySide:
        config = config_of(name)
        config = replace(config, network=replace(config.network, address=address))
        return PartySide(config, name, nodes / name / "run", log)

    server = lambda: ServerSide(config_of("server"), nodes / "server" / "run", log)  # noqa: E731
    return summary, predicted(setting, server, party)


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.joint is None])
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_federation_of_actors_predicts_what_it_has_learnt(
    method: str, data: Any, cluster: Any, tmp_path: Any, predicted: Any
) -> None:
    run = run_of(data, method, 1, protocol={"name": method, **ALL_THERE.get(method, {})}, **ACTORS)
    summary, found = trained_by_actors(run, tmp_path / "run", predicted)
    assert (summary["driver"], summary["status"]) == ("ray", "finished")
    if METHODS[method].capabilities.party_labels and not run.federation.options.synchronous:
        return  # the parties take steps during the last evaluation and until they hear of the end
    loss = -np.log(found[np.arange(len(found)), data.y_test[data.validation :]]).mean()
    assert loss == pytest.approx(summary["loss"], rel=1e-2 if method == "fedvs" else 1e-5)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_federation_of_actors_ends_and_predicts_as_the_simulation_does(
    data: Any, cluster: Any, tmp_path: Any, predicted: Any, judged: Any
) -> None:
    from colonnade.deployment.on_ray import FederationOnRay
    from colonnade.deployment.up import reopen_up

    draw = np.random.default_rng(0)
    x = draw.random((64, 4)).astype(np.float32)
    pair = colonnade.split(colonnade.from_arrays(x, (x.sum(1) > 2).astype(np.int64)), parties=2, scale="minmax")
    simulated = run_of(pair, "sync", 1, **ACTORS)
    config, out = simulated.federation.config, tmp_path / "run"
    summary, found = trained_by_actors(simulated, out, predicted)
    live = read_live(out)
    assert live["summary"]["driver"] == "ray" and live["status"]["state"] == "finished"
    assert live["timeline"]["roles"] == ["server", *simulated.federation.plan.parties]
    assert (summary["driver"], summary["status"], summary["parties"]) == ("ray", "finished", 2)
    assert summary["weights_sha256"] == simulated.execute()["weights_sha256"]
    np.testing.assert_allclose(found, judged[-1], rtol=1e-6)  # test rows are judged in other pieces
    assert json.loads((out / "summary.json").read_text()) == summary and (out / "metrics.jsonl").is_file()
    timeline = json.loads((out / "timeline.json").read_text())
    assert timeline["roles"] == ["server", "party-1", "party-2"] and all(map(any, timeline["busy"]))
    for refused, words in (
        (ResourcesConfig(RoleResources(gpus=1)), "server could never start"),
        (ResourcesConfig(party=RoleResources(cpus=1)), "3 roles run at the same time and need 2.1"),
        (ResourcesConfig(parties={"bank": NOTHING}), "no such party"),
    ):
        with pytest.raises(ConfigError, match=words):
            reopen_up(replace(config, resources=refused), out, kind=FederationOnRay)


@pytest.mark.parametrize("with_folder", [True, False], ids=["folder", "no-folder"])
def test_lost_workers_cost_the_way_back_to_the_checkpoint_and_nothing_else(
    with_folder: bool, data: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(run_module, "SLICE_EVENTS", 25)
    config = run_of(data, "vafl", 1).federation.config
    config = replace(config, train=replace(config.train, checkpoint_every=10))
    whole = prepare(config, data)
    calm = whole.execute()
    lost: list[int] = []
    advance = Simulator.advance

    def lose(simulator: Simulator, *slice_: Any) -> bool:
        if simulator.trace.events > 70 * (len(lost) + 1) and len(lost) < 2:
            lost.append(simulator.trace.events)
            raise WorkerLost("gone")
        return advance(simulator, *slice_)

    monkeypatch.setattr(Simulator, "advance", lose)
    run = prepare(config, data, tmp_path / "run" if with_folder else None)
    again = run.execute()
    assert len(lost) == 2 and {key: again[key] for key in SAME} == {key: calm[key] for key in SAME}
    assert [row["update"] for row in run.rows] == [row["update"] for row in whole.rows]
    assert "workers were lost 2 times" in again["note"]


def test_workers_that_are_lost_again_and_again_end_the_run(data: Any, monkeypatch: Any) -> None:
    def lose(simulator: Simulator, *slice_: Any) -> bool:
        raise WorkerLost("gone")

    monkeypatch.setattr(Simulator, "advance", lose)
    with pytest.raises(WorkerLost, match="gone"):
        run_of(data, "vafl", 1).execute()
