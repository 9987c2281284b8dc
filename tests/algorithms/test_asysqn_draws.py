"""SAGA draws its batches independently: on a walk through permutations its estimate would be biased."""

from types import SimpleNamespace

import numpy as np
import pytest

from colonnade.algorithms.asysqn.block import Block
from colonnade.algorithms.asysqn.config import AfSagaOptions
from colonnade.algorithms.asysqn.draws import CACHED, Draws
from colonnade.algorithms.asysqn.estimator import Estimator
from colonnade.algorithms.asysqn.losses import LOSSES
from colonnade.algorithms.asysqn.messages import FullPass, Step
from colonnade.algorithms.batches import Walk


def test_a_batch_has_every_row_once_and_is_known_from_its_position():
    draws, again = Draws(100, 30, 7, "batches", 2), Draws(100, 30, 7, "batches", 2)
    batches = [draws.batch(position) for position in range(3 * CACHED)]
    for position in (20, 3, 3, 11):
        np.testing.assert_array_equal(again.batch(position), batches[position])
    assert all(len(set(batch)) == 30 and batch.dtype == np.int32 for batch in map(np.asarray, batches))
    assert np.bincount(np.concatenate(batches), minlength=100).min() > 0
    assert Draws(100, 30, 7, "batches", 3).batch(0).tolist() != batches[0].tolist()
    assert sorted(Draws(5, 30, 7).batch(0)) == list(range(5))


@pytest.mark.parametrize(("batches", "excess"), [(Draws, 0.0), (Walk, 11 / 3)])
def test_the_estimate_follows_the_gradient(batches, excess):
    """All rows are equal and w grows by 1 in every step: the gradient is known, and there is no other noise."""
    n, b, steps = 100, 10, 2000
    held = SimpleNamespace(train=Block(np.hstack([np.ones((n, 1)), np.zeros((n, 1))])), y=np.full(n, 1e6))
    held.loss, held.level, held.l2, held.penalties = LOSSES["ridge"], 1e12, 0.0, 0.0
    estimator, rows = Estimator(held, AfSagaOptions(loss="ridge")), batches(n, b, 0)
    estimator.refer(estimator.full_pass(FullPass(np.zeros(n))))
    errors = []
    for t in range(steps):
        estimator.state.w = np.array([float(t), 0.0])
        job = Step(rows.batch(t), np.full(b, float(t)))
        made = estimator.step(job, 0.0)
        errors.append(made.difference[0] + estimator.state.mean[0] - (t - 1e6))
        estimator.learn(job.rows, made)
    assert np.mean(errors[steps // 2 :]) == pytest.approx(excess, abs=0.6), "on a walk a third of n/b too much"
