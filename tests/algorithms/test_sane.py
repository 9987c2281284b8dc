"""Which embeddings a role accepts."""

import numpy as np
import pytest

from colonnade.algorithms.sane import LARGEST, are_sane

BEYOND = np.nextafter(np.float32(LARGEST), np.float32(np.inf))


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<i4"])
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (7, 5), (3000, 4)])
def test_ordinary_embeddings_are_sane(dtype, shape):
    assert are_sane(np.ones(shape, dtype))


@pytest.mark.parametrize("value", [BEYOND, -BEYOND, 3e20, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (3000, 4)])
def test_one_wild_value_is_enough(value, shape):
    values = np.ones(shape, np.float32)
    values[-1, -1] = value
    assert not are_sane(values)
    assert not are_sane(values.astype(np.float64))


def test_large_embeddings_are_sane_up_to_the_limit():
    assert are_sane(np.full((100, 8), LARGEST, np.float32))
    assert are_sane(np.full((100, 8), -LARGEST, np.float32))
    assert not are_sane(np.array([2 * 10**6], np.int32))
