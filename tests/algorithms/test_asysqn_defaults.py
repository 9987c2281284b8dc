"""AsySQN's methods with only their name as a setting, on tables that they were not tuned for."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression

import colonnade
from colonnade.algorithms.asysqn.block import Block
from colonnade.algorithms.asysqn.config import AfOptions, AsyOptions
from colonnade.algorithms.asysqn.losses import LOSSES
from colonnade.algorithms.asysqn.scale import measured
from colonnade.data import split
from colonnade.linear import AsySQNClassifier

NAMES = [f"{kind}{estimator}" for kind in ("asysqn-", "af", "synsqn-") for estimator in ("sgd", "svrg", "saga")]
SLOW = {"compute": [{"kind": "fixed", "mean_s": seconds} for seconds in (0.01, 0.01, 0.01, 0.1)]}


def sparse_table():
    """Rare columns in units that are eight decades apart; a quarter of the labels is positive."""
    draw = np.random.default_rng(0)
    counts = sparse.random(400, 40, density=0.1, format="csr", random_state=1)
    margins = counts @ draw.standard_normal(40)
    y = (margins > np.quantile(margins, 0.75)).astype(np.int64)
    return colonnade.from_arrays(sparse.csr_array(counts @ sparse.diags_array(10.0 ** draw.uniform(-2, 6, 40))), y)


@pytest.fixture(scope="module")
def data():
    return split(sparse_table(), parties=4)


@pytest.mark.parametrize("name", NAMES)
def test_each_learns_from_sparse_columns_of_any_unit(name, data):
    result = colonnade.train(data, name, clock=SLOW, epochs=4, eval_every="4 epochs")
    positive = float(np.mean(data.y_train))
    odds = np.where(data.y_test > 0, positive, 1 - positive)
    assert result.summary["status"] == "finished" and not result.warnings
    assert result.summary["loss"] < 0.9 * -np.mean(np.log(odds))  # of the best constant, which beats zero weights
    assert result.summary["accuracy"] > max(np.mean(data.y_test), 1 - np.mean(data.y_test))


def test_numbers_are_predicted_without_a_word_about_the_loss():
    draw = np.random.default_rng(0)
    x = draw.standard_normal((200, 8)) * 10.0 ** np.arange(-2, 6)
    y = 1000.0 + (x / 10.0 ** np.arange(-2, 6)) @ draw.standard_normal(8)
    data = split(colonnade.from_arrays(x, y), parties=4, scale="none")
    summary = colonnade.train(data, "asysqn-saga", epochs=10, eval_every="10 epochs").summary
    assert summary["metric"] == "rmse" and summary["value"] < 0.5 * np.std(y)


def test_the_optimum_is_that_of_the_columns_as_they_are():
    """Gains change the path, not the objective: λ applies to w in the columns' own units."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((100, 6)) * np.array([1, 10, 0.1, 1, 5, 0.5])
    y = (x @ draw.standard_normal(6) + 10 * draw.standard_normal(100) > 0).astype(int)
    model = AsySQNClassifier("synsqn-sgd", batch_size=100, epochs=150).fit(np.array_split(x, 3, axis=1), y)
    best = LogisticRegression(C=1.0, tol=1e-10).fit(x, y)  # C = 1 is λ = 1/n
    np.testing.assert_allclose(np.concatenate(model.coef_), best.coef_[0], rtol=0.02, atol=1e-3)


def test_smoothness_by_hand():
    """Full batches: gains are 1/root mean square, L is σ times the largest eigenvalue of the correlations."""
    x = np.array([[3.0, 1.0], [-3.0, 1.0], [3.0, -1.0], [3.0, 1.0]])
    scale = measured(held(x), AfOptions(intercept=False), batch_size=4, parties=4)
    np.testing.assert_allclose(scale.gains, [1 / 3, 1.0])
    correlation = np.mean(x[:, 0] * x[:, 1]) / 3
    assert scale.smoothness == pytest.approx(0.25 * (1 + abs(correlation)), rel=1e-3)
    assert scale.rate == pytest.approx(0.5 / 4) and scale.start == 0.0
    assert measured(held(x), AsyOptions(ahead=3), batch_size=4, parties=4).rate == pytest.approx(0.5 / (4 * 3))


def test_small_batches_make_smaller_steps():
    x = np.zeros((100, 2))
    x[0, 0], x[:, 1] = 1.0, 1.0  # only one row has the first column: a batch of one may be that row
    whole, single = (measured(held(x), AfOptions(), batch_size=b, parties=3) for b in (100, 1))
    np.testing.assert_allclose(whole.gains, [10.0, 1.0])
    np.testing.assert_allclose(single.gains, [1.0, 1.0])


def held(x):
    """The part of a party's data that the measurement reads."""
    loss = LOSSES["logistic"]
    return SimpleNamespace(train=Block(x), y=np.resize([1.0, -1.0], len(x)), loss=loss, penalties=0.0)
