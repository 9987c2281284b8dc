"""The server's table: the newest embedding of every (row, party), and its staleness.

VAFL Eq. (3): τ_{n,m} counts the global updates since (n, m) was renewed. Memory: N×Σwidth float32 and N×M
int32, nothing else of that order. The table may be float16, and it may be in a file (table_file.py). The embeddings of
a server with a GPU are there, if they are float32 and there is room.

A row that a party has not sent yet is zeros, or the running mean of that party's embeddings (`fill`).
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from colonnade.models.on_device import gathered, zeros
from colonnade.protocol.errors import CheckpointError
from colonnade.protocol.messages import Array
from colonnade.protocol.ports import Storage
from colonnade.protocol.role import Histogram, StalenessSummary
from colonnade.protocol.saved import Component

__all__ = ["EmbeddingTable", "Staleness", "blank", "blocks_of"]

Ages = npt.NDArray[np.int32]
MOST_BINS = 2**14
MOST_AGES = 2**14  # ages counted for an update; with more, only every second (third, …) update is counted

LARGEST_HALF = 65504.0  # the largest float16
SLOWEST = 0.02  # the least weight of an upload in a running mean


def blocks_of(widths: Sequence[int]) -> tuple[slice, ...]:
    """Return the columns of each party's embedding in a row of the table."""
    ends = list(itertools.accumulate(widths))
    return tuple(slice(end - width, end) for end, width in zip(ends, widths, strict=True))


def blank(values: Array, absent: Array, blocks: Sequence[slice]) -> None:
    """Write NaN into the blocks that `absent`, bool (rows, parties), marks."""
    for party, block in enumerate(blocks):
        values[absent[:, party], block] = np.nan


@dataclass(slots=True, init=False)
class Fill(Component):
    """Replaces rows that a party has not sent: μ ← μ + max(0.02, 1/n)·(mean(h) − μ) over its n uploads."""

    means: Array  # (Σ widths,) float32
    uploads: Array  # number of uploads of each party
    missing: Array  # rows that each party has not sent; rows that it lacks do not count

    def __init__(self, rows: int, widths: Sequence[int]) -> None:
        self.means = np.zeros(sum(widths), np.float32)
        self.uploads, self.missing = np.zeros(len(widths), np.int64), np.full(len(widths), rows, np.int64)

    def learn(self, party: int, block: slice, values: Array, new: int) -> None:
        """Count an upload of rows that the party has; `new` of them arrive for the first time."""
        self.uploads[party] += 1
        self.missing[party] -= new
        mean = self.means[block]
        mean += np.float32(max(SLOWEST, 1 / self.uploads[party])) * (np.asarray(values).mean(0) - mean)

    def put(self, values: Array, unsent: Array, widths: Sequence[int]) -> None:
        """Copy the means into the blocks that `unsent`, bool (rows, parties), marks."""
        np.copyto(values, self.means, where=np.repeat(unsent, widths, axis=1))


