"""How long each role was busy, had a message in transit, waited or was offline, over the clock.

A role is in one state at a time. The first state that applies counts:

1. offline: crashed, late or out of reach,
2. busy: a job is on its lane,
3. in transit: a message that it sent has not arrived,
4. waiting.

The engine only notes what happened, because it does so for every event. From time to time `_fold` adds the notes to
bins of equal length, as nanoseconds per state. When the clock outgrows the bins, two bins become one and the length
doubles. So memory is bounded, an event costs O(1), and nothing is rounded.

Where this installation has the compiled bins (`_bins.c`), these take every note at once, and there is nothing to fold.
They know no outages: with outages, the notes are folded.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from colonnade.protocol.events import NANOSECONDS

try:
    from colonnade.drivers.simulator._bins import Bins
except ImportError:  # not compiled here
    Bins = None  # type: ignore[assignment,misc]

__all__ = [
    "JOB_ENDED",
    "JOB_STARTED",
    "MESSAGE_ARRIVED",
    "MESSAGE_LEFT",
    "Timeline",
    "add_at",
    "compiled_bins",
    "grown",
]

# The kinds of notes. A message belongs to its sender.
JOB_STARTED, JOB_ENDED, MESSAGE_LEFT, MESSAGE_ARRIVED = range(4)
JOBS, FLYING = np.array([1, -1, 0, 0]), np.array([0, 0, 1, -1])  # what each kind changes

BUSY, TRANSIT, WAITING = range(3)
BINS = 400
FEWEST_BINS, ALL_BINS = 50, 100_000  # with many roles, each role has fewer bins
FIRST_BIN_NS = NANOSECONDS // 1000
FOLD_AT = 2 * 16384  # numbers in the list of notes

Spans = npt.NDArray[np.int64]


class Timeline:
    """Adds up notes per role and bin. The notes of one role must be in the order of time."""

    def __init__(self, roles: Sequence[str], outages: Sequence[Sequence[tuple[int, int]]]) -> None:
        self.roles = list(roles)
        self._outages = [list(spans) for spans in outages]
        bins = max(FEWEST_BINS, min(BINS, ALL_BINS // max(len(roles), 1)))
        self._ns = np.zeros((2 * len(roles), bins), np.int64)  # row: 2·role + state
        self._width = FIRST_BIN_NS
        self._tracks = np.zeros((3, len(roles)), np.int64)  # since, jobs, flying: at the last fold
        self._notes: list[int] = []  # 4·role + kind, time, 4·role + kind, time, …
        self._bins = None if any(self._outages) else compiled_bins(self._ns, self._tracks)
        self.note: Callable[[int, int], None] = self._keep if self._bins is None else self._bins.note

    def _keep(self, code: int, time: int) -> None:
        """Take a note, 4·role + kind and time, to be folded later."""
        self._notes.extend((code, time))

    def fold_if_long(self) -> None:
        """Keep the list of notes short. The engine calls this from time to time."""
        if len(self._notes) > max(FOLD_AT, 8 * len(self.roles)):
            self._fold()

    def nanoseconds(self, now: int) -> tuple[Spans, int]:
        """Nanoseconds (2·role + state, bin) for busy and transit, up to `now`, and the length of a bin in ns."""
        self._fold()
        ns, width = self._ns.copy(), self._width
        since, jobs, flying = self._tracks
        state = _state(jobs, flying)
        spans = np.stack([2 * np.arange(len(state)) + state, since, np.full(len(state), now)], 1)
        spans = self._within_reach(spans[state != WAITING])
        ns, width = grown(ns, width, now)
        _add(ns, width, spans)
        return ns, width

    def shares(self, now: int) -> dict[str, Any]:
        """The content of timeline.json: each role's shares of busy, transit and offline by bin; the rest is waiting."""
        ns, width = self.nanoseconds(now)
        count = max(1, -(-now // width))
        length = np.minimum(width, now - width * np.arange(count)).clip(1)
        share = np.round(ns[:, :count] / length, 3)
        return {
            "roles": self.roles,
            "bin_s": width / NANOSECONDS,
            "end_s": now / NANOSECONDS,
            "busy": share[0::2].tolist(),
            "transit": share[1::2].tolist(),
            "offline": np.round(self._offline(now, width, ns.shape[1])[:, :count] / length, 3).tolist(),
        }

    def _offline(self, now: int, width: int, bins: int) -> Spans:
        ns = np.zeros((len(self.roles), bins), np.int64)
        spans = [
            (role, max(start, 0), min(end, now))
            for role, outages in enumerate(self._outages)
            for start, end in outages
            if max(start, 0) < min(end, now)
        ]
        _add(ns, width, np.array(spans, np.int64).reshape(-1, 3))
        return ns

    def _fold(self) -> None:
        if self._bins is not None:
            self._width = self._bins.width()
        if not self._notes:
            return
        codes, times = np.fromiter(self._notes, np.int64, len(self._notes)).reshape(-1, 2).T
        self._notes.clear()
        everyone = np.arange(len(self.roles))
        role, kind = np.concatenate([everyone, codes >> 2]), codes & 3  # each role's earlier state comes first
        order = np.argsort(role.astype(np.min_scalar_type(len(everyone))), kind="stable")  # of short numbers: by radix
        role, time = role[order], np.concatenate([self._tracks[0], times])[order]
        first = np.searchsorted(role, everyone)
        jobs, flying = (
            _running_sums(np.concatenate([before, change[kind]])[order], role, first)
            for before, change in ((self._tracks[1], JOBS), (self._tracks[2], FLYING))
        )
        last = np.append(first[1:], len(role)) - 1
        self._tracks[:] = time[last], jobs[last], flying[last]
        state, until = _state(jobs, flying), np.append(time[1:], 0)
        state[last] = WAITING  # has not ended yet
        told = np.flatnonzero(state != WAITING)
        spans = np.stack([2 * role[told] + state[told], time[told], until[told]], 1)
        self._ns, self._width = grown(self._ns, self._width, int(times.max()))
        _add(self._ns, self._width, self._within_reach(spans))

    def _within_reach(self, spans: Spans) -> Spans:
        """The parts of the spans that lie outside the outages of their roles."""
        for role, outages in enumerate(self._outages):
            for start, end in outages:
                own = spans[:, 0] // 2 == role
                before, after = spans.copy(), spans[own]
                before[own, 2] = np.minimum(before[own, 2], start)
                after[:, 1] = np.maximum(after[:, 1], end)
                spans = np.concatenate([before, after])
                spans = spans[spans[:, 1] < spans[:, 2]]
        return spans

    def save(self) -> dict[str, Any]:
        self._fold()
        return {"ns": self._ns.copy(), "width": self._width, **dict(zip(_TRACKS, self._tracks.copy(), strict=True))}

    def load(self, saved: dict[str, Any]) -> None:
        self._ns[:], self._width = saved["ns"], saved["width"]
        self._tracks[:] = [saved[name] for name in _TRACKS]
        self._notes.clear()
        if self._bins is not None:
            self._bins.set_width(self._width)


_TRACKS = ("since", "jobs", "flying")


def compiled_bins(ns: Spans, tracks: Spans) -> "Bins | None":
    """The compiled bins over these arrays, if there are any."""
    return Bins(ns, tracks, FIRST_BIN_NS) if Bins is not None and tracks.size else None


def _state(jobs: Spans, flying: Spans) -> Spans:
    return np.where(jobs > 0, BUSY, np.where(flying > 0, TRANSIT, WAITING))


def _running_sums(changes: Spans, role: Spans, first: Spans) -> Spans:
    """The cumulative sums for each role separately. A role's changes are contiguous and start at `first[role]`."""
    sums = np.cumsum(changes)
    before = sums[first] - changes[first]
    result: Spans = sums - before[role]
    return result


def grown(ns: Spans, width: int, end: int) -> tuple[Spans, int]:
    """Merge pairs of bins, in place, until the bins reach `end`."""
    bins = ns.shape[1]
    pairs = bins // 2
    while end > width * bins:
        last = ns[:, 2 * pairs :].copy()  # of an odd number of bins
        ns[:, :pairs] = ns[:, 0 : 2 * pairs : 2] + ns[:, 1 : 2 * pairs : 2]
        ns[:, pairs:] = 0
        ns[:, pairs : bins - pairs] = last
        width *= 2
    return ns, width


def add_at(ns: Spans, row: Spans, column: Spans, values: Spans) -> None:
    """ns[row, column] += values, also for cells that occur several times; numpy is fast for one index only."""
    np.add.at(ns.reshape(-1), row * ns.shape[1] + column, values)


def _add(ns: Spans, width: int, spans: Spans) -> None:
    """Add spans (row, start, end) to the bins: the two ends one by one, full bins between them by a cumulative sum."""
    row, start, end = spans[spans[:, 1] < spans[:, 2]].T  # an empty span may start where the last bin ends
    first, last = start // width, (end - 1) // width
    inside = first == last
    add_at(ns, row, first, np.where(inside, end, (first + 1) * width) - start)
    row, first, last, end = row[~inside], first[~inside], last[~inside], end[~inside]
    add_at(ns, row, last, end - last * width)
    if not (last - first > 1).any():
        return
    begin, stop = int(first.min()) + 1, int(last.max())  # only here, because the bins of many roles are large
    steps = np.zeros((ns.shape[0], stop - begin + 1), np.int64)
    add_at(steps, row, first + 1 - begin, np.full(len(row), width))
    add_at(steps, row, last - begin, np.full(len(row), -width))
    ns[:, begin:stop] += np.cumsum(steps, axis=1)[:, :-1]
