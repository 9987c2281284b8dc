"""Smaller batches for slow parties: the server measures how fast each party uploads, and tells the slow ones.

A party's pace is the median time between its uploads, per row, over its last RECENT ones. A party that takes twice as
long as the fastest gets half batches. It then takes more steps with the same work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log2
from statistics import median

from colonnade.protocol.saved import Component

__all__ = ["Paces", "Stride", "sizes"]

HALVINGS = 1  # of a batch, at most: quarters were not faster than halves, and more of the table was stale
SMALLEST = 4  # rows: BatchNorm needs a few
AGAIN = 0.75  # fraction of the pace that made batches smaller; below it they grow again
RECENT = 9  # intervals per party


def sizes(batch_size: int) -> list[int]:
    """Return the rows of a batch that is halved 0, 1, … times."""
    return [max(min(SMALLEST, batch_size), batch_size >> halved) for halved in range(HALVINGS + 1)]


@dataclass(slots=True)
class Stride(Component):
    """A party's place in its rows when batch sizes may change. Every epoch still has each row once."""

    size: int  # rows of the current batch
    following: int  # rows of the next batch, as the server says
    walked: int = 0  # rows before the current batch

    def move_on(self, rows: int) -> None:
        """End a batch of `rows` rows; the next one may have another size."""
        self.walked += rows
        self.size = self.following


@dataclass(slots=True, init=False)
class Paces(Component):
    """What the server has measured of each party, by its own clock."""

    last: list[int | None]  # arrival of the last upload; None: the next upload ends no interval
    intervals: list[list[float]]  # nanoseconds per row of the last uploads
    medians: list[float]  # infinite until there is an interval
    halved: list[int]  # how many times each party's batches are halved
    known: list[bool]  # whether the party knows its batch size

    def __init__(self, parties: Sequence[str]) -> None:
        count = len(parties)
        self.last, self.intervals = [None] * count, [[] for _ in parties]
        self.medians, self.halved, self.known = [float("inf")] * count, [0] * count, [True] * count

    def measure(self, party: int, rows: int, now: int, batch_size: int) -> int | None:
        """Measure an arrived batch; return the party's new batch size if the server must tell it."""
        last, self.last[party] = self.last[party], now
        if last is None:
            return None
        recent = self.intervals[party]
        recent.append((now - last) / rows)
        del recent[:-RECENT]
        self.medians[party] = median(recent)
        halved = self._halvings(party)
        if halved == self.halved[party] and self.known[party]:
            return None
        self.halved[party], self.known[party] = halved, True
        return sizes(batch_size)[halved]

    def _halvings(self, party: int) -> int:
        """Return ⌊log₂⌋ of its pace over the fastest pace. It falls only when the party is clearly faster."""
        slower, now = self.medians[party] / max(min(self.medians), 1e-9), self.halved[party]
        least, most = (min(HALVINGS, max(0, floor(log2(max(one, 1.0))))) for one in (slower, slower / AGAIN))
        return least if least > now else min(now, most)

    def interrupt(self, party: int) -> None:
        """Drop the current interval, since the party was absent."""
        self.last[party] = None

    def forget(self, party: int) -> None:
        """Tell the party its batch size again, since the party or the server has lost its state."""
        self.last[party], self.known[party] = None, False
