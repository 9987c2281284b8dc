"""A block: some rows and columns of a table, read piece by piece.

A table may fill half of the memory, so no function here copies more than one piece of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from colonnade.data.encoding import Encoder
from colonnade.data.table import Table
from colonnade.data.task import Array
from colonnade.protocol.errors import DataError

PIECE = 1 << 18  # elements: 2 MiB as float64, which fits into a core's cache
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Block:
    """The given rows and columns of `x`, encoded if there is an encoder; nothing is copied yet."""

    x: Array | Table  # (all rows, all columns)
    rows: Array  # int64
    columns: Array  # int64
    encoder: Encoder | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the block, after encoding."""
        return len(self.rows), len(self.columns if self.encoder is None else self.encoder.features)

    def pieces(self) -> Iterator[tuple[slice, Array]]:
        """Yield (place among the block's rows, float64 copy of those rows)."""
        encoder = None if self.encoder is None or self.encoder.changes_nothing else self.encoder
        lookups = [] if encoder is None else encoder.lookups(self.x, self.columns)
        # `x[rows]` reads whole rows of an array, but only the block's columns of a table.
        widest = self.x.shape[1] if isinstance(self.x, np.ndarray) else len(self.columns)
        step = max(1, PIECE // max(widest, self.shape[1]))
        for start in range(0, len(self.rows), step):
            place = slice(start, min(start + step, len(self.rows)))
            raw = self._raw(self.rows[place])
            yield place, raw if encoder is None else encoder.encode(raw, lookups)

    def _raw(self, rows: Array) -> Array:
        if isinstance(self.x, Table):
            return self.x.take(rows, self.columns)
        # Rows first: a row is contiguous in memory, and fancy indices on both axes at once are slower.
        return self.x[rows].take(self.columns, axis=1).astype(np.float64, copy=False)


def whole(x: Array) -> Block:
    return Block(x, np.arange(x.shape[0]), np.arange(x.shape[1]))


def refuse_unusable(
    block: Block, party: str, names: Sequence[str], missing: str = "refuse", section: str = "data"
) -> None:
    """Raise DataError if a raw value is NaN, infinite or beyond float32.

    The error names the first such value and counts all in the block.
    """
    if isinstance(block.x, np.ndarray) and block.x.dtype.kind != "f":
        return
    count, first, absent = 0, (0, 0), False
    for place, piece in block.pieces():
        bad = ~(np.abs(piece, out=piece) <= LARGEST)  # not `>`, which is False for NaN
        if missing == "mean":
            bad &= ~np.isnan(piece)
        if not bad.any():
            continue
        if count == 0:
            row, column = np.argwhere(bad)[0]
            first = int(block.rows[place][row]), int(column)
        absent |= bool(np.isnan(piece[bad]).any())
        count += int(bad.sum())
    if count:
        hint = f'; {section}.missing = "mean" fills in missing values (NaN)' if absent else ""
        raise DataError(
            f"{party}: {count} of its values NaN, infinite or too large for 32-bit floats,"
            f" the first in column '{names[first[1]]}', row {first[0]} (counted from 0){hint}"
        )


def training_means(block: Block, party: str, names: Sequence[str]) -> Array:
    """Return the mean of each raw column over its present values; refuses a column without any."""
    total, count = np.zeros(block.shape[1]), np.zeros(block.shape[1])
    for _, piece in block.pieces():
        total += np.nansum(piece, axis=0)
        count += np.count_nonzero(~np.isnan(piece), axis=0)
    if not count.all():
        name = names[int(np.argmin(count))]
        raise DataError(f"{party}: column '{name}' has no value in any training row, so there is no mean to fill in")
    means: Array = total / count
    return means
