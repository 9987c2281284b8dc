"""AsySQN that diverges reports it and ends for all parties, with the cause and a remedy."""

from types import SimpleNamespace

import numpy as np
import pytest

import colonnade
from colonnade.algorithms.asysqn.block import Block
from colonnade.algorithms.asysqn.config import AfOptions
from colonnade.algorithms.asysqn.estimator import Estimator
from colonnade.algorithms.asysqn.losses import LOSSES, at_zero
from colonnade.algorithms.asysqn.messages import Step
from colonnade.data import split
from colonnade.linear import AsySQNClassifier
from colonnade.protocol.errors import TrainingDiverged

ROWS = np.random.default_rng(0)
X = ROWS.standard_normal((300, 6))
Y = (X @ ROWS.standard_normal(6) > 0).astype(np.int64)


def estimator_of(loss="logistic", y=None, **options):
    y = np.where(Y > 0, 1.0, -1.0) if y is None else y
    held = SimpleNamespace(train=Block(X[:, :2]), y=y, loss=LOSSES[loss], level=at_zero(LOSSES[loss], y))
    held.l2 = held.penalties = options.get("l2", 1e-4)
    return Estimator(held, AfOptions(loss=loss, **options))


def step(estimator, theta, rows=None):
    rows = np.arange(len(theta), dtype=np.int32) if rows is None else rows
    job = Step(rows, np.asarray(theta, float))
    made = estimator.step(job, 0.1)
    estimator.learn(job.rows, made)


def test_losses_far_above_that_of_the_start_are_no_training():
    estimator = estimator_of()
    wrong = -np.where(Y > 0, 1.0, -1.0)
    step(estimator, 5.0 * wrong)
    with pytest.raises(TrainingDiverged, match="the loss of its recent batches is 1. times that of the start"):
        for _ in range(60):
            step(estimator, 20.0 * wrong)


def test_one_bad_row_is_no_divergence():
    estimator = estimator_of()
    for row in range(40):
        theta = np.where(Y[row : row + 1] > 0, 1.0, -1.0) * (-30.0 if row == 20 else 1.0)
        step(estimator, theta, np.array([row], np.int32))


def test_large_numbers_among_small_ones_to_predict_are_no_divergence():
    y = np.zeros(300)
    y[::100] = 100.0
    estimator = estimator_of("ridge", y)
    for row in range(0, 300, 5):
        step(estimator, [0.5 if y[row] == 0 else 1.0], np.array([row], np.int32))


def test_weights_that_cancel_each_other_are_seen_by_their_penalty():
    estimator = estimator_of(l2=1.0)
    estimator.state.w = np.array([30.0, 0.0])
    with pytest.raises(TrainingDiverged, match="times that of the start"):
        step(estimator, np.zeros(300))


def test_a_step_that_is_not_finite():
    estimator = estimator_of()
    estimator.state.w = np.array([np.inf, 0.0])
    with pytest.raises(TrainingDiverged, match="its step is not finite"):
        step(estimator, np.zeros(300))


def run(protocol, **train):
    data = split(colonnade.from_arrays(X, Y), parties=3)
    protocol = protocol if isinstance(protocol, dict) else {"name": protocol}
    return colonnade.prepare(data, protocol | {"intercept": False}, batch_size=50, **train)


@pytest.mark.parametrize("method", ["asysqn-sgd", "asysqn-svrg", "afsaga", "synsqn-saga"])
def test_a_run_with_too_large_a_rate_ends_with_the_next_step(method):
    summary = run(method, learning_rate=1e3, epochs=30).execute()
    assert summary["status"] == "diverged" and "lower train.learning_rate" in summary["note"]
    assert ("or set protocol.ahead = 0" in summary["note"]) == (not method.startswith("syn"))


def test_a_run_with_the_newest_margins_is_not_advised_to_wait_for_them():
    protocol = {"name": "asysqn-svrg", "ahead": 0}
    note = run(protocol, learning_rate=1e3, epochs=30).execute()["note"]
    assert note.endswith("lower train.learning_rate")


def test_margins_that_fixed_point_cannot_hold_end_the_run():
    made = run({"name": "asysqn-sgd", "fraction_bits": 40}, learning_rate=0.1, epochs=5)
    made.simulator.nodes[1].role.estimator.state.w = np.array([1e9, 0.0])
    summary = made.execute()
    assert summary["status"] == "diverged"
    assert summary["note"].startswith("party-1: a value of") and "does not fit into masked sums" in summary["note"]
    assert "lower train.learning_rate" in summary["note"]


@pytest.mark.parametrize("method", ["asysqn-svrg", "synsqn-sgd"])
def test_the_others_go_on_without_a_party_whose_own_numbers_diverged(method):
    data = split(colonnade.from_arrays(X, Y), parties=5)
    protocol = {"name": method, "fraction_bits": 40}
    made = colonnade.prepare(data, protocol, batch_size=50, learning_rate=0.05, epochs=6)
    made.simulator.advance(300)
    role = made.simulator.nodes[2].role
    role.estimator.state.w = role.estimator.w + 1e9
    summary = made.execute()
    assert summary["status"] == "finished" and summary["value"] > 0.75
    assert summary["note"].startswith("the run continued without party-2: ")
    assert made.simulator.nodes[0].role.members == [0, 2, 3, 4] and role.summary()["left"]
    assert role.estimator.steps < min(node.role.estimator.steps for node in made.simulator.nodes[3:])


def test_an_evaluation_sees_it_too():
    made = run("asysqn-sgd", learning_rate=1e-9, epochs=1)
    for node in made.simulator.nodes[1:]:
        node.role.estimator.state.w = np.array([1e3, 1e3])
    summary = made.execute()
    assert summary["status"] == "diverged" and "the loss of the held-out rows is" in summary["note"]


def test_the_front_says_so_rather_than_handing_out_weights():
    with pytest.raises(TrainingDiverged, match="lower train.learning_rate"):
        AsySQNClassifier(learning_rate=1e3, epochs=30).fit(np.array_split(X, 3, axis=1), Y)
