"""Batches drawn independently of each other, as in Alg. 5.

SAGA's estimate is unbiased only if every row is equally likely to come next. On a walk through a permutation, the next
batch has rows that were not yet visited, and their slopes are the oldest. The change since then is counted as if all
rows were that old: at the end of an epoch, up to n/b times too much. SAGA then diverges at learning rates at which
SVRG, whose reference is of one moment, does not.
"""

from colonnade.algorithms import batches
from colonnade.algorithms.batches import CACHED

__all__ = ["CACHED", "Draws"]


class Draws(batches.Draws):
    """Batches without a repeated row. Linear steps do not depend on the order of rows, so it is not drawn."""

    shuffled = False
