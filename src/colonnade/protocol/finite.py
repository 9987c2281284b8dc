"""Check an array for NaN and infinity, in one pass without a temporary."""

from math import isfinite

import numpy as np

from colonnade.protocol.messages import Array

__all__ = ["all_finite"]

_ZEROS = {np.dtype(kind): np.zeros(2**15, kind) for kind in (np.float32, np.float64)}


def all_finite(array: Array) -> bool:
    """Whether `array` holds neither NaN nor infinity.

    BLAS multiplies three times faster than numpy can test elements. If x·x is finite, x has no NaN and no infinity. x·x
    can also be infinite because a square is too large. Then x·0 decides: it is 0 for every finite x and NaN for the
    others. The code uses `vdot`, because `dot` warns of every infinity and suppressing the warning costs more than the
    sum.
    """
    if array.dtype.char in "fd" and isfinite(np.vdot(array, array)):
        return True
    return _look_closely(array)


def _look_closely(array: Array) -> bool:
    zeros = _ZEROS.get(array.dtype)
    if zeros is None:
        return array.dtype.kind != "f" or bool(np.isfinite(array).all())
    flat = array.reshape(-1)
    for start in range(0, len(flat), len(zeros)):
        part = flat[start : start + len(zeros)]
        if np.vdot(part, zeros[: len(part)]) != 0:  # NaN differs from everything
            return False
    return True
