"""Smaller batches for slow parties: the server measures how fast each uploads, and tells the slow ones.

A party's pace is the median time between its uploads, per row, over the last few of them. A party that takes `SLOW`
times as long as the fastest gets half batches: its block is then stepped twice as often, with the same work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from colonnade.protocol.saved import Component

__all__ = ["Paces", "Stride", "smaller"]

SLOW, QUICK = 2.0, 1.5  # times the fastest: half batches from here on, whole ones again below
KEPT, ENOUGH = 9, 5  # intervals of a party


def smaller(batch_size: int) -> int:
    """Rows of a slow party's batch."""
    return max(1, batch_size // 2)


@dataclass(slots=True)
class Stride(Component):
    """How a party walks through its rows whose batches may change their size: every epoch still has each row once."""

    size: int  # rows of the batch in work
    following: int  # of the next one, as the server says
    walked: int = 0  # rows before the batch in work

    def move_on(self, rows: int) -> None:
        """That batch is over; the next may have another size."""
        self.walked += rows
        self.size = self.following


@dataclass(slots=True, init=False)
class Paces(Component):
    """What the server has measured of each party, by its own clock."""

    last: list[int | None]  # when the last upload came; None: what came between is no interval
    intervals: list[list[float]]  # nanoseconds per row, of the last uploads
    medians: list[float]  # infinite until there are enough
    told: list[int]  # rows of a batch; 0: not known

    def __init__(self, parties: Sequence[str], batch_size: int) -> None:
        count = len(parties)
        self.last, self.intervals = [None] * count, [[] for _ in parties]
        self.medians, self.told = [float("inf")] * count, [batch_size] * count

    def measure(self, party: int, rows: int, now: int, batch_size: int) -> int | None:
        """A batch has come; returns the size of the party's batches from now on, if it is to be told."""
        last, self.last[party] = self.last[party], now
        if last is None:
            return None
        kept = self.intervals[party]
        kept.append((now - last) / rows)
        del kept[:-KEPT]
        if len(kept) < ENOUGH:
            return None
        self.medians[party] = median(kept)
        size = self._size(party, batch_size)
        if size == self.told[party]:
            return None
        self.told[party] = size
        return size

    def _size(self, party: int, batch_size: int) -> int:
        pace, fastest = self.medians[party], min(self.medians)
        if pace >= SLOW * fastest:
            return smaller(batch_size)
        return batch_size if pace < QUICK * fastest else self.told[party] or batch_size

    def interrupt(self, party: int) -> None:
        """The party was away."""
        self.last[party] = None

    def forget(self, party: int) -> None:
        """One of the two has lost its memory: the party is told again."""
        self.last[party], self.told[party] = None, 0
