"""Who was busy, had a message under way, waited or was out of reach, over the clock.

A role is in one state at a time; the first that applies counts: out of reach (crashed, late or offline), busy (a job
on its lane), in transit (a message that it sent has not arrived), else waiting. Finished intervals gather in a list
and are folded into bins of equal length, as nanoseconds per state; when the clock outgrows the bins, two become one
and their length doubles. So memory is bounded, an event costs O(1), and nothing is rounded.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from colonnade.protocol.events import NANOSECONDS

__all__ = ["Timeline"]

BUSY, TRANSIT, WAITING = range(3)
BINS = 400
FEWEST_BINS, ALL_BINS = 50, 100_000  # with many roles, each has fewer bins
FIRST_BIN_NS = NANOSECONDS // 1000
FOLD_AT = 3 * 4096  # numbers in the list

Spans = npt.NDArray[np.int64]


class Timeline:
    """Records states of roles, given by number, from calls in the order of time."""

    def __init__(self, roles: Sequence[str], outages: Sequence[Sequence[tuple[int, int]]]) -> None:
        self.roles = list(roles)
        self._outages = [list(spans) for spans in outages]
        bins = max(FEWEST_BINS, min(BINS, ALL_BINS // max(len(roles), 1)))
        self._ns = np.zeros((2 * len(roles), bins), np.int64)  # row: 2·role + state
        self._width = FIRST_BIN_NS
        self._state = [WAITING] * len(roles)
        self._since = [0] * len(roles)
        self._flying = [0] * len(roles)  # messages under way, by sender
        self._spans: list[int] = []  # row, start, end, row, start, end, …

    def job_started(self, role: int, now: int) -> None:
        """A job took the lane."""
        if self._state[role] == TRANSIT:
            self._spans += (2 * role + TRANSIT, self._since[role], now)
        self._state[role], self._since[role] = BUSY, now

    def job_ended(self, role: int, now: int) -> None:
        """The lane is free again: done, cancelled or crashed."""
        self._spans += (2 * role, self._since[role], now)
        self._state[role], self._since[role] = TRANSIT if self._flying[role] else WAITING, now
        if len(self._spans) > FOLD_AT:
            self._fold()

    def message_left(self, role: int, now: int) -> None:
        """A message of this role is under way."""
        self._flying[role] += 1
        if self._state[role] == WAITING:
            self._state[role], self._since[role] = TRANSIT, now

    def message_arrived(self, role: int, now: int) -> None:
        """It reached its receiver."""
        self._flying[role] -= 1
        if not self._flying[role] and self._state[role] == TRANSIT:
            self._spans += (2 * role + TRANSIT, self._since[role], now)
            self._state[role] = WAITING
            if len(self._spans) > FOLD_AT:
                self._fold()

    def shares(self, now: int) -> dict[str, Any]:
        """timeline.json: for every role and bin, the shares of busy, transit and offline; the rest is waiting."""
        self._fold()
        ns, width = self._ns.copy(), self._width
        open_spans = [
            (2 * role + state, self._since[role], now) for role, state in enumerate(self._state) if state != WAITING
        ]
        spans = self._within_reach(np.array(open_spans, np.int64).reshape(-1, 3))
        ns, width = _grown(ns, width, now)
        _add(ns, width, spans)
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
        if not self._spans:
            return
        spans = np.fromiter(self._spans, np.int64, len(self._spans)).reshape(-1, 3)
        self._spans.clear()
        self._ns, self._width = _grown(self._ns, self._width, int(spans[:, 2].max()))
        _add(self._ns, self._width, self._within_reach(spans))

    def _within_reach(self, spans: Spans) -> Spans:
        """The parts of the spans outside their roles' outages."""
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
        """For a checkpoint."""
        self._fold()
        return {"ns": self._ns, "width": self._width, **{name: getattr(self, f"_{name}") for name in _LISTS}}

    def load(self, saved: dict[str, Any]) -> None:
        """The reverse of `save`."""
        self._ns, self._width = saved["ns"].copy(), saved["width"]
        for name in _LISTS:
            setattr(self, f"_{name}", list(saved[name]))
        self._spans.clear()


_LISTS = ("state", "since", "flying")


def _grown(ns: Spans, width: int, end: int) -> tuple[Spans, int]:
    """Bins that reach to `end`: pairs become one until they do."""
    while end > width * ns.shape[1]:
        padded = np.pad(ns, ((0, 0), (0, ns.shape[1] % 2)))
        halved = padded[:, 0::2] + padded[:, 1::2]
        ns, width = np.pad(halved, ((0, 0), (0, ns.shape[1] - halved.shape[1]))), 2 * width
    return ns, width


def _add(ns: Spans, width: int, spans: Spans) -> None:
    """Add spans (row, start, end) to the bins: the two ends by themselves, whole bins by a running sum."""
    row, start, end = spans.T
    first, last = start // width, np.maximum(end - 1, start) // width
    inside = first == last
    np.add.at(ns, (row, first), np.where(inside, end, (first + 1) * width) - start)
    row, first, last, end = row[~inside], first[~inside], last[~inside], end[~inside]
    np.add.at(ns, (row, last), end - last * width)
    steps = np.zeros((ns.shape[0], ns.shape[1] + 1), np.int64)
    np.add.at(steps, (row, first + 1), width)
    np.add.at(steps, (row, last), -width)
    ns += np.cumsum(steps, axis=1)[:, :-1]
