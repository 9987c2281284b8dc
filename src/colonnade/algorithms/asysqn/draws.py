"""Batches drawn independently of each other, as in Alg. 5.

SAGA's estimate is unbiased only if every row is equally likely to come next. On a walk through a permutation, the next
batch has rows that were not yet visited, and their slopes are the oldest. The change since then is counted as if all
rows were that old: at the end of an epoch, up to n/b times too much. SAGA then diverges at learning rates at which
SVRG, whose reference is of one moment, does not.
"""

import numpy as np

from colonnade.algorithms.batches import Rows
from colonnade.protocol.seeds import generator

__all__ = ["Draws"]

CACHED = 8  # newest batches to keep, because each is asked for several times


class Draws:
    """Batches without a repeated row; each depends on its position alone, like those of a `Walk`."""

    def __init__(self, rows: int, batch_size: int, seed: int, *path: str | int) -> None:
        self._rows, self._batch_size, self._seed, self._path = rows, min(batch_size, rows), seed, path
        self._cached: dict[int, Rows] = {}

    def batch(self, position: int) -> Rows:
        """The rows of batch number `position`."""
        found = self._cached.get(position)
        if found is None:
            draw = generator(self._seed, *self._path, position)
            found = draw.choice(self._rows, self._batch_size, replace=False, shuffle=False).astype(np.int32)
            if len(self._cached) >= CACHED:
                del self._cached[next(iter(self._cached))]
            self._cached[position] = found
        return found
