"""`[diagnose]`: the numbers are right, the run is the same with them, and what cannot have them is refused."""

from math import gamma, pi, sqrt
from typing import Any

import numpy as np
import pytest
import torch

from colonnade.algorithms.prediction.predictor import TrainedRoles
from colonnade.config.schema import from_dict
from colonnade.deployment.up import prepare_up
from colonnade.experiments.diagnostics import sample_of
from colonnade.experiments.run import Run, prepare, reopen
from colonnade.protocol.errors import ConfigError

ADDED = ("training_value", "training_accuracy", "objective", "gradient_norm2", "estimate_cosine", "estimate_variance")
NETWORKS = ["sync", "swift", "flex", "cascaded", "fedvs", "wait", "centralised"]


def tables(method: str, **sections: dict[str, Any]) -> dict[str, Any]:
    base: dict[str, Any] = {
        "data": {"source": "digits-parity", "parties": 3},
        "protocol": {"name": method},
        "train": {"updates": 6, "eval_every": 3},
    }
    return base | {name: base.get(name, {}) | own for name, own in sections.items()}


def executed(found: dict[str, Any]) -> Run:
    run = prepare(from_dict(found))
    run.execute()
    return run


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines without the diagnoses and the real time."""
    return [{key: value for key, value in row.items() if key not in (*ADDED, "wall_s")} for row in rows]


@pytest.mark.parametrize("method", [*NETWORKS, "asysqn-svrg"])
def test_a_run_is_the_same_with_its_diagnoses(method):
    without = executed(tables(method))
    wanted = {"training": True, "gradient": method in NETWORKS, "rows": 100}
    wanted |= {"estimates": 2} if method == "cascaded" else {}
    watched = executed(tables(method, diagnose=wanted))
    assert plain(watched.rows) == plain(without.rows)
    for key in ("trace_sha256", "weights_sha256", "bytes_eval"):
        assert watched.summary()[key] == without.summary()[key]
    assert all(0 <= row["training_value"] <= 1 for row in watched.rows)
    assert not set(ADDED) & set(without.rows[-1])


def test_training_accuracy_is_that_of_the_joint_network_on_the_sampled_rows():
    run = executed(tables("sync", diagnose={"training": True, "rows": 50}, model={"party": "linear", "embedding": 2}))
    data, (server, *parties) = run.federation.data, [node.role for node in run.simulator.nodes]
    rows = sample_of(len(data.y_train), 50, 0)
    assert len(set(rows.tolist())) == 50 and rows.max() < len(data.y_train)
    h = torch.cat(
        [party.network.reader(torch.from_numpy(x[rows])) for party, x in zip(parties, data.train, strict=True)], 1
    )
    right = (server.network.reader(h)[:, 0] > 0).numpy() == (data.y_train[rows] == 1)
    assert run.rows[-1]["training_accuracy"] == right.mean()
    assert run.rows[-1]["training_value"] == run.rows[-1]["training_accuracy"]
    assert np.array_equal(rows, sample_of(len(data.y_train), 50, 0))  # whatever train.seed is
    assert len(sample_of(10, 512, 0)) == 10


def test_the_gradient_of_a_linear_model_by_hand():
    """One weight for each column, F = mean log(1 + e^−z) with z = ±Σ w·x, plus 0.05·‖w‖² of each party."""
    regulariser = {"kind": "l2", "weight": 0.1}
    model = {"party": "linear", "embedding": 1, "server": "none", "aggregate": "sum"}
    wanted = {"gradient": True, "rows": 40}
    run = executed(tables("sync", diagnose=wanted, model=model, train={"regulariser": regulariser}))
    data, (_, *parties) = run.federation.data, [node.role for node in run.simulator.nodes]
    rows = sample_of(len(data.y_train), 40, 0)
    x, y = [block[rows].astype(np.float64) for block in data.train], data.y_train[rows].astype(np.float64)
    theta = [party.network.vector().astype(np.float64) for party in parties]  # the columns' weights, then the bias
    z = sum(block @ own[:-1] + own[-1] for block, own in zip(x, theta, strict=True))
    error = (1 / (1 + np.exp(-z)) - y) / len(y)
    gradient = [np.append(block.T @ error, error.sum()) + 0.1 * own for block, own in zip(x, theta, strict=True)]
    objective = np.mean(np.logaddexp(0, z) - y * z) + 0.05 * sum(own @ own for own in theta)
    assert run.rows[-1]["objective"] == pytest.approx(objective, rel=1e-5)
    assert run.rows[-1]["gradient_norm2"] == pytest.approx(sum(own @ own for own in gradient), rel=1e-4)


@pytest.mark.parametrize("method", NETWORKS)
def test_the_gradient_is_the_slope_of_the_objective(method):
    """A small step along −∇F lowers F by the step times ‖∇F‖²."""
    run = executed(tables(method, diagnose={"gradient": True, "rows": 64}))
    diagnostics, roles = run._diagnostics, [node.role for node in run.simulator.nodes]
    before = diagnostics.row(roles, 6)
    assert before["gradient_norm2"] == run.rows[-1]["gradient_norm2"]
    setting = run.federation
    server, *parties = roles
    trained = TrainedRoles(setting.options, setting.data.task, server, tuple(parties))
    joint = setting.method.predictor.networks(trained)
    found, step = joint.gradient(diagnostics._blocks, diagnostics._y), 1e-3 / before["gradient_norm2"] ** 0.5
    for network, part in zip((joint.server, *joint.parties), found.parts, strict=True):
        network.judged.sub_(part, alpha=step)
    fell = before["objective"] - diagnostics.row(roles, 6)["objective"]
    assert fell == pytest.approx(step * before["gradient_norm2"], rel=0.05)


@pytest.mark.parametrize(("distribution", "directions"), [("gaussian", 1), ("gaussian", 4), ("sphere", 1)])
def test_the_spread_of_a_zeroth_order_estimate_is_that_of_its_dimension(distribution, directions):
    """E‖ĝ − g‖² is (d + 1)/q·‖g‖² for q Gaussian directions, and d − 1 for one on the sphere, where F is nearly linear.

    The cosine of one direction with g is |u_1|/‖u‖, with the mean Γ(d/2)/(√π·Γ((d + 1)/2)).
    """
    protocol = {"distribution": distribution, "directions": directions}
    model = {"party": "linear", "embedding": 1, "server": "linear"}
    wanted = {"estimates": 300 // directions, "rows": 32}
    run = executed(tables("cascaded", protocol=protocol, model=model, diagnose=wanted, train={"updates": 1}))
    last = run.rows[-1]
    for m, party in enumerate(node.role for node in run.simulator.nodes[1:]):
        d = party.network.theta.numel()
        expected = d - 1 if distribution == "sphere" else (d + 1) / directions
        assert last["estimate_variance"][m] == pytest.approx(expected, rel=0.25)
        if directions == 1:
            mean = gamma(d / 2) / (sqrt(pi) * gamma((d + 1) / 2))
            assert last["estimate_cosine"][m] == pytest.approx(mean, rel=0.1)


def test_more_directions_point_closer_to_the_gradient():
    few, many = (
        executed(tables("syn-zoo", protocol={"directions": n}, diagnose={"estimates": 4}, train={"updates": 1})).rows[
            -1
        ]
        for n in (1, 32)
    )
    assert all(2 * one < other for one, other in zip(few["estimate_cosine"], many["estimate_cosine"], strict=True))
    assert all(one > 8 * other for one, other in zip(few["estimate_variance"], many["estimate_variance"], strict=True))


def test_threads_and_a_resumed_run_give_the_same_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr("colonnade.experiments.run.SLICE_EVENTS", 10)
    config = from_dict(tables("swift", diagnose={"training": True}, train={"checkpoint_every": 2}))
    alone, threads, stopped = (prepare(config, out=tmp_path / f"{n}", workers=max(n, 1)) for n in (1, 2, 0))
    alone.execute()
    threads.execute()
    with pytest.raises(KeyboardInterrupt):
        stopped.execute(lambda run: run._stop() if len(run.rows) == 2 else None)
    again = reopen(config, tmp_path / "0")
    again.execute()
    for run in (threads, again):
        assert [row["training_value"] for row in run.rows] == [row["training_value"] for row in alone.rows]


def test_what_cannot_be_diagnosed_is_refused(tmp_path):
    wanted = {"diagnose": {"training": True}}
    private = {"mechanism": "output", "clip": 1.0, "noise": 1.0}
    with pytest.raises(ConfigError, match=r"diagnose.training = True: leave it out: with a privacy mechanism"):
        prepare(from_dict(tables("vafl", **wanted, privacy=private)))
    with pytest.raises(ConfigError, match="needs the columns of all parties in one place: use the simulator"):
        prepare_up(from_dict(tables("vafl", **wanted)), tmp_path / "up")
    with pytest.raises(ConfigError, match=r"--workers = 'ray': does not work with \[diagnose\]"):
        prepare(from_dict(tables("vafl", **wanted)), workers="ray")
    with pytest.raises(ConfigError, match="diagnose.gradient = True: leave it out: afsgd does not train networks"):
        prepare(from_dict(tables("afsgd", diagnose={"gradient": True})))
    for method in ("frozen", "sync"):
        with pytest.raises(
            ConfigError, match=f"diagnose.estimates = 2: leave it out: the parties of {method} estimate no"
        ):
            prepare(from_dict(tables(method, diagnose={"estimates": 2})))
    with pytest.raises(ConfigError, match="diagnose.estimates = 1: must be 2 or more"):
        from_dict(tables("zoo", diagnose={"estimates": 1}))
    box = {"party": "tests.models.test_blackbox:Sum", "embedding": 2}
    with pytest.raises(ConfigError, match="model.party = 'party-1': is a black box, which has no gradient"):
        prepare(from_dict(tables("cascaded", diagnose={"gradient": True}, model=box)), out=tmp_path / "box")
    assert not (tmp_path / "box").exists()
    with pytest.raises(ConfigError, match="diagnose.rows = 0: must be 1 or more"):
        from_dict(tables("vafl", diagnose={"rows": 0}))


@pytest.mark.parametrize("method", ["sync", "asysqn-sgd", "fedvs", "centralised"])
def test_further_metrics_are_in_every_line_and_in_the_summary(method):
    also = ["f1", "pr-auc", "brier", "ece"]
    run = executed(tables(method, train={"also": also}, diagnose={"training": True}))
    summary, last = run.summary(), run.rows[-1]
    for row in run.rows:
        assert {name: 0 <= row[name] < 1 for name in also} == dict.fromkeys(also, True)
        assert all(f"training_{name}" in row for name in also)
    assert summary["also"] == {name: last[f"test_{name}"] for name in also}
    plain_run = executed(tables(method))
    assert "also" not in plain_run.summary() and not set(also) & set(plain_run.rows[-1])
    assert plain_run.summary()["weights_sha256"] == summary["weights_sha256"]
