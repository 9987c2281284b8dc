"""Choose the rows of each batch: by a walk through seeded permutations, or by independent draws.

A position alone determines a batch, so members that share a seed agree on it without a message.
"""

from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from colonnade.algorithms.training import Training
from colonnade.protocol.messages import Array
from colonnade.protocol.seeds import generator

__all__ = [
    "Draws",
    "Order",
    "Rows",
    "Walk",
    "are_distinct",
    "are_same",
    "is_rows",
    "rows_per_message",
    "walk_of",
    "walks_of",
]

MOST_ROWS, MOST_BYTES = 8192, 32 * 2**20  # limits of a message when a party sends all rows of a table

CACHED = 8  # newest draws to keep, because each is asked for several times

Rows = npt.NDArray[np.int32]


def rows_per_message(width: int) -> int:
    """Return how many rows of `width` float32 values one message carries."""
    return max(1, min(MOST_ROWS, MOST_BYTES // (4 * width)))


def is_rows(array: Array, rows: int) -> bool:
    """Check that a peer's array holds row numbers of a table with `rows` rows."""
    if array.ndim != 1 or array.dtype != np.int32:
        return False
    return not len(array) or bool(array.view(np.uint32).max() < rows)  # as uint32, a negative number is huge


def are_same(array: Array, rows: Rows) -> bool:
    """Check that a peer's array holds exactly these row numbers."""
    return array.dtype == np.int32 and array.shape == rows.shape and array.tobytes() == rows.tobytes()


def are_distinct(rows: Rows) -> bool:
    """Check that no row number repeats."""
    return len(set(rows.tolist())) == len(rows)


# A server and the parties whose uploads it checks share this memory if they are in one process.
_permutations: WeakValueDictionary[tuple[str | int, ...], Rows] = WeakValueDictionary()


def _permutation(rows: int, seed: int, *path: str | int) -> Rows:
    order = _permutations.get((rows, seed, *path))
    if order is None:
        order = np.arange(rows, dtype=np.int32)
        generator(seed, *path).shuffle(order)  # gives the same order as `permutation` in half the memory
        order.flags.writeable = False
        _permutations[rows, seed, *path] = order
    return order


class Walk:
    """Batches of a new permutation in every epoch. The last batch of an epoch may be shorter.

    If fewer than `smallest` rows remain at the end, they join the last whole batch. Every epoch has every row once.
    Two walks with the same seed and path are equal, so a shared walk needs no messages. A walk's state is its position.
    """

    def __init__(self, rows: int, batch_size: int, seed: int, *path: str | int, smallest: int = 1) -> None:
        self._rows, self._batch_size, self._seed, self._path = rows, min(batch_size, rows), seed, path
        whole, rest = divmod(rows, self._batch_size)
        self.per_epoch = whole + (rest >= smallest)
        self._epoch = -1
        self._order = np.zeros(0, np.int32)

    def batch(self, position: int) -> Rows:
        """Return the rows of batch number `position`, counted from 0 through all epochs."""
        epoch, place = divmod(position, self.per_epoch)
        stop = (place + 1) * self._batch_size if place + 1 < self.per_epoch else self._rows
        return self._epoch_of(epoch)[place * self._batch_size : stop]

    def size(self, position: int) -> int:
        """Return the number of rows of that batch, without making its epoch's permutation."""
        last = position % self.per_epoch == self.per_epoch - 1
        return self._rows - (self.per_epoch - 1) * self._batch_size if last else self._batch_size

    def _epoch_of(self, epoch: int) -> Rows:
        if epoch != self._epoch:
            self._order = _permutation(self._rows, self._seed, *self._path, epoch)
            self._epoch = epoch
        return self._order

    def rows_from(self, walked: int, count: int) -> Rows:
        """Return the `count` rows after the first `walked` rows of all epochs, or fewer at the end of the epoch."""
        epoch, start = divmod(walked, self._rows)
        return self._epoch_of(epoch)[start : start + count]

    def following(self, position: int, count: int) -> Rows:
        """Return `count` rows of the batches after `position`: the next rows of other parties on the same walk."""
        pieces: list[Rows] = []
        while count > 0:
            position += 1
            pieces.append(self.batch(position)[:count])
            count -= len(pieces[-1])
        return np.concatenate(pieces)

    def opposite(self, position: int, count: int) -> Rows:
        """Return `count` further rows of the epoch, in blocks as far as possible from this batch and from each other.

        A party that uploads them with every batch halves (thirds, …) the greatest staleness of a row.
        """
        after = position % self.per_epoch * self._batch_size + len(self.batch(position))
        rest = len(self._order) - len(self.batch(position))
        count = min(count, rest)
        blocks, free = -(-count // self._batch_size), rest - count
        places = np.arange(count)
        gaps = free * (places // self._batch_size + 1) // (blocks + 1)  # rows skipped before the block of each row
        chosen: Rows = self._order[(after + places + gaps) % len(self._order)]
        return chosen


class Draws:
    """Batches that are independent of each other, as papers draw them: `train.sampling = "iid"`.

    A batch has no row twice: the server counts and checks rows, and a private step must have every record once.
    The order of its rows is random, too, so its first rows are a smaller draw.
    """

    shuffled = True

    def __init__(self, rows: int, batch_size: int, seed: int, *path: str | int) -> None:
        self._rows, self._batch_size, self._seed, self._path = rows, min(batch_size, rows), seed, path
        self.per_epoch = -(-rows // self._batch_size)  # batches with as many rows as the table has
        self._cached: dict[int, Rows] = {}

    def batch(self, position: int) -> Rows:
        """Return the rows of batch number `position`."""
        found = self._cached.get(position)
        if found is None:
            draw = generator(self._seed, *self._path, position)
            found = draw.choice(self._rows, self._batch_size, replace=False, shuffle=self.shuffled).astype(np.int32)
            if len(self._cached) >= CACHED:
                del self._cached[next(iter(self._cached))]
            self._cached[position] = found
        return found

    def size(self, position: int) -> int:
        """Return the number of rows of that batch: all have the same."""
        return self._batch_size


Order = Walk | Draws


def walk_of(training: Training, party: int | None, smallest: int = 1) -> Order:
    """Return the batches of one party, or those that all parties share (None). The server knows them, too."""
    path = ("batches",) if party is None else ("batches", party)
    if training.sampling == "iid":
        return Draws(training.rows, training.batch_size, training.seed, *path)
    return Walk(training.rows, training.batch_size, training.seed, *path, smallest=smallest)


def walks_of(training: Training, parties: int, shared: bool, smallest: int = 1) -> tuple[Order, ...]:
    """Return the batches of each party, as the server computes them to check uploads."""
    common = walk_of(training, None, smallest)
    return tuple(common if shared else walk_of(training, party, smallest) for party in range(parties))
