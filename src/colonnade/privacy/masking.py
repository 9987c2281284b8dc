"""Fixed point modulo 2⁶⁴, and masks that hide it: AsySQN Alg. 2 l. 2–5.

A real value becomes round(value·2^bits) modulo 2⁶⁴. There a uniform mask hides a value perfectly: the sum is uniform,
whatever the value is. Masks also cancel exactly. Floats would round, and would reveal the magnitude of the masked
value.

A sum of q values is right while it stays within ±(2⁶³ − 1) steps of 2^−bits. `bound` gives the largest allowed value.
"""

from collections.abc import Iterable
from functools import lru_cache, reduce
from math import floor, nextafter

import numpy as np

from colonnade.privacy.secret import uniform
from colonnade.protocol.errors import ConfigError, TrainingDiverged
from colonnade.protocol.messages import Array

__all__ = ["add", "bound", "check_bound", "decode", "encode", "masks", "subtract", "total"]

LARGEST = 2**63 - 1


@lru_cache(maxsize=64)
def bound(parties: int, bits: int) -> float:
    """The largest |value| for which a sum over this many parties cannot wrap around."""
    exact = LARGEST // parties  # in steps of 2^−bits; rounding to whole steps never exceeds it
    nearest = float(exact)
    return (nearest if nearest <= exact else nextafter(nearest, 0.0)) / 2.0**bits


def check_bound(largest: float, parties: int, bits: int, key: str = "protocol.fraction_bits") -> None:
    """Raise if values of this size could wrap around."""
    limit = bound(parties, bits)
    if largest <= limit:
        return
    spare = floor(np.log2(bound(parties, 0) / largest)) if largest < np.inf else -1
    advice = f"values up to {largest:.3g} do not fit: a sum of {parties} parties may wrap around beyond {limit:.3g}"
    raise ConfigError(key, bits, f"{advice}; use at most {spare}" if spare >= 0 else f"{advice}; scale the data")


def encode(values: Array, bits: int, parties: int) -> Array:
    """Fixed-point numbers (uint64) of float64 values; each may be one of `parties` summands."""
    limit = bound(parties, bits)
    if len(values) and not (values.max() <= limit and values.min() >= -limit):  # also true for NaN
        found = np.abs(values).max()
        raise TrainingDiverged(f"a value of {found:.3g} does not fit into masked sums: the bound is {limit:.3g}")
    steps: Array = values * 2.0**bits
    return np.rint(steps, out=steps).astype(np.int64).view(np.uint64)


def decode(encoded: Array, bits: int) -> Array:
    """Float64 values of fixed-point numbers, each a value or a sum of values."""
    values: Array = encoded.view(np.int64) * 2.0**-bits
    return values


def masks(seed: bytes, count: int) -> Array:
    """Uniform masks (uint64); use a seed for one aggregation only."""
    return uniform(seed, count)


def add(values: Array, others: Array) -> Array:
    """values + others modulo 2⁶⁴: masks a value, or adds a child's sum."""
    result: Array = values + others
    return result


def subtract(values: Array, others: Array) -> Array:
    """values − others modulo 2⁶⁴: takes masks off a sum."""
    result: Array = values - others
    return result


def total(summands: Iterable[Array]) -> Array:
    """The sum of at least one array modulo 2⁶⁴."""
    return reduce(add, summands)
