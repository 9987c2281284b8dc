"""timeline.json of a run of processes: when every role was busy, offline or unknown, by the run's clock.

The run's clock is the server's. Every WELCOME tells the party what that clock shows. From then until the connection
breaks, the party notes when its lane is busy. At the end it sends its bins to the server (`LaneBins`). The server notes
its own lane and which parties are connected. A party's row is early by the time that the WELCOME took to arrive.

No clock sees both ends of a message, so there is no `transit` here: that time counts as `waiting`. Time is `unknown` if
it was not reported: the party was gone at the end, or its process was killed before it saved that part.
"""

from collections.abc import Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from colonnade.drivers.processes.wire import PERMILLE, LaneBins
from colonnade.drivers.simulator.timeline import BINS, JOB_ENDED, JOB_STARTED, Timeline
from colonnade.protocol.events import NANOSECONDS

__all__ = ["Attendance", "Lane", "Spells", "picture"]

BUSY, KNOWN = range(2)
MS = NANOSECONDS // 1000
Shares = npt.NDArray[np.float64]


class Spells:
    """Rows that are on or off over the run's clock, in a bounded number of bins."""

    def __init__(self, rows: int) -> None:
        self._timeline = Timeline([""] * rows, [[]] * rows)
        self._on = [False] * rows
        self._latest = [0] * rows

    def switch(self, row: int, on: bool, at: int) -> None:
        """Switch a row at this time.

        If the clock went back (a restarted server), the row's last time is used until the clock is past it.
        """
        if self._on[row] is on:
            return
        self._on[row], self._latest[row] = on, max(at, self._latest[row])
        self._timeline.note(4 * row + (JOB_STARTED if on else JOB_ENDED), self._latest[row])
        self._timeline.fold_if_long()

    def shares(self, now: int) -> tuple[Shares, int]:
        """The share of each bin that each row was on (row, bin), and the length of a bin in ns."""
        ns, width = self._timeline.nanoseconds(max(now, *self._latest))
        return ns[0::2] / width, width

    def save(self, now: int) -> dict[str, Any]:
        """For a checkpoint. After a kill, rows that are on now end at `now`."""
        return {"timeline": self._timeline.save(), "on": self._on, "latest": self._latest, "now": now}

    def load(self, saved: dict[str, Any]) -> None:
        self._timeline.load(saved["timeline"])
        self._on, self._latest = list(saved["on"]), list(saved["latest"])
        for row in range(len(self._on)):
            self.switch(row, False, saved["now"])


