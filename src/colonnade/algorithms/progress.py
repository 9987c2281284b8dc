"""How far a run is: updates, rows, when to evaluate, when to end. Every coordinating role has one."""

from typing import Any

import numpy as np

from colonnade.algorithms.evaluation import Evaluated, Measurement
from colonnade.algorithms.training import Cadence, Training
from colonnade.protocol.events import NANOSECONDS, Effect, Emit, Finish, SetTimer, TimerFired

__all__ = ["END_TIMER", "EVALUATE_TIMER", "Progress"]

EVALUATE_TIMER, END_TIMER = "evaluate", "end"


class Progress:
    """Counts, and turns counts into decisions."""

    def __init__(self, training: Training) -> None:
        self._rows_per_epoch = training.rows_per_epoch
        self._eval_every = training.eval_every
        self._limit = Cadence(training.limit, training.rows_per_epoch)
        self._evaluations = Cadence(training.eval_every, training.rows_per_epoch)
        self.k = 0  # updates of the global model
        self.rows = 0  # party-rows processed
        self.ending = ""  # why the run ends, once it does
        self._losses: list[float] = []  # of training batches since the last evaluation

    def count(self, rows: int, losses: list[float]) -> None:
        """One update that processed `rows` party-rows."""
        self.k += 1
        self.rows += rows
        self._losses += losses

    def timers(self) -> list[Effect]:
        """The timers of what the clock decides."""
        timers = [(EVALUATE_TIMER, self._evaluations.timer()), (END_TIMER, self._limit.timer())]
        return [SetTimer(name, at) for name, at in timers if at is not None]

    def evaluation_timer_fired(self, event: TimerFired) -> list[Effect]:
        """The next evaluation's timer."""
        self._evaluations.count = int(event.due / NANOSECONDS / self._eval_every.amount + 0.5) + 1
        at = self._evaluations.timer()
        return [SetTimer(EVALUATE_TIMER, at)] if at is not None else []

    def at_limit(self) -> bool:
        """Whether the run's limit is reached by updates or epochs."""
        return self._limit.due(self.k, self.rows)

    def evaluation_due(self) -> bool:
        """Whether an evaluation is due by updates or epochs."""
        return self._evaluations.due(self.k, self.rows)

    def report(self, result: Evaluated, staleness: list[float], missing: list[str]) -> list[Effect]:
        """A row for metrics.jsonl; the last one ends the run."""
        train_loss = float(np.mean(self._losses)) if self._losses else float("nan")
        self._losses = []
        row = Measurement(self.k, self.epochs, result.loss, train_loss, result.values, staleness, missing)
        return [Emit(row), Finish(self.ending)] if self.ending else [Emit(row)]

    @property
    def epochs(self) -> float:
        """An epoch is N·M party-rows."""
        return self.rows / self._rows_per_epoch

    def save(self) -> dict[str, Any]:
        """All counts."""
        return {
            "k": self.k,
            "rows": self.rows,
            "ending": self.ending,
            "losses": self._losses,
            "limit": self._limit.count,
            "evaluations": self._evaluations.count,
        }

    def load(self, saved: dict[str, Any]) -> None:
        """The reverse of `save`."""
        self.k, self.rows, self.ending = saved["k"], saved["rows"], saved["ending"]
        self._losses = saved["losses"]
        self._limit.count, self._evaluations.count = saved["limit"], saved["evaluations"]