class EmbeddingTable:
    """Newest embeddings, and the update at which each was renewed.

    With `fill`, `renewed` counts updates from 1, and 0 means that the party never sent the block.
    """

    def __init__(
        self, rows: int, widths: Sequence[int], dtype: str = "float32", fill: bool = False, device: str = "cpu"
    ) -> None:
        self.widths, self.dtype = tuple(widths), np.dtype(dtype)
        self.blocks = blocks_of(self.widths)
        self.fill = Fill(rows, widths) if fill else None
        self._first = int(fill)
        if self.dtype == np.float32 and not fill:
            self.values = zeros(rows, sum(self.widths), device)
        else:
            self.values = np.zeros((rows, sum(self.widths)), self.dtype)
        self.renewed = np.zeros((rows, len(self.widths)), np.int32)
        self.clipped = 0  # embeddings beyond the range of float16
        self._absent: Array | None = None

    def __len__(self) -> int:
        return len(self.values)

    def open(self, storage: Storage, name: str) -> None:
        """Open the table's file in `storage`. A table in memory does nothing."""

    def mark_absent(self, absent: Array) -> None:
        """Set blocks that their party lacks to NaN, whatever it sends; `absent` is bool (rows, parties)."""
        self._note_absent(absent)
        blank(self.values, absent, self.blocks)

    def _note_absent(self, absent: Array) -> None:
        self._absent = absent
        if self.fill is not None:
            self.fill.missing -= np.count_nonzero(absent, axis=0)

    def gather(self, rows: Array) -> Array:
        """Return the newest embeddings of these rows, float32 (rows, Σ widths)."""
        values = self._as_float32(gathered(self.values, rows))
        if self.fill is not None and self.fill.missing.any():
            unsent = self.renewed[rows] == 0
            self.fill.put(values, unsent if self._absent is None else unsent & ~self._absent[rows], self.widths)
        return values

    def parts(self, start: int, stop: int) -> Iterator[Array]:
        """Yield the rows start..stop as float32, in parts that fit into memory."""
        yield self._as_float32(self.values[start:stop])

    def _as_float32(self, values: Array) -> Array:
        return values if self.dtype == np.float32 else values.astype(np.float32)

    def held(self, values: Array) -> Array:
        """Return values in the table's type. float16 clips at ±65504; `clipped` counts the clipped ones."""
        if self.dtype == np.float32:
            return values
        values = np.asarray(values)  # they may be on a GPU
        self.clipped += int(np.count_nonzero(np.abs(values) > LARGEST_HALF))
        return np.clip(values, -LARGEST_HALF, LARGEST_HALF).astype(self.dtype)

    def write(self, party: int, rows: Array, values: Array, k: int) -> None:
        """Store one party's rows as of update k."""
        if self.fill is not None and self.fill.missing[party]:
            self._learn(self.fill, party, rows, values, self.renewed[rows, party] == 0)
        self.values[rows, self.blocks[party]] = self.held(values)
        if self._absent is not None:
            self.values[rows[self._absent[rows, party]], self.blocks[party]] = np.nan
        self.renewed[rows, party] = k + self._first

    def _learn(self, fill: Fill, party: int, rows: Array, values: Array, unsent: Array) -> None:
        """Update the running mean of a party. Call it before the rows are written."""
        if self._absent is not None:
            has = ~self._absent[rows, party]
            rows, values, unsent = rows[has], np.asarray(values)[has], unsent[has]
        if len(rows):
            fill.learn(party, self.blocks[party], values, len(np.unique(rows[unsent])))

    def renew(self, parties: Sequence[int], rows: Array, k: int) -> None:
        """Mark these parties' blocks of these rows as renewed at update k, with unchanged values."""
        self.renewed[rows[:, None], parties] = k + self._first

    def ages(self, rows: Array, k: int) -> Ages:
        """Return τ of every party's block of these rows: (rows, parties)."""
        ages: Ages = k + self._first - self.renewed.take(rows, axis=0)
        return ages

    def ages_of(self, party: int, rows: Array, k: int) -> Ages:
        """Return τ of one party's block of these rows: (rows,)."""
        ages: Ages = k + self._first - self.renewed[rows, party]
        return ages

    def newest(self) -> int:
        """Return the last update at which any block was renewed."""
        return max(0, int(self.renewed.max(initial=0)) - self._first)

    def note(self) -> str:
        """Return a warning for the results if embeddings were clipped; "" otherwise."""
        if not self.clipped:
            return ""
        return (
            f"{self.clipped} embeddings beyond ±{LARGEST_HALF:g} were clipped (server.table_dtype = 'float16'): "
            "lower train.learning_rate, or set 'float32'"
        )

    def save(self) -> dict[str, Any]:
        """Return the state; the arrays in this process's memory are not copied."""
        values = np.asarray(self.values)
        return {"values": values, "renewed": self.renewed, "clipped": self.clipped} | self._saved_fill()

    def _saved_fill(self) -> dict[str, Any]:
        return {} if self.fill is None else {"fill": self.fill.save()}

    def _load_fill(self, saved: dict[str, Any]) -> None:
        if self.fill is not None:
            self.fill.load(saved["fill"])

    def load(self, saved: dict[str, Any]) -> None:
        """Restore what `save` returned; raise CheckpointError if it is of a table in a file."""
        if "values" not in saved:
            raise CheckpointError('the checkpoint is of a run with server.table = "file"; set that, or start a new run')
        self.values[...] = saved["values"]
        self.renewed[...] = saved["renewed"]
        self.clipped = saved.get("clipped", 0)
        self._load_fill(saved)

    def checkpointed(self, saved: dict[str, Any]) -> None:
        """Learn that a checkpoint with this state is on the disk. A table in memory does nothing."""