class Lane:
    """When this node's lane was busy, while it knew the run's clock. Arguments are times of `perf_counter_ns`."""

    def __init__(self) -> None:
        self._spells = Spells(2)
        self._ahead: int | None = None  # the run's clock minus this process's; None: unknown
        self._since = 0  # when it became known
        self._began: int | None = None  # start of the running job

    def know_clock(self, shows: int) -> None:
        """Take note that the run's clock shows this value now (ns)."""
        self.lose_clock()
        self._since = perf_counter_ns()
        self._ahead = shows - self._since
        self._spells.switch(KNOWN, True, shows)

    def lose_clock(self) -> None:
        """Stop recording: the server is out of reach, so its clock may stand still."""
        if self._ahead is not None:
            self._note_running_job()
            self._spells.switch(KNOWN, False, self._now())
            self._ahead = None

    def begin(self) -> int:
        """Note the start of a job; called in the job's thread. Returns the time."""
        self._began = perf_counter_ns()
        return self._began

    def end(self, at: int) -> None:
        """Note that the running job ended at this time."""
        if self._began is not None:
            self._note(self._began, at)
            self._began = None

    def bins(self, most: int = BINS) -> LaneBins:
        """What a party sends to the server, in at most so many bins."""
        shares, width = self.shares(self._now())
        while shares.shape[1] > most:
            shares = np.pad(shares, ((0, 0), (0, shares.shape[1] % 2)))
            shares, width = (shares[:, 0::2] + shares[:, 1::2]) / 2, 2 * width
        busy, known = np.rint(shares * PERMILLE).astype(int)
        used = int(np.flatnonzero(known).max(initial=-1)) + 1
        return LaneBins(width // MS, busy[:used].tolist(), known[:used].tolist())

    def shares(self, now: int) -> tuple[Shares, int]:
        """The shares of busy and known by bin, and the length of a bin in ns."""
        self._note_running_job()
        return self._spells.shares(now)

    def save(self) -> dict[str, Any]:
        self._note_running_job()
        return self._spells.save(self._now())

    def load(self, saved: dict[str, Any]) -> None:
        """Restore a checkpoint. The clock stays unknown until the next WELCOME."""
        self._spells.load(saved)

    def _now(self) -> int:
        return 0 if self._ahead is None else max(0, perf_counter_ns() + self._ahead)

    def _note_running_job(self) -> None:
        if self._began is not None:
            at = perf_counter_ns()
            self._note(self._began, at)
            self._began = at

    def _note(self, start: int, end: int) -> None:
        start = max(start, self._since)
        if self._ahead is not None and start < end:
            self._spells.switch(BUSY, True, start + self._ahead)
            self._spells.switch(BUSY, False, end + self._ahead)


class Attendance:
    """When each party was connected to the server. Times are in ns of the run's clock."""

    def __init__(self, parties: Sequence[str]) -> None:
        self._rows = {name: row for row, name in enumerate(parties)}
        self._spells = Spells(len(parties))
        self.save, self.load, self.shares = self._spells.save, self._spells.load, self._spells.shares

    def came(self, name: str, at: int) -> None:
        """Note that the party's stream opened."""
        self._spells.switch(self._rows[name], True, at)

    def left(self, name: str, at: int) -> None:
        """Note that the party's stream ended."""
        self._spells.switch(self._rows[name], False, at)


def picture(
    roles: Sequence[str],
    own: tuple[Shares, int],
    here: tuple[Shares, int],
    told: Mapping[str, LaneBins | None],
    end: int,
    ended: bool = True,
) -> dict[str, Any]:
    """timeline.json in the simulator's form: shares by role and bin, with `unknown` and without `transit`.

    `own` is the server's lane, `here` tells which party was connected. The server is the first of the roles. While the
    run has not ended, the time after a party's last report is unknown.
    """
    width = max(own[1], here[1])
    count = max(1, -(-end // width))
    length = np.minimum(width, end - width * np.arange(count)).clip(1)
    seen, connected = (_resampled(*rows, width, length) for rows in (own, here))
    # A party that was not connected while the server ran is offline. This comes first, as in the simulator.
    offline = np.concatenate([np.zeros((1, count)), np.clip(seen[KNOWN] - connected, 0.0, 1.0)])
    busy, known = np.zeros((2, len(roles), count))
    busy[0], known[0] = seen
    for row, name in enumerate(roles[1:], 1):
        bins = told.get(name)
        if bins is not None and bins.busy:
            shares = np.array([bins.busy, bins.known], float) / PERMILLE
            busy[row], known[row] = _resampled(shares, bins.bin_ms * MS, width, length)
            if ended and (places := np.flatnonzero(known[row])).size:
                known[row, places[-1] :] = 1.0  # it heard the end: the gap is its early clock
    known = np.minimum(known, 1.0 - offline)
    return {
        "roles": list(roles),
        "bin_s": width / NANOSECONDS,
        "end_s": end / NANOSECONDS,
        "busy": np.round(np.minimum(busy, known), 3).tolist(),
        "transit": None,
        "offline": np.round(offline, 3).tolist(),
        "unknown": np.round(1.0 - offline - known, 3).tolist(),
    }


def _resampled(shares: Shares, width: int, onto: int, length: npt.NDArray[np.int64]) -> Shares:
    """Convert shares to bins of another width, of which the last may be shorter. Widths double from 1 ms."""
    bins, count = shares.shape[1], len(length)
    if width > onto:  # a party's clock may be a little ahead
        place = np.arange(count) * onto // width
        padded = np.pad(shares, ((0, 0), (0, 1)))
        return np.asarray(padded[:, np.minimum(place, bins)])
    result, place = np.zeros((len(shares), count)), np.arange(bins) * width // onto
    inside = place < count
    np.add.at(result.T, place[inside], shares[:, inside].T * width)
    return np.asarray(np.clip(result / length, 0.0, 1.0))
