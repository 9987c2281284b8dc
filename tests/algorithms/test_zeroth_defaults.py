"""With only its name as a setting, every zeroth-order method learns from a small, unscaled, unbalanced table."""

import numpy as np
import pytest

import colonnade


@pytest.fixture(scope="module")
def table():
    """160 rows of eight columns in units from thousandths to hundreds of thousands, one of them constant."""
    generator = np.random.default_rng(3)
    x = generator.standard_normal((160, 8))
    y = (x[:, 0] + x[:, 2] - x[:, 4] + x[:, 6] > 0.9).astype(int)
    x = x * 10.0 ** np.array([-3, 0, 2, 5, 4, -1, 1, 3]) + np.array([0, 5, -200, 1e6, 0, 0, 7, 0])
    x[:, 1] = 5.0
    return colonnade.split(colonnade.from_arrays(x, y), parties=2, test_fraction=0.4)


@pytest.mark.parametrize("method", ["cascaded", "zoo", "syn-zoo", "frozen"])
def test_defaults_beat_the_majority_class(table, method):
    summary = colonnade.train(table, method, eval_every="20 epochs").summary
    majority = max(np.mean(table.y_test), 1 - np.mean(table.y_test))
    assert summary["status"] == "finished"
    assert summary["accuracy"] > majority, (summary["accuracy"], majority)
