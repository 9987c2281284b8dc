"""How fast every role computed, over the clock: batches per second of the jobs that began in each bin.

A job counts in the bin in which it begins, with its whole work and its whole time, both as integers. So nothing depends
on when the notes are folded, and two bins become one without rounding, as in `timeline`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from colonnade.drivers.simulator.timeline import (
    ALL_BINS,
    BINS,
    FEWEST_BINS,
    FIRST_BIN_NS,
    FOLD_AT,
    add_at,
    compiled_bins,
    grown,
)
from colonnade.protocol.events import NANOSECONDS

__all__ = ["Speeds"]

MICRO = 10**6  # the work of a job is counted in millionths of a batch


class Speeds:
    """Adds up work and time per role and bin."""

    def __init__(self, roles: Sequence[str]) -> None:
        bins = max(FEWEST_BINS, min(BINS, ALL_BINS // max(len(roles), 1)))
        self._sums: npt.NDArray[np.int64] = np.zeros((2 * len(roles), bins), np.int64)  # row: 2·role, + 1 for the time
        self._width = FIRST_BIN_NS
        self._notes: list[int] = []  # role, start, millionths of a batch, nanoseconds, role, …
        self._bins = compiled_bins(self._sums, np.zeros((3, len(roles)), np.int64))
        self.note: Callable[[int, int, int, int], None] = self._keep if self._bins is None else self._bins.note_speed

    def _keep(self, role: int, start: int, work: int, time: int) -> None:
        """Take a note of a job that takes time: its work in millionths of a batch, its time in nanoseconds."""
        self._notes.extend((role, start, work, time))

    def fold_if_long(self) -> None:
        """Keep the list of notes short. The engine calls this from time to time."""
        if len(self._notes) > 2 * FOLD_AT:
            self._fold()

    def _fold(self) -> None:
        if self._bins is not None:
            self._width = self._bins.width()
        if not self._notes:
            return
        role, start, work, time = np.fromiter(self._notes, np.int64, len(self._notes)).reshape(-1, 4).T
        self._notes.clear()
        self._sums, self._width = grown(self._sums, self._width, int(start.max()) + 1)
        bins = start // self._width
        add_at(self._sums, 2 * role, bins, work)
        add_at(self._sums, 2 * role + 1, bins, time)

    def totals(self) -> dict[str, Any]:
        """`speed` of timeline.json: by role and bin, the batches of the jobs that began there, and their seconds."""
        self._fold()
        used = np.flatnonzero(self._sums.any(0))
        sums = self._sums[:, : used[-1] + 1] if len(used) else self._sums[:, :0]
        return {
            "bin_s": self._width / NANOSECONDS,
            "batches": (sums[0::2] / MICRO).tolist(),
            "seconds": (sums[1::2] / NANOSECONDS).tolist(),
        }

    def save(self) -> dict[str, Any]:
        self._fold()
        return {"sums": self._sums.copy(), "width": self._width}

    def load(self, saved: dict[str, Any]) -> None:
        self._sums[:], self._width = saved["sums"], saved["width"]
        self._notes.clear()
        if self._bins is not None:
            self._bins.set_width(self._width)
