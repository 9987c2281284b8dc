"""Whether an array is free of NaN and infinity, in one pass without a temporary."""

import numpy as np

from colonnade.protocol.messages import Array

__all__ = ["all_finite"]

_ZEROS = {np.dtype(kind): np.zeros(2**15, kind) for kind in (np.float32, np.float64)}


def all_finite(array: Array) -> bool:
    """x·0 is 0 for every finite x and NaN for the others; BLAS sums it up three times faster than numpy can look."""
    zeros = _ZEROS.get(array.dtype)
    if zeros is None:
        return array.dtype.kind != "f" or bool(np.isfinite(array).all())
    flat = array if array.ndim == 1 else array.reshape(-1)
    with np.errstate(invalid="ignore"):
        if len(flat) <= len(zeros):
            return bool(np.dot(flat, zeros[: len(flat)]) == 0)
        for start in range(0, len(flat), len(zeros)):
            part = flat[start : start + len(zeros)]
            if np.dot(part, zeros[: len(part)]) != 0:  # NaN differs from everything
                return False
    return True
