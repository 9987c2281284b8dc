"""Extrapolation from the snapshots of SVRG: the best point of the plane through the newest snapshots.

At a snapshot all parties hold the same margins θ of all rows. Along the plane w(a) = Σ a_i w_i with Σ a_i = 1, through
the newest snapshots, the margins are Σ a_i θ_i: known without a message. The penalty there is ½ aᵀGa, with
G_ij = λ Σ_ℓ w_{i,ℓ}ᵀw_{j,ℓ}. Each party adds its part of the newest row of G to its margins (`Snapshots.tail`), so the
masked sum of a snapshot brings it. All parties compute the same a, each moves its own block, and a is taken only if the
objective falls.

    here        in formulas
    thetas      θ_i of the newest snapshots, the oldest first; θ of the present one is the last
    gram        G
    a           the coefficients; (0, …, 0, 1) is the present point

One-hot columns of several parties add up to the same constant. Along such directions the blocks' own curvature is
large and the objective's is λ, and steps that know only their own block need thousands of rounds. Differences of
snapshots point along these directions. G is needed because θ does not change along them.

# DEVIATION: Alg. 4 continues from w^s. This is Anderson's acceleration (1965), with the objective in the place of the
# residual: sequential subspace optimisation (Narkiss and Zibulevsky, 2005).
"""

from dataclasses import dataclass, field

import numpy as np

from colonnade.algorithms.asysqn.losses import Loss
from colonnade.protocol.messages import Array

__all__ = ["Snapshots", "best_coefficients", "window_of"]

WINDOW = 10  # snapshots to keep
MOST = 2**24  # margins to keep
HALVINGS = 4  # of a Newton step
SAMPLE = 4096  # rows for second derivatives
LARGEST = 1e3  # of Σ|a|: beyond it, rounding of fixed point counts
RIDGE = 1e-9  # relative to the diagonal of the Hessian


def window_of(rows: int) -> int:
    """How many snapshots parties with this many rows keep."""
    return min(WINDOW, MOST // rows)


@dataclass(slots=True, kw_only=True)
class Snapshots:
    """One party's record of the newest snapshots, the oldest first."""

    barriers: list[int] = field(default_factory=list)  # their names
    weights: list[Array] = field(default_factory=list)  # w_ℓ
    thetas: list[Array] = field(default_factory=list)
    gram: Array = field(default_factory=lambda: np.zeros((0, 0)))

    def tail(self, w: Array, penalties: float | Array, barriers: list[int], window: int) -> Array:
        """What this party adds to its margins: a 1 if it has the same snapshots, and its part of G's newest row."""
        values = np.zeros(window + 2)
        if barriers == self.barriers:
            values[0] = 1.0
            products = [float((penalties * w) @ other) for other in (*self.weights, w)]
            values[1 : 1 + len(products)] = products
        return values

    def renewed(self, barrier: int, w: Array, theta: Array, row: Array, window: int) -> "Snapshots":
        """The record with this snapshot, which `row` of G belongs to; an empty one if there is no row."""
        if not len(row):
            return Snapshots()
        kept = slice(max(0, len(self.barriers) + 1 - window), None)
        gram = np.block([[self.gram, row[:-1, None]], [row[None]]]) if len(row) > 1 else row[None]
        return Snapshots(
            barriers=[*self.barriers, barrier][kept],
            weights=[*self.weights, w][kept],
            thetas=[*self.thetas, theta][kept],
            gram=gram[kept, kept],
        )

    def row(self, tail: Array, parties: int) -> Array:
        """G's newest row, from the sum of all parties' tails; empty if not all of them have the same snapshots."""
        row: Array = tail[1 : 2 + len(self.barriers)]
        return row if len(tail) and tail[0] == parties else row[:0]

    def moved(self, a: Array) -> tuple[Array, Array]:
        """w_ℓ and θ at these coefficients."""
        return _sum(a, self.weights), _sum(a, self.thetas)


def _sum(a: Array, vectors: list[Array]) -> Array:
    found: Array = a[0] * vectors[0]
    for factor, vector in zip(a[1:], vectors[1:], strict=True):
        found += factor * vector
    return found


def best_coefficients(thetas: list[Array], gram: Array, loss: Loss, y: Array, error: float) -> Array | None:
    """A Newton step for a, with second derivatives of a sample of the rows; None if the objective does not fall.

    `error` is the largest error of an entry of G.
    """
    at = np.linspace(0, len(y) - 1, min(len(y), SAMPLE)).astype(np.int32)
    sample = np.stack([theta[at] for theta in thetas])
    curves = loss.second_derivative(sample[-1], y[at])
    slopes = loss.derivative(thetas[-1], y)
    here = np.zeros(len(thetas))
    here[-1] = 1.0
    gradient = np.array([theta @ slopes for theta in thetas]) / len(y) + gram @ here
    step = _newton(gradient, (sample * curves) @ sample.T / len(at) + gram)
    value = _objective(thetas[-1], here, gram, loss, y)
    for halving in range(1 + HALVINGS):
        a = here + step * 0.5**halving
        size = float(np.abs(a).sum())
        if size <= LARGEST and _objective(_sum(a, thetas), a, gram, loss, y) + error * (1.0 + size) ** 2 < value:
            return a
    return None


def _objective(theta: Array, a: Array, gram: Array, loss: Loss, y: Array) -> float:
    return float(loss.value(theta, y).mean() + 0.5 * a @ gram @ a)


def _newton(gradient: Array, hessian: Array) -> Array:
    """The Newton step within Σ a = 1: free in all coefficients but the last."""
    g = gradient[:-1] - gradient[-1]
    h = hessian[:-1, :-1] - hessian[-1:, :-1] - hessian[:-1, -1:] + hessian[-1, -1]
    scale = 1.0 / np.sqrt(np.maximum(np.diag(h), np.finfo(float).tiny))
    free = -scale * np.linalg.solve(scale[:, None] * h * scale + RIDGE * np.eye(len(g)), scale * g)
    step: Array = np.append(free, -free.sum())
    return step
