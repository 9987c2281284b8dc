"""Scale one party's columns with statistics of its own training rows, so that no other party's data are needed.

| scale | a column becomes | a constant column |
|---|---|---|
| "standard" | (x - mean) / standard deviation | x - mean |
| "minmax" | (x - min) / (max - min), test rows may lie outside 0..1 | x - min |
| "clipped" | (x - mean) / 3 standard deviations, cut at -1 and 1 | x - mean, cut |
| "none" | x, times the factor of its dataset | the same |

The steps of a time series share the statistics of their channel. One-hot columns stay 0 and 1 with every scale. The
fitted scales ignore the factor: it cancels out. Statistics are float64, the results float32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from colonnade.data.block import Block, whole
from colonnade.data.suggest import did_you_mean
from colonnade.data.task import Array
from colonnade.protocol.errors import ConfigError, DataError

SCALES = ("standard", "minmax", "clipped", "none")
DEVIATIONS = 3.0  # standard deviations that "clipped" keeps
ROUNDING = 10 * float(np.finfo(np.float64).eps)
SMALLEST = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True, eq=False)
class Scaler:
    """Turns raw columns into a model's input: (raw - shift) * gain, cut at ±limit."""

    shift: Array  # (columns,) float64
    gain: Array  # (columns,) float64
    limit: float = np.inf

    @property
    def fitted(self) -> bool:
        """Whether the scaling depends on the rows; a factor alone does not."""
        return bool(self.shift.any()) or len(np.unique(self.gain)) > 1

    def apply(self, raw: Array) -> Array:
        """Scale raw rows of this party, (rows, columns), to a new float32 array."""
        if raw.ndim != 2 or raw.shape[1] != len(self.shift):
            raise DataError(f"a block must have shape (rows, {len(self.shift)}), not {raw.shape}")
        return self.fill(whole(raw))

    def fill(self, block: Block) -> Array:
        """Scale a block to a new float32 array."""
        scaled = np.empty(block.shape, dtype=np.float32)
        try:
            with np.errstate(over="raise"):
                for place, piece in block.pieces():
                    piece -= self.shift
                    piece *= self.gain
                    if self.limit < np.inf:
                        np.clip(piece, -self.limit, self.limit, out=piece)
                    scaled[place] = piece
        except FloatingPointError as error:
            raise DataError("a scaled value is too large for 32-bit floats: its column varies too little") from error
        return scaled


def check_scale(scale: str, section: str = "data") -> None:
    """Raise ConfigError for an unknown scaling."""
    if scale not in SCALES:
        advice = f"unknown{did_you_mean(scale, SCALES)}; known are {', '.join(SCALES)}"
        raise ConfigError(f"{section}.scale", scale, advice)


def fit(scale: str, block: Block, factor: float, steps: int = 1) -> Scaler:
    """Fit the scaler on a block of training rows, which must be finite; the columns of a series are ordered by step."""
    numeric = np.ones(block.shape[1], bool) if block.encoder is None else block.encoder.numeric
    scaler = _fit(scale, block, factor, steps)
    return Scaler(np.where(numeric, scaler.shift, 0.0), np.where(numeric, scaler.gain, 1.0), scaler.limit)


def _fit(scale: str, block: Block, factor: float, steps: int) -> Scaler:
    width = block.shape[1]
    if scale == "none":
        return Scaler(np.zeros(width), np.full(width, factor))
    low, high, mean = _first_moments(block)
    low, high = _over_steps(np.min, low, steps), _over_steps(np.max, high, steps)
    mean = _over_steps(np.mean, mean, steps)
    # Do not scale a column to variance 1 if its values differ only by rounding.
    constant = high - low <= np.maximum(SMALLEST, ROUNDING * np.maximum(np.abs(low), np.abs(high)))
    if scale == "minmax":
        return Scaler(low, 1 / np.where(constant, 1.0, high - low))
    deviation = np.sqrt(_over_steps(np.mean, _variance(block, mean), steps))
    # `low`, because the mean of a constant column may be off by a rounding error.
    shift, gain = np.where(constant, low, mean), 1 / np.where(constant, 1.0, deviation)
    return Scaler(shift, gain / DEVIATIONS, 1.0) if scale == "clipped" else Scaler(shift, gain)


def _over_steps(reduce: Callable[..., Any], values: Array, steps: int) -> Array:
    """Reduce the values of all steps to one per channel, and repeat it for every step."""
    if steps == 1:
        return values
    result: Array = np.tile(reduce(values.reshape(steps, -1), axis=0), steps)
    return result


def _first_moments(block: Block) -> tuple[Array, Array, Array]:
    rows, width = block.shape
    low, high, total = np.full(width, np.inf), np.full(width, -np.inf), np.zeros(width)
    for _, piece in block.pieces():
        np.minimum(low, piece.min(axis=0), out=low)
        np.maximum(high, piece.max(axis=0), out=high)
        total += piece.sum(axis=0)
    return low, high, total / rows


def _variance(block: Block, mean: Array) -> Array:
    """Return the mean squared distance from `mean`, in a second pass: one pass over squares would lose all digits."""
    squares = np.zeros(block.shape[1])
    for _, piece in block.pieces():
        piece -= mean
        squares += np.einsum("nd,nd->d", piece, piece)
    result: Array = squares / block.shape[0]
    return result
