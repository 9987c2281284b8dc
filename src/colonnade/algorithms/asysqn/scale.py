"""Measured step sizes for `train.learning_rate = "auto"`: the smoothness of a party's own part of the objective.

A party measures it on its own training rows when the role is made, as it scales its columns: two passes over the rows,
and `ITERATIONS` passes over a sample. None of it leaves the party.

    here          in formulas
    gains         g_j = (a·mean_i x_ij² + e·max_i x_ij² + λ/σ)^{-1/2}: steps are taken on u_j = w_j/g_j
    smoothness    L = a·λ_max(G(σXᵀX/n + Λ)G) + e·σ·max_i ‖Gx_i‖²: the expected smoothness of a batch, in u
    a, e          n(b − 1)/(b(n − 1)) and (n − b)/(b(n − 1)): of the mean over all rows, of the worst row; a + e = 1
    σ             the largest L″: `Loss.steepest`
    rate          c/(q·max(1, ahead)), a factor of H_k (first-order: of I/L)
    floor         the least γ_k of Alg. 1, a share of L; L itself is γ before the first pair

Gains make one rate fit columns of any unit. They change the way to the optimum, not the optimum. `e` is the part that a
batch adds by chance: a rare column weighs a lot in the few batches that have it (expected smoothness: Gower, Richtárik,
Bach, 2018; Gazagnadou, Gower, Salmon, 2019).

q blocks move at once. The Hessian is at most q times its diagonal blocks, so a rate of 1/q never overshoots. With
`ahead`, a step uses margins from before the last steps: x_k+1 = x_k − c·x_k−τ is stable for c < 2, 1, 0.62 and 0.45
with τ = 0, 1, 2 and 3. The rest of the distance is for batches, whose curvature is noisy. The paper's conditions on γ
(Thm. 4–6) have the same parts: L and L_max, the overlap τ₁ and the bounds of H.

# DEVIATION: the paper tries rates and takes the best one. Its steps are on w itself (`GIVEN`), from w = 0.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from colonnade.algorithms.asysqn.config import LinearOptions
from colonnade.algorithms.asysqn.holdings import Holdings
from colonnade.protocol.messages import Array

__all__ = ["GIVEN", "Scale", "measured"]

# Chosen on credit card, a9a, mfeat and digits (docs/results/asysqn.md).
FACTOR = 0.5  # c
FLOOR = 0.1  # share of L: a newest pair along a flat direction would make H large along all others
SAMPLE, ITERATIONS = 1024, 10  # rows and steps of the power iteration


class Scale(NamedTuple):
    """The scale of a party's steps, and the intercept that they start from."""

    gains: Array | float = 1.0
    smoothness: float = 1.0
    floor: float = 0.0
    rate: float = 1.0
    start: float = 0.0  # the intercept, and with w = 0 every margin: the best model without columns


GIVEN = Scale()  # for a rate from the config: steps as printed


def measured(held: Holdings, options: LinearOptions, batch_size: int, parties: int) -> Scale:
    """The scale for the training rows and batches of this size."""
    block, steepest, penalties = held.train, held.loss.steepest, held.penalties
    n, b = block.rows, min(batch_size, block.rows)
    e = (n - b) / (b * (n - 1)) if n > 1 else 0.0
    mean, largest = _squares_of_columns(block.x)
    steep = (1.0 - e) * mean + e * largest + penalties / steepest
    gains = 1.0 / np.sqrt(np.where(steep > 0.0, steep, 1.0))
    sample = block.take(np.linspace(0, n - 1, min(n, SAMPLE)).astype(np.int32))
    curvature = _largest_eigenvalue(sample, steepest, penalties, gains)
    worst = steepest * float(_squares_of_rows(block.x, gains).max())
    smoothness = (1.0 - e) * curvature + e * worst
    return Scale(
        gains,
        smoothness,
        FLOOR * smoothness,
        FACTOR / (parties * max(1, options.ahead)),
        held.loss.constant(held.y) if options.intercept else 0.0,
    )


def _largest_eigenvalue(sample: Any, steepest: float, penalties: float | Array, gains: Array) -> float:
    """λ_max(G(σXᵀX/m + Λ)G) of m rows, by power iteration."""
    vector, length = np.random.default_rng(0).standard_normal(len(gains)), 0.0
    for _ in range(ITERATIONS):
        scaled = gains * vector / np.linalg.norm(vector)
        vector = gains * (steepest * (sample.T @ (sample @ scaled)) / sample.shape[0] + penalties * scaled)
        length = float(np.linalg.norm(vector))
        if length == 0.0:
            break  # all rows of the sample are zero
    return length


def _squares_of_columns(x: Any) -> tuple[Array, Array]:
    """For each column, the mean and the largest x_ij²."""
    if sparse.issparse(x):
        squares = x.multiply(x).tocsr()
        return np.asarray(squares.mean(0)).ravel(), squares.max(0).toarray().ravel()
    return np.einsum("nd,nd->d", x, x) / len(x), np.square(np.maximum(x.max(0), -x.min(0)))


def _squares_of_rows(x: Any, gains: Array) -> Array:
    """‖Gx_i‖² of each row."""
    if sparse.issparse(x):
        return np.asarray(x.multiply(x) @ np.square(gains)).ravel()
    squares: Array = np.einsum("nd,nd,d->n", x, x, np.square(gains))
    return squares
