"""The limit of embeddings: the quick test of many small numbers must agree with the look at each."""

import numpy as np
import pytest

from colonnade.algorithms.sane import LARGEST, are_sane


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("value", [0.0, -1.0, LARGEST, -LARGEST, 1.001 * LARGEST, 1e30, np.inf, -np.inf, np.nan])
def test_one_value_decides(kind, value):
    values = np.full((3, 4), 0.5, kind)
    values[1, 2] = value
    assert are_sane(values) == (abs(value) <= LARGEST)


def test_many_small_values_add_up_to_nothing_wrong():
    assert are_sane(np.full((1000, 100), LARGEST / 2, np.float32))


def test_nothing_and_whole_numbers():
    assert are_sane(np.zeros((0, 4), np.float32))
    assert not are_sane(np.array([2 * LARGEST], np.int64))
