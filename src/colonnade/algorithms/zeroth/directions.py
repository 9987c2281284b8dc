"""Directions and the two-point estimate: VFL-Cascaded Eq. (2), (3)."""

from collections.abc import Iterator
from math import sqrt

import numpy as np

from colonnade.privacy.secret import normal, sphere
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.messages import Array

__all__ = ["check_smoothing", "differences", "directions", "estimate", "scale_of", "signed"]

# θ + μu is float32, as are the embeddings: rounding hides a step of a parameter below this.
SMALLEST_STEP = 1e-6


def directions(seed: bytes, count: int, dimension: int, distribution: str) -> Array:
    """Draw `count` directions u: (count, dimension) float32."""
    draw = normal if distribution == "gaussian" else sphere
    seeds = [bytes(a ^ b for a, b in zip(seed, number.to_bytes(32, "little"), strict=True)) for number in range(count)]
    if count == 1:
        return draw(seeds[0], dimension)[None]
    return np.stack([draw(one, dimension) for one in seeds]) if count else np.zeros((0, dimension), np.float32)


def differences(losses: Array, count: int) -> Array:
    """Return ĥ − h for each of `count` directions, from h and the losses at w + μu, then at w − μu if there are any.

    With both, half of their difference: the second-order part of the loss cancels, so the error is O(μ²), not O(μ).
    """
    base, ahead, behind = losses[0], losses[1 : 1 + count], losses[1 + count :]
    with np.errstate(over="ignore"):  # see `estimate`
        return (ahead - behind) / 2 if len(behind) else ahead - base


def signed(u: Array, central: bool) -> Iterator[Array]:
    """Yield u of each direction, then −u of each if differences are central."""
    yield from u
    if central:
        yield from -u


def scale_of(dimension: int, distribution: str) -> float:
    """Return φ(d): 1 for Gaussian directions, d for the unit sphere."""
    return 1.0 if distribution == "gaussian" else float(dimension)


def estimate(differences: Array, u: Array, smoothing: float, distribution: str) -> Array:
    """Return the mean of Eq. (3), φ(d)/μ·(ĥ − h)·u, over the directions. Only the differences need float64.

    Losses are float64, so those of a training that diverges, or of a lying server, may lead to a gradient beyond
    float32. It is infinite then, as a first-order one would be, and the next embeddings show it.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        weights = differences * (scale_of(u.shape[1], distribution) / smoothing / max(len(u), 1))
        gradient: Array = weights.astype(np.float32) @ u
    return gradient


def check_smoothing(
    smoothing: float, dimension: int, distribution: str, who: str, key: str = "protocol.smoothing"
) -> None:
    """Raise ConfigError for a μ that is lost in rounding, and name the smallest that works."""
    spread = 1.0 if distribution == "gaussian" else 1.0 / sqrt(dimension)
    if smoothing * spread < SMALLEST_STEP:
        advice = (
            f"too small for the {dimension} parameters of {who}: the loss difference would be rounding noise; "
            f"use at least {1.1 * SMALLEST_STEP / spread:.1e}"  # two digits, never rounded to below the limit
        )
        raise ConfigError(key, smoothing, advice)
