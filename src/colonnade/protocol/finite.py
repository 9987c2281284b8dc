"""Whether an array is free of NaN and infinity, in one pass without a temporary."""

from math import isfinite

import numpy as np

from colonnade.protocol.messages import Array

__all__ = ["all_finite"]

_ZEROS = {np.dtype(kind): np.zeros(2**15, kind) for kind in (np.float32, np.float64)}


def all_finite(array: Array) -> bool:
    """BLAS multiplies three times faster than numpy can look: x·x shows no NaN and no infinity if there is none in x.

    It does so too where a square is too large: then x·0 decides, 0 for every finite x and NaN for the others.
    `vdot`, since `dot` warns of every infinity, and keeping it from that costs more than the sum.
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
