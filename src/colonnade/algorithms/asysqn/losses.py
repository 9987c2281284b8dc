"""Losses of linear models, as functions of the margin θ_i: AsySQN problem (P), Eq. (14), (28).

    f(w, b) = 1/n Σ_i L(θ_i, y_i) + λ/2·‖w‖²,  with the intercept b in θ_i = wᵀx_i + b (protocol.intercept)

    name       L(θ, y)             labels   the same as
    logistic   log(1 + e^{−yθ})    ±1       scikit-learn's LogisticRegression with C = 1/(nλ)
    ridge      ½(θ − y)²           real     its Ridge with alpha = nλ
    ls-svm     ½(1 − yθ)²          ±1       Suykens and Vandewalle's; on ±1 it is ridge's L
    huber      ½(θ − y)² up to |θ − y| = δ, then δ(|θ − y| − δ/2), for real labels: steps of AsySQN need L″, which
               is 0 for the absolute error everywhere, so that one is not among these losses

The paper prints only the logistic loss, with λ/2·‖w‖² beside a mean (28): λ does not grow with n, and the gradient of
the penalty is λw. It gives no factor for squares. ½ is that of Suykens and Vandewalle (1999), its source for ls-svm.

Huber's loss is not in the paper. It has the properties that its theorems ask of L: convex, with a bounded L″.

# DEVIATION: (P) has no intercept. Without one, the columns alone cannot separate classes of unequal size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from colonnade.protocol.messages import Array

__all__ = ["FAR", "LOSSES", "Loss", "at_zero", "huber", "penalty", "probability"]

BISECTIONS = 60  # halve an interval to the last digits of a float64
FAR = 10.0  # times the loss at w = 0: training does not recover from there


@dataclass(frozen=True, slots=True)
class Loss:
    """One loss: functions of margins (rows,) and labels (rows,), each with one value per row."""

    name: str
    value: Callable[[Array, Array], Array]
    derivative: Callable[[Array, Array], Array]  # ∂L/∂θ: H of (14)
    second_derivative: Callable[[Array, Array], Array]  # σ′ of the curvature pair
    predict: Callable[[Array], Array]  # labels ±1, or ridge's values
    signed: bool  # labels are ±1
    steepest: float  # the largest second derivative
    constant: Callable[[Array], float]  # the best margin without any column


def at_zero(loss: Loss, y: Array) -> float:
    """1/n Σ L(0, y_i): the loss at w = 0."""
    return float(np.mean(loss.value(np.zeros(len(y)), y)))


def penalty(w: Array, l2: float) -> float:
    """λ/2·‖w‖² of one block; the penalties of blocks add up."""
    return 0.5 * l2 * float(w @ w)


def probability(theta: Array) -> Array:
    """P(y = +1) of the logistic model."""
    p: Array = expit(theta)
    return p


def _logistic(theta: Array, y: Array) -> Array:
    losses: Array = np.logaddexp(0.0, -y * theta)
    return losses


def _logistic_derivative(theta: Array, y: Array) -> Array:
    slopes: Array = -y * expit(-y * theta)
    return slopes


def _logistic_second_derivative(theta: Array, y: Array) -> Array:
    curves: Array = expit(theta) * expit(-theta)
    return curves


def _log_odds(y: Array) -> float:
    positive = (float((y > 0).sum()) + 0.5) / (len(y) + 1.0)  # finite even if all labels are the same
    return float(np.log(positive / (1.0 - positive)))


def _squares(theta: Array, y: Array) -> Array:
    losses: Array = 0.5 * np.square(theta - y)
    return losses


def _squared_slack(theta: Array, y: Array) -> Array:
    losses: Array = 0.5 * np.square(1.0 - y * theta)
    return losses


def _difference(theta: Array, y: Array) -> Array:
    """The derivative of both squared losses: −y(1 − yθ) = θ − y where y² = 1."""
    slopes: Array = theta - y
    return slopes


def huber(delta: float) -> Loss:
    """Huber's loss: squares of errors up to δ, in the unit of the labels, and δ·|error| beyond."""

    def value(theta: Array, y: Array) -> Array:
        size = np.abs(theta - y)
        losses: Array = np.where(size <= delta, 0.5 * np.square(size), delta * (size - 0.5 * delta))
        return losses

    def slope(theta: Array, y: Array) -> Array:
        slopes: Array = np.clip(theta - y, -delta, delta)
        return slopes

    def curve(theta: Array, y: Array) -> Array:
        return np.where(np.abs(theta - y) <= delta, 1.0, 0.0)

    def constant(y: Array) -> float:
        """The root of Σ slope, which rises with θ: by bisection, between the least and the largest label."""
        low, high = float(y.min()), float(y.max())
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if slope(np.full(1, middle), y).sum() < 0.0 else (low, middle)
        return 0.5 * (low + high)

    return Loss("huber", value, slope, curve, _itself, False, 1.0, constant)


def _mean(y: Array) -> float:
    return float(np.mean(y))


def _ones(theta: Array, y: Array) -> Array:
    return np.ones(theta.shape)


def _signs(theta: Array) -> Array:
    return np.where(theta >= 0.0, 1.0, -1.0)


def _itself(theta: Array) -> Array:
    return theta


LOSSES = {
    loss.name: loss
    for loss in (
        Loss("logistic", _logistic, _logistic_derivative, _logistic_second_derivative, _signs, True, 0.25, _log_odds),
        Loss("ridge", _squares, _difference, _ones, _itself, False, 1.0, _mean),
        Loss("ls-svm", _squared_slack, _difference, _ones, _signs, True, 1.0, _mean),
    )
}
