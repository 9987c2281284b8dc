"""Smaller batches for slow parties: the server measures how fast each party uploads, and tells the slow ones.

A party's pace is the median time between its uploads, per row, over its last RECENT ones. A party that takes twice as
long as the fastest gets half batches. It then takes more steps with the same work.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import floor, log2
from statistics import median

from colonnade.algorithms.batches import Rows, Walk, are_same
from colonnade.protocol.saved import UNSAVED, Component

__all__ = ["Paces", "Stride", "Trail", "sizes"]

HALVINGS = 1  # of a batch, at most: quarters were not faster than halves, and more of the table was stale
SMALLEST = 4  # rows: BatchNorm needs a few
AGAIN = 0.75  # fraction of the pace that made batches smaller; below it they grow again
RECENT = 9  # intervals per party
SEARCHED_ROWS, SEARCHED_EPOCHS = 2**22, 1024  # of the walk, to find the place of a batch; at most so many


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


@dataclass(slots=True)
class Trail(Component):
    """Where each party's batches are in its walk, as the server knows it. Every batch begins where the last one ended.

    The step of a batch does not tell its place, because sizes may change. After a restart the server looks for the
    first batch in all epochs that its step allows, unless these are too many.
    """

    walks: tuple[Walk, ...] = field(metadata=UNSAVED)
    rows: int = field(metadata=UNSAVED)
    sizes: list[int] = field(metadata=UNSAVED)
    most: int = field(metadata=UNSAVED)  # batches in flight
    starts: list[dict[int, int]] = field(default_factory=list)  # by party: step → rows before the batch
    ends: list[dict[int, int]] = field(default_factory=list)  # the same: rows up to its end

    def __post_init__(self) -> None:
        self.starts, self.ends = [{} for _ in self.walks], [{} for _ in self.walks]

    def allows(self, party: int, step: int, batch: Rows, first: bool) -> bool:
        """Whether the walk has this batch; True if there are too many places to look for it.

        `first`: it is the first batch of a conversation, before which the party may have returned to an earlier state.
        """
        near = self._near(party, step)
        if self._fitting(party, batch, near) is not None:
            return True
        if not first:
            return not near
        epochs, complete = self._epochs(party, step)
        return not complete or self._search(party, batch, epochs) is not None

    def note(self, party: int, step: int, batch: Rows, first: bool) -> None:
        """Remember the place of a batch that the server takes. What came after it, in an earlier state, is void."""
        start = self._fitting(party, batch, self._near(party, step))
        if start is None and first:
            start = self._search(party, batch, self._epochs(party, step)[0])
        for known, place in ((self.starts, start), (self.ends, None if start is None else start + len(batch))):
            kept = {old: at for old, at in known[party].items() if step - 2 * self.most <= old < step}
            known[party] = kept if place is None else kept | {step: place}

    def _near(self, party: int, step: int) -> set[int]:
        """Return the places that follow from the batches before this one."""
        if step in self.starts[party]:
            return {self.starts[party][step]}
        before = max((known for known in self.ends[party] if known < step), default=None)
        if before is None or step - before > self.most:
            return {0} if step == 0 else set()
        places = {self.ends[party][before]}
        for _ in range(step - before - 1):  # batches that were answered before the conversation restarted
            places = {self._end(place, size) for place in places for size in self.sizes}
        return places

    def _end(self, place: int, size: int) -> int:
        return min(place + size, (place // self.rows + 1) * self.rows)

    def _fitting(self, party: int, batch: Rows, places: Iterable[int]) -> int | None:
        walk = self.walks[party]
        for place in places:
            for size in self.sizes:
                if self._end(place, size) - place == len(batch) and are_same(batch, walk.rows_from(place, size)):
                    return place
        return None

    def _epochs(self, party: int, step: int) -> tuple[list[int], bool]:
        """Return the epochs that may have this step, the likeliest first, and whether these are all."""
        fewest, most = (-(-self.rows // size) for size in (max(self.sizes), min(self.sizes)))  # steps of an epoch
        low, high = step // most, step // fewest
        known = max(self.ends[party].values(), default=high * self.rows) // self.rows
        limit = max(2, min(SEARCHED_EPOCHS, SEARCHED_ROWS // self.rows))
        begin = max(low, min(known, high) - limit // 2)
        epochs = range(begin, min(begin + limit, high + 1))
        near = sorted(epochs, key=lambda epoch: abs(epoch - known))
        return near, len(epochs) == high - low + 1

    def _search(self, party: int, batch: Rows, epochs: list[int]) -> int | None:
        return self._fitting(party, batch, (self._start_in(party, epoch, batch) for epoch in epochs))

    def _start_in(self, party: int, epoch: int, batch: Rows) -> int:
        """Return the place in this epoch of the batch's first row."""
        order = self.walks[party].rows_from(epoch * self.rows, self.rows)
        return epoch * self.rows + int((order == batch[0]).argmax())
