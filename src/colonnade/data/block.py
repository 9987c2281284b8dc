"""A block: some rows and some columns of a table, looked at piece by piece.

A table may fill half of the memory, so nothing here makes a copy of more than a piece of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from colonnade.data.task import Array
from colonnade.protocol.errors import DataError

PIECE = 1 << 18  # elements: 2 MiB as float64, which the cache of a core still holds
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The given rows and columns of `x`, none of them copied yet."""

    x: Array  # (all rows, all columns)
    rows: Array  # int64
    columns: Array  # int64

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the block."""
        return len(self.rows), len(self.columns)

    def pieces(self) -> Iterator[tuple[slice, Array]]:
        """Yield (place among the block's rows, float64 copy of those rows)."""
        step = max(1, PIECE // self.x.shape[1])
        for start in range(0, len(self.rows), step):
            place = slice(start, min(start + step, len(self.rows)))
            # Rows first: rows lie together in memory, and fancy indices on both axes at once are slower.
            yield place, self.x[self.rows[place]].take(self.columns, axis=1).astype(np.float64, copy=False)


def whole(x: Array) -> Block:
    """Return the block of all rows and columns."""
    return Block(x, np.arange(x.shape[0]), np.arange(x.shape[1]))


def refuse_unusable(block: Block, party: str, names: Sequence[str]) -> None:
    """Raise if a value is NaN, infinite or beyond float32, naming the first and counting all of the block."""
    if block.x.dtype.kind != "f":
        return
    count, first = 0, (0, 0)
    for place, piece in block.pieces():
        bad = ~(np.abs(piece, out=piece) <= LARGEST)  # not >, which is false for NaN
        if not bad.any():
            continue
        if count == 0:
            row, column = np.argwhere(bad)[0]
            first = int(block.rows[place][row]), int(column)
        count += int(bad.sum())
    if count:
        raise DataError(
            f"{party}: {count} of its values NaN, infinite or too large for 32-bit floats,"
            f" the first in column '{names[first[1]]}', row {first[0]} (counted from 0)"
        )