@dataclass(slots=True, init=False)
class Staleness(Component):
    """The distribution of τ over all used embeddings of other parties, or over a sample of updates (`every`).

    The bins are 2^shift updates wide. They start at 1; when τ outgrows them, every two become one. Mean and maximum
    stay exact.
    """

    counts: Array  # how often each τ occurred
    shift: int
    total: int
    largest: int
    sums: Array  # sum of τ per party since the last `take_means`
    uses: Array

    def __init__(self, parties: int) -> None:
        self.counts, self.shift = np.zeros(64, np.int64), 0
        self.total = self.largest = 0
        self.sums, self.uses = np.zeros(parties, np.int64), np.zeros(parties, np.int64)

    def every(self, rows: int) -> int:
        """Return n: every n-th update with this many rows is counted. n > 1 only for many rows of many parties."""
        return -(-rows * len(self.sums) // MOST_AGES)

    def add(self, ages: Ages, parties: Sequence[int]) -> None:
        """Count the ages of the blocks of `parties`; `ages` is (rows, all parties)."""
        if not len(parties):
            return
        used = ages[:, parties]
        self.sums[parties] += self._count(used)
        self.uses[parties] += len(used)

    def add_others(self, ages: Ages, uploaders: Sequence[int]) -> None:
        """Count the ages of all blocks except those of the uploaders, which are 0 in `ages`."""
        self.sums += self._count(ages)
        self.counts[0] -= len(ages) * len(uploaders)
        self.uses += len(ages)
        self.uses[uploaders] -= len(ages)

    def _count(self, ages: Ages) -> Array:
        """Add the ages to the bins; return the sum of each column."""
        self.largest = max(self.largest, int(ages.max(initial=0)))
        while self.largest >> self.shift >= MOST_BINS:
            self.counts = np.pad(self.counts, (0, len(self.counts) % 2)).reshape(-1, 2).sum(1)
            self.shift += 1
        counts = np.bincount((ages >> self.shift).ravel())
        if len(counts) > len(self.counts):
            self.counts = np.concatenate([self.counts, np.zeros(len(counts), np.int64)])
        self.counts[: len(counts)] += counts
        # 32-bit sums take a third of the time, so use them unless they can overflow.
        sums: Array = ages.sum(0, dtype=np.int32 if self.largest * len(ages) < 2**31 else np.int64)
        self.total += int(sums.sum(dtype=np.int64))
        return sums

    def take_means(self) -> list[float]:
        """Return the mean τ per party since the last call."""
        means: list[float] = (self.sums / np.maximum(self.uses, 1)).tolist()
        self.sums[:], self.uses[:] = 0, 0
        return means

    def summary(self) -> StalenessSummary:
        """Return the mean, the 95th percentile and the maximum over the whole run."""
        uses = int(self.counts.sum())
        if not uses:
            return {"mean": 0.0, "p95": 0.0, "max": 0.0}
        p95 = (int(np.searchsorted(np.cumsum(self.counts), 0.95 * uses)) + 1 << self.shift) - 1  # last of its bin
        return {"mean": self.total / uses, "p95": float(min(p95, self.largest)), "max": float(self.largest)}

    def histogram(self) -> Histogram:
        """Return how often embeddings of each age were used, in bins of `width` updates."""
        return {"width": 1 << self.shift, "counts": self.counts.tolist()}
