"""Smaller batches for slow parties: the server measures how fast each uploads, and tells the slow ones.

A party's pace is the median time between its uploads, per row, over the last few of them. A party that takes twice as
long as the fastest gets half batches: its block is then stepped more often, with the same work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log2
from statistics import median

from colonnade.protocol.saved import Component

__all__ = ["Paces", "Stride", "sizes"]

HALVINGS = 1  # of a batch, at most: quarters were no quicker than halves, and more of the table was stale
SMALLEST = 4  # rows: BatchNorm needs a few
AGAIN = 0.75  # of the pace that made batches smaller: below it they grow again
KEPT = 9  # intervals of a party


def sizes(batch_size: int) -> list[int]:
    """Rows of a batch that is halved 0, 1, … times."""
    return [max(min(SMALLEST, batch_size), batch_size >> halved) for halved in range(HALVINGS + 1)]


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
    medians: list[float]  # infinite until there is one
    halved: list[int]  # how often each party's batches are
    known: list[bool]  # whether the party has been told, or needs not be

    def __init__(self, parties: Sequence[str]) -> None:
        count = len(parties)
        self.last, self.intervals = [None] * count, [[] for _ in parties]
        self.medians, self.halved, self.known = [float("inf")] * count, [0] * count, [True] * count

    def measure(self, party: int, rows: int, now: int, batch_size: int) -> int | None:
        """A batch has come; returns the size of the party's batches from now on, if it is to be told."""
        last, self.last[party] = self.last[party], now
        if last is None:
            return None
        kept = self.intervals[party]
        kept.append((now - last) / rows)
        del kept[:-KEPT]
        self.medians[party] = median(kept)
        halved = self._halvings(party)
        if halved == self.halved[party] and self.known[party]:
            return None
        self.halved[party], self.known[party] = halved, True
        return sizes(batch_size)[halved]

    def _halvings(self, party: int) -> int:
        """⌊log₂⌋ of how many times slower than the fastest; it falls only when the party is clearly quicker."""
        slower, now = self.medians[party] / max(min(self.medians), 1e-9), self.halved[party]
        least, most = (min(HALVINGS, max(0, floor(log2(max(one, 1.0))))) for one in (slower, slower / AGAIN))
        return least if least > now else min(now, most)

    def interrupt(self, party: int) -> None:
        """The party was away."""
        self.last[party] = None

    def forget(self, party: int) -> None:
        """One of the two has lost its memory: the party is told again."""
        self.last[party], self.known[party] = None, False
