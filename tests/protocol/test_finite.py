"""One pass that must agree with numpy's own check."""

import numpy as np
import pytest

from colonnade.protocol.finite import all_finite

SIZES = (0, 1, 7, 2**15 - 1, 2**15, 2**15 + 1, 100_003)


@pytest.mark.parametrize("kind", ["<f2", "<f4", "<f8", "<i4", "|u1", "|b1"])
@pytest.mark.parametrize("size", SIZES)
def test_finite_values_pass_however_large(kind, size):
    dtype = np.dtype(kind)
    largest = np.finfo(dtype).max if dtype.kind == "f" else 1
    assert all_finite(np.full(size, largest, dtype))
    assert all_finite(np.full(size, -0.0).astype(dtype))


@pytest.mark.parametrize("kind", ["<f2", "<f4", "<f8"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_bad_value_anywhere_is_found(kind, value):
    for size in SIZES[1:]:
        for place in (0, size // 2, size - 1):
            array = np.ones(size, kind)
            array[place] = value
            assert not all_finite(array)


def test_two_infinities_do_not_cancel():
    assert not all_finite(np.array([[np.inf, -np.inf]], np.float32))
    assert not all_finite(np.ones((3, 4, 5), np.float32) * np.float32(np.inf))
