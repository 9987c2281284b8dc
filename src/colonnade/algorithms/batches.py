"""Which rows come next: a walk through seeded permutations, known from its position alone."""

import numpy as np
import numpy.typing as npt

from colonnade.protocol.seeds import generator

__all__ = ["Walk"]

Rows = npt.NDArray[np.int32]


class Walk:
    """Batches of a new permutation in every epoch; the last batch of an epoch may be shorter.

    Two walks with the same seed and path are the same, so a shared walk needs no messages, and a walk's
    state is its position.
    """

    def __init__(self, rows: int, batch_size: int, seed: int, *path: str | int) -> None:
        self._rows, self._batch_size, self._seed, self._path = rows, min(batch_size, rows), seed, path
        self.per_epoch = -(-rows // self._batch_size)
        self._epoch = -1
        self._order = np.zeros(0, np.int32)

    def batch(self, position: int) -> Rows:
        """The rows of batch number `position`, counted from 0 through all epochs."""
        epoch, place = divmod(position, self.per_epoch)
        if epoch != self._epoch:
            self._order = generator(self._seed, *self._path, epoch).permutation(self._rows).astype(np.int32)
            self._epoch = epoch
        return self._order[place * self._batch_size : (place + 1) * self._batch_size]
