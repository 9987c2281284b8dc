"""Runs that stop improving end with their best weights; steps on wide rows are smaller."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import colonnade
from colonnade.algorithms.keeping import BestWeights
from colonnade.algorithms.networks import WIDE, party_rate
from colonnade.algorithms.training import Every, StepRule, Training
from colonnade.models import Network, OptimiserSpec, Regulariser


def network(average=False):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    return Network(module, OptimiserSpec().averaging(average))


def step(made, value):
    made.forward(np.arange(12, dtype=np.float32).reshape(4, 3) * value, 0, 0)
    made.apply(np.full(len(made.theta), value, np.float32), 0.1, made.buffers_after_forward())


@pytest.mark.parametrize("average", [False, True])
def test_by_hand(average):
    """Evaluations 1, 2, 3; the second was the best; a step that comes after the end is not taken."""
    made, weights, x = network(average), BestWeights(), np.ones((4, 3), np.float32)
    read = {}
    for number, best in ((1, 0), (2, 1), (3, 2)):
        weights.evaluation(number, best, False, made)
        weights.evaluation(number, best, False, made)  # another piece of its rows
        read[number] = made.read(x)
        step(made, float(number))
    saved = BestWeights()
    saved.load(weights.save())
    saved.evaluation(4, 2, True, made)
    np.testing.assert_array_equal(made.read(x), read[2])
    step(made, 9.0)
    np.testing.assert_array_equal(made.read(x), read[2])
    other = network(average)
    other.load(made.save())
    assert other.over and other.digest() == made.digest()


def test_who_was_away_at_the_best_evaluation_stays():
    made, weights = network(), BestWeights()
    weights.evaluation(1, 0, False, made)
    before = made.digest()
    weights.evaluation(5, 4, True, made)
    assert made.digest() == before and not made.over


@pytest.mark.parametrize("method", ["swift", "sync", "flex", "centralised"])
def test_a_run_ends_at_its_best(method):
    draw = np.random.default_rng(0)
    noise = colonnade.from_arrays(draw.standard_normal((120, 9)), draw.integers(0, 2, 120))  # nothing to learn
    data = colonnade.split(noise, parties=3, validation_fraction=0.3)
    settings = {"batch_size": 16, "epochs": 40, "eval_every": "0.5 epochs", "patience": 6}
    run = colonnade.prepare(data, method, optimiser="adam", learning_rate=0.05, metric="loss", **settings)
    summary, rows = run.execute(), run.rows
    assert summary["note"] == "ended early: no improvement in 6 evaluations" and summary["epochs"] < 40
    values = [row["value"] for row in rows[:-1]]
    assert rows[-1]["value"] == min(values) < values[-1]


def training(**changes):
    sgd = OptimiserSpec()
    ordinary = Training(
        0, 10, 4, 0.01, (0.01, 0.02), sgd, (sgd,) * 2, (Regulariser(),) * 2, StepRule(), Every("epochs", 1),
        Every("epochs", 1), "accuracy", measured=True,
    )  # fmt: skip
    return replace(ordinary, **changes)


def test_wide_rows_have_smaller_steps():
    narrow, wide = np.full((10, 4), -1.0, np.float32), np.full((10, 64), 1.0, np.float32)
    assert party_rate(training(), 1, narrow) == 0.02
    assert party_rate(training(), 1, wide) == pytest.approx(0.02 * WIDE / 64)
    assert party_rate(training(measured=False), 1, wide) == 0.02, "as the config says"


def test_an_account_by_record_has_no_measured_rate():
    data = colonnade.split(colonnade.load("digits"), parties=2, scale="none", validation_fraction=0)
    noise = {"mechanism": "output", "clip": 1.0, "noise": 1.0}
    steps = {"local_updates": "dp-sgd", "dp_sgd": {"clip": 1.0, "noise": 1.0}}
    measured = [
        colonnade.prepare(data, "vafl", updates=1, privacy=privacy).federation.training.measured
        for privacy in ({}, noise, noise | steps)
    ]
    assert measured == [True, True, False]


def test_where_evaluations_cost_privacy_there_are_fewer():
    data = colonnade.split(colonnade.load("digits"), parties=2)
    noise = {"mechanism": "output", "clip": 1.0, "noise": 1.0}
    of = [colonnade.prepare(data, "swift", privacy=privacy).federation.training for privacy in ({}, noise)]
    assert [(one.eval_every, one.patience) for one in of] == [(Every("epochs", 0.5), 40), (Every("epochs", 2.5), 10)]
