"""Counts of a run's updates and rows. They decide when to evaluate and when to end. Every coordinating role has one."""

from math import inf, nan
from typing import Any

import numpy as np

from colonnade.algorithms.evaluation import Evaluated, Measurement, Rounds
from colonnade.algorithms.training import Cadence, Training
from colonnade.models.metrics import METRICS
from colonnade.protocol.events import NANOSECONDS, Effect, Emit, Finish, SetTimer, TimerFired

__all__ = ["END_TIMER", "EVALUATE_TIMER", "TrainingProgress"]

EVALUATE_TIMER, END_TIMER = "evaluate", "end"


class TrainingProgress:
    """Counts updates and rows, and decides from them when to evaluate and when to end."""

    def __init__(self, training: Training) -> None:
        self._rows_per_epoch = training.rows_per_epoch
        self._eval_every = training.eval_every
        self._limit = Cadence(training.limit, training.rows_per_epoch)
        self._evaluations = Cadence(training.eval_every, training.rows_per_epoch)
        self.k = 0  # updates of the global model
        self.rows = 0  # party-rows processed
        self.ending = ""  # why the run ends; "" until then
        self._losses: list[float] = []  # losses of training batches since the last evaluation
        self._metric, self._patience, self._validation = training.metric, training.patience, training.validation
        self._best_value, self._best_loss = nan, inf  # best of each on the validation rows, independently
        self._until = training.until  # the run ends when the metric is this good
        self._since = 0  # evaluations without a better value or loss
        self.best = 0  # number of the evaluation with the best value; the lowest loss breaks ties
        self._loss_at_best = inf

    def count(self, rows: int, losses: list[float]) -> None:
        """Count one update that processed `rows` party-rows."""
        self.k += 1
        self.rows += rows
        self._losses += losses

    def timers(self) -> list[Effect]:
        """Return timers for the evaluations and the limit that are set in seconds."""
        timers = [(EVALUATE_TIMER, self._evaluations.timer()), (END_TIMER, self._limit.timer())]
        return [SetTimer(name, at) for name, at in timers if at is not None]

    def evaluation_timer_fired(self, event: TimerFired) -> list[Effect]:
        """Return the timer of the next evaluation."""
        self._evaluations.count = int(event.due / NANOSECONDS / self._eval_every.amount + 0.5) + 1
        at = self._evaluations.timer()
        return [SetTimer(EVALUATE_TIMER, at)] if at is not None else []

    def at_limit(self) -> bool:
        """Whether the run has reached its limit in updates or epochs."""
        return self._limit.due(self.k, self.rows)

    def evaluation_due(self) -> bool:
        """Whether an evaluation is due by updates or epochs."""
        return self._evaluations.due(self.k, self.rows)

    def report(
        self, result: Evaluated, staleness: list[float], missing: list[str], rounds: Rounds | None = None
    ) -> list[Effect]:
        """Return a row for metrics.jsonl, and after the last evaluation the end of the run.

        With validation rows, the last evaluation has the test rows. One that was running at the end has not.
        """
        train_loss = float(np.mean(self._losses)) if self._losses else float("nan")
        self._losses = []
        scores = result.loss, train_loss, result.values
        row = Measurement(self.k, self.epochs, *scores, staleness, missing, result.tested, rounds)
        self._compare(result)
        over = self.ending and not self.tests_due(result)
        return [Emit(row), Finish(self.ending)] if over else [Emit(row)]

    def tests_due(self, result: Evaluated) -> bool:
        """Whether the run ends and this evaluation was not of the test rows."""
        return bool(self.ending and self._validation and result.tested is None)

    def _compare(self, result: Evaluated) -> None:
        """Update the best evaluation: a better value or a lower loss than in all evaluations before it.

        Either is enough. On few rows a metric like accuracy moves in large steps, so one lucky value would end the run
        too early while the loss still falls. The loss may also rise while the metric still improves.
        """
        value, metric = result.values.get(self._metric, nan), METRICS.get(self._metric)
        if metric is None:
            return
        first = np.isnan(self._best_value) and not np.isnan(value)
        better = first or (value > self._best_value if metric.higher_is_better else value < self._best_value)
        lower = result.loss < self._best_loss
        if better or (value == self._best_value and result.loss < self._loss_at_best):
            self.best, self._loss_at_best = result.number, result.loss
        self._best_value = value if better else self._best_value
        self._best_loss = result.loss if lower else self._best_loss
        self._since = 0 if better or lower else self._since + 1

    def no_better(self) -> str:
        """Why the run must end before its limit: `train.until_target` or `train.patience`; "" if it goes on."""
        if self._until is not None and METRICS[self._metric].reached(self._best_value, self._until):
            return f"the target was reached: {self._metric} {self._until:g}"
        if not self._patience or self._since < self._patience:
            return ""
        return f"no improvement in {self._patience} evaluation{'s' * (self._patience > 1)}"

    def note(self) -> str:
        """A note that the run ended before its limit, and why; "" otherwise."""
        reason = self.no_better()
        return f"ended early: {reason}" if reason and self.ending == reason else ""

    @property
    def epochs(self) -> float:
        """Epochs so far; one epoch is N·M party-rows."""
        return self.rows / self._rows_per_epoch

    def save(self) -> dict[str, Any]:
        return {
            "k": self.k,
            "rows": self.rows,
            "ending": self.ending,
            "losses": self._losses,
            "limit": self._limit.count,
            "evaluations": self._evaluations.count,
            "best_value": self._best_value,
            "best_loss": self._best_loss,
            "since": self._since,
            "best": (self.best, self._loss_at_best),
        }

    def load(self, saved: dict[str, Any]) -> None:
        self.k, self.rows, self.ending = saved["k"], saved["rows"], saved["ending"]
        self._losses = saved["losses"]
        self._limit.count, self._evaluations.count = saved["limit"], saved["evaluations"]
        self._best_value, self._best_loss, self._since = saved["best_value"], saved["best_loss"], saved["since"]
        self.best, self._loss_at_best = saved["best"]
