"""Which rows come next: a walk through seeded permutations, known from its position alone."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from colonnade.protocol.messages import Array
from colonnade.protocol.seeds import generator

__all__ = ["Rows", "Walk", "is_rows", "rows_per_message"]

MOST_ROWS, MOST_BYTES = 8192, 32 * 2**20  # of embeddings in one message, where all rows of a table are sent

Rows = npt.NDArray[np.int32]


def rows_per_message(width: int) -> int:
    """How many rows of so many float32 to send at a time."""
    return max(1, min(MOST_ROWS, MOST_BYTES // (4 * width)))


def is_rows(array: Array, rows: int) -> bool:
    """Whether a peer's array is row numbers of a table with so many rows."""
    if array.ndim != 1 or array.dtype != np.int32:
        return False
    return not len(array) or bool(array.view(np.uint32).max() < rows)  # negative: huge


@lru_cache(maxsize=1)  # parties on a shared walk, in one process, share its memory, too
def _permutation(rows: int, seed: int, *path: str | int) -> Rows:
    order = np.arange(rows, dtype=np.int32)
    generator(seed, *path).shuffle(order)  # as `permutation`, in half of its memory
    order.flags.writeable = False
    return order


class Walk:
    """Batches of a new permutation in every epoch; the last batch of an epoch may be shorter.

    A rest of fewer than `smallest` rows joins the batch before it: every epoch has every row once, whatever is the
    smallest batch of use. Two walks with the same seed and path are the same, so a shared walk needs no messages, and
    a walk's state is its position.
    """

    def __init__(self, rows: int, batch_size: int, seed: int, *path: str | int, smallest: int = 1) -> None:
        self._rows, self._batch_size, self._seed, self._path = rows, min(batch_size, rows), seed, path
        whole, rest = divmod(rows, self._batch_size)
        self.per_epoch = whole + (rest >= smallest)
        self._epoch = -1
        self._order = np.zeros(0, np.int32)

    def batch(self, position: int) -> Rows:
        """The rows of batch number `position`, counted from 0 through all epochs."""
        epoch, place = divmod(position, self.per_epoch)
        stop = (place + 1) * self._batch_size if place + 1 < self.per_epoch else self._rows
        return self._epoch_of(epoch)[place * self._batch_size : stop]

    def _epoch_of(self, epoch: int) -> Rows:
        if epoch != self._epoch:
            self._order = _permutation(self._rows, self._seed, *self._path, epoch)
            self._epoch = epoch
        return self._order

    def rows_from(self, walked: int, count: int) -> Rows:
        """The next `count` rows after `walked` rows through all epochs, or as many as the epoch still has."""
        epoch, start = divmod(walked, self._rows)
        return self._epoch_of(epoch)[start : start + count]

    def following(self, position: int, count: int) -> Rows:
        """`count` rows of the batches after `position`: where others on the same walk come to next."""
        pieces: list[Rows] = []
        while count > 0:
            position += 1
            pieces.append(self.batch(position)[:count])
            count -= len(pieces[-1])
        return np.concatenate(pieces)

    def opposite(self, position: int, count: int) -> Rows:
        """`count` further rows of the epoch, in blocks as far from this batch and each other as can be.

        Uploaded beside every batch they halve (third, …) the age that a row reaches before it is renewed.
        """
        after = position % self.per_epoch * self._batch_size + len(self.batch(position))
        rest = len(self._order) - len(self.batch(position))
        count = min(count, rest)
        blocks, free = -(-count // self._batch_size), rest - count
        places = np.arange(count)
        gaps = free * (places // self._batch_size + 1) // (blocks + 1)  # before the block that a row is in
        chosen: Rows = self._order[(after + places + gaps) % len(self._order)]
        return chosen
