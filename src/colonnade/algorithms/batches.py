"""Which rows come next: a walk through seeded permutations, known from its position alone."""

import numpy as np
import numpy.typing as npt

from colonnade.protocol.seeds import generator

__all__ = ["Rows", "Walk"]

Rows = npt.NDArray[np.int32]


class Walk:
    """Batches of a new permutation in every pass; the last batch of a pass may be shorter.

    Two walks with the same seed and path are the same, so a shared walk needs no messages, and a walk's
    state is its position.

    With `first_pass` the first pass goes over that many batches only, and each further one over twice as many
    until all rows take part. The working set is the same for every walk of a seed, whatever its path: while
    it is small, the table's rows are renewed often.
    """

    def __init__(self, rows: int, batch_size: int, seed: int, *path: str | int, first_pass: int | None = None) -> None:
        self._rows, self._batch_size, self._seed, self._path = rows, min(batch_size, rows), seed, path
        self.per_epoch = -(-rows // self._batch_size)
        self._first = min(first_pass or self.per_epoch, self.per_epoch)
        self._order = np.zeros(0, np.int32)
        self._pass = -1

    def batch(self, position: int) -> Rows:
        """The rows of batch number `position`, counted from 0 through all passes."""
        number, batches, place = self._locate(position)
        if number != self._pass:
            self._order = self._permutation(number, min(batches * self._batch_size, self._rows))
            self._pass = number
        return self._order[place * self._batch_size : (place + 1) * self._batch_size]

    def following(self, position: int, count: int) -> Rows:
        """`count` rows of the batches after `position`: where others on the same walk come to next."""
        pieces: list[Rows] = []
        while count > 0:
            position += 1
            pieces.append(self.batch(position)[:count])
            count -= len(pieces[-1])
        return np.concatenate(pieces)

    def opposite(self, position: int, count: int) -> Rows:
        """`count` further rows of the pass, in blocks as far from this batch and each other as can be.

        Uploaded beside every batch they halve (third, …) the age that a row reaches before it is renewed.
        """
        _, _, place = self._locate(position)
        after = place * self._batch_size + len(self.batch(position))
        rest = len(self._order) - len(self.batch(position))
        count = min(count, rest)
        blocks, free = -(-count // self._batch_size), rest - count
        places = np.arange(count)
        gaps = free * (places // self._batch_size + 1) // (blocks + 1)  # before the block that a row is in
        chosen: Rows = self._order[(after + places + gaps) % len(self._order)]
        return chosen

    def _locate(self, position: int) -> tuple[int, int, int]:
        """(pass, its batches, place in it)."""
        number, batches = 0, self._first
        while batches < self.per_epoch and position >= batches:
            position -= batches
            number, batches = number + 1, min(2 * batches, self.per_epoch)
        whole, place = divmod(position, batches)
        return number + whole, batches, place

    def _permutation(self, number: int, rows: int) -> Rows:
        order = generator(self._seed, *self._path, number).permutation(rows).astype(np.int32)
        if rows == self._rows:
            return order
        working_set: Rows = generator(self._seed, "working set").permutation(self._rows)[:rows].astype(np.int32)
        return working_set[order]
