"""VFL-Cascaded Eq. (3): the mean over many directions is the gradient, within its own standard error; numpy checks it.

Besides noise, curvature adds an error of order μ to every estimate; here μ is so small that the noise is larger.
"""

import hashlib

import numpy as np
import pytest
from scipy import stats

from colonnade.algorithms.zeroth.directions import directions, estimate, scale_of

COUNT, MU = 4000, 1e-4
BOTH = pytest.mark.parametrize("distribution", ["gaussian", "sphere"])


def seed(name):
    return hashlib.sha256(repr(name).encode()).digest()


def quadratic(dimension):
    """½ wᵀHw + bᵀw with a curvature that is not the identity, and its gradient."""
    draw = np.random.default_rng(dimension)
    root = draw.standard_normal((dimension, dimension)) / np.sqrt(dimension)
    hessian, b = root @ root.T, draw.standard_normal(dimension)
    return lambda w: 0.5 * w @ hessian @ w + b @ w, lambda w: hessian @ w + b


def logistic(dimension):
    """The mean log-loss of a linear model on 50 rows, and its gradient."""
    draw = np.random.default_rng(100 + dimension)
    x, y = draw.standard_normal((50, dimension)), draw.integers(0, 2, 50)

    def gradient(w):
        return x.T @ (1 / (1 + np.exp(-x @ w)) - y) / len(y)

    return lambda w: float(np.mean(np.logaddexp(0, x @ w) - y * (x @ w))), gradient


def single_estimates(function, w, u, distribution, scale=1.0):
    """Eq. (3) for every direction by itself (count, dimension)."""
    h = function(w)
    differences = np.array([function(w + MU * one) - h for one in u.astype(float)])
    return np.array([
        scale * estimate(differences[i : i + 1], u[i : i + 1], MU, distribution) for i in range(len(u))
    ])  # fmt: skip


def agreement(singles, truth):
    """Deviations in standard errors, and the χ² of all of them together."""
    errors = singles.std(0, ddof=1) / np.sqrt(len(singles))
    z = (singles.mean(0) - truth) / errors
    covariance = np.atleast_2d(np.cov(singles, rowvar=False)) / len(singles)
    off = singles.mean(0) - truth
    return z, float(off @ np.linalg.solve(covariance, off))  # Hotelling: correlations of the coordinates counted


@BOTH
@pytest.mark.parametrize("dimension", [1, 3, 10, 40])
@pytest.mark.parametrize("problem", [quadratic, logistic])
def test_the_mean_of_many_estimates_is_the_gradient(problem, dimension, distribution):
    function, gradient = problem(dimension)
    w = np.random.default_rng(7).standard_normal(dimension)
    u = directions(seed((problem.__name__, dimension)), COUNT, dimension, distribution)
    singles = single_estimates(function, w, u, distribution)
    if dimension == 1 and distribution == "sphere":  # ±1: every estimate is the difference quotient itself
        np.testing.assert_allclose(singles[:, 0], gradient(w)[0], rtol=1e-2, atol=1e-4)
        return
    z, chi2 = agreement(singles, gradient(w))
    assert np.abs(z).max() <= 4.5, z
    assert stats.chi2.sf(chi2, dimension) > 1e-5, (chi2, dimension)
    together = estimate(
        np.array([function(w + MU * one) - function(w) for one in u.astype(float)]), u, MU, distribution
    )
    np.testing.assert_allclose(together, singles.mean(0), atol=1e-4 * np.abs(singles).max())


@BOTH
@pytest.mark.parametrize("wrong", [0.8, 1.25, -1.0])
def test_a_wrong_factor_would_be_found(distribution, wrong):
    """The check above can fail: it rejects a φ that is off by a fifth."""
    function, gradient = quadratic(10)
    w = np.random.default_rng(7).standard_normal(10)
    u = directions(seed("power"), COUNT, 10, distribution)
    _, chi2 = agreement(single_estimates(function, w, u, distribution, wrong), gradient(w))
    assert stats.chi2.sf(chi2, 10) < 1e-5


def test_the_other_distributions_factor_would_be_found():
    function, gradient = quadratic(10)
    w = np.random.default_rng(7).standard_normal(10)
    u = directions(seed("mixed"), COUNT, 10, "sphere")
    _, chi2 = agreement(single_estimates(function, w, u, "gaussian"), gradient(w))  # φ = 1 for the sphere
    assert stats.chi2.sf(chi2, 10) < 1e-12


@BOTH
def test_more_directions_less_variance(distribution):
    """The mean over n directions has 1/n of the variance: what `directions` buys."""
    function, _ = quadratic(20)
    w = np.random.default_rng(7).standard_normal(20)
    u = directions(seed("variance"), 3200, 20, distribution)
    singles = single_estimates(function, w, u, distribution)
    ratio = singles.var(0).sum() / singles.reshape(400, 8, 20).mean(1).var(0).sum()
    assert 6.5 < ratio < 9.8, "8 in expectation"


def test_the_factor_and_the_shapes():
    assert scale_of(25, "gaussian") == 1.0 and scale_of(25, "sphere") == 25.0
    u = directions(seed("x"), 3, 5, "gaussian")
    assert u.shape == (3, 5) and u.dtype == np.float32
    result = estimate(np.array([0.1, -0.2, 0.3]), u, 0.01, "sphere")
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, 5 / 0.01 * np.array([0.1, -0.2, 0.3]) @ u.astype(float) / 3, rtol=1e-5)
    assert directions(seed("x"), 0, 5, "gaussian").shape == (0, 5)
    np.testing.assert_array_equal(estimate(np.zeros(0), np.zeros((0, 5), np.float32), 0.01, "gaussian"), np.zeros(5))


def test_directions_of_one_upload_differ_and_more_of_them_begin_alike():
    few, many = directions(seed("x"), 3, 50, "gaussian"), directions(seed("x"), 6, 50, "gaussian")
    np.testing.assert_array_equal(few, many[:3])
    assert len({one.tobytes() for one in many}) == 6
    assert np.abs(np.corrcoef(many)[np.triu_indices(6, 1)]).max() < 0.55  # 3.9 standard errors
