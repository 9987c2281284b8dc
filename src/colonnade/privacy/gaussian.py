"""The exact Gaussian mechanism: the noise for a wanted (ε, δ), and the ε of many releases together.

A release of sensitivity Δ with noise of deviation σ is μ-Gaussian differentially private with μ = Δ/σ. n such releases
together have μ√n (Dong, Roth, Su: Gaussian Differential Privacy, 2022, Cor. 3.3). μ-GDP is (ε, δ(ε)) for every ε:

    δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)         (their Cor. 2.13; Balle and Wang 2018, Thm 8)

The textbook formula σ = Δ√(2 ln(1.25/δ))/ε holds only for ε < 1.
"""

from collections.abc import Callable
from math import exp, inf

from scipy.special import log_ndtr, ndtr

__all__ = ["delta_of", "epsilon_of", "mu_for"]

STEPS = 200  # of a bisection: exact to the last bit


def delta_of(mu: float, epsilon: float) -> float:
    """δ(ε) of μ-GDP."""
    if mu <= 0:
        return 0.0
    return float(ndtr(mu / 2 - epsilon / mu) - exp(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))))


def mu_for(epsilon: float, delta: float) -> float:
    """The largest μ that is (ε, δ) differentially private."""
    return _bisect(lambda mu: delta_of(mu, epsilon) <= delta)


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest ε for which μ-GDP is (ε, δ) differentially private."""
    return _bisect(lambda epsilon: delta_of(mu, epsilon) > delta) if mu < inf else inf


def _bisect(holds: Callable[[float], bool]) -> float:
    """The largest number ≥ 0 up to which `holds` is true."""
    low, high = 0.0, 1.0
    while holds(high):
        low, high = high, 2 * high
        if high > 1e18:
            return inf
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
