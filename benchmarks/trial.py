"""One run of one method on one table under one clock, until it reaches a target, its limit or a wall time."""

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from late_block import late_block
from tables import FACTOR, PATTERNS, ROW_S, SOURCES, clock_of

from colonnade.config.resolve import make_plan, scale_of
from colonnade.config.schema import from_dict
from colonnade.data import Partition
from colonnade.experiments.run import Run, one_thread, prepare
from colonnade.models.metrics import METRICS, Metric
from colonnade.protocol.errors import ColonnadeError, TrainingDiverged

__all__ = ["DATA", "trial"]

DATA: dict[tuple[str, str | None], Partition] = {}  # by table and scale; filled before the workers are forked
EVENTS = 50  # between two checks of the curve


def trial(job: dict[str, Any]) -> dict[str, Any]:
    """Do a job; return how it ended.

    job: `table`, `pattern`, `seed`; `tables` of a config; `train`, its limit and how often to evaluate; `target` of the
    metric, or None: the run goes on to its limit; `hold`, at how many evaluations in a row it must be there; `wall_s`,
    when to give up; `control`, whether to run the joint model with late blocks instead.
    """
    start = time.perf_counter()
    try:
        run = _prepared(job)
    except ColonnadeError as error:
        return {"status": "refused", "why": str(error)}
    arrival, status, why = Arrival(METRICS[SOURCES[job["table"]].metric], job["target"], job["hold"]), "finished", ""
    try:
        with one_thread():
            while run.simulator.advance(EVENTS):
                if arrival.at(run.rows) is not None:
                    status = "stopped"
                    break
                if time.perf_counter() - start > job["wall_s"]:
                    status, why = "gave up", f"after {job['wall_s']:g} s of wall time"
                    break
            else:
                run.simulator.settle()
                status = run.status = run.simulator.status
    except TrainingDiverged as error:
        status, why = "diverged", str(error)
    curve, reached = [(row["clock_s"], row["value"]) for row in run.rows], arrival.at(run.rows)
    return {
        "status": status,
        "why": why,
        "warnings": run.summary()["warnings"] if status == "finished" else [],
        "time_s": reached["clock_s"] if reached else None,
        "updates_to_target": reached["update"] if reached else None,
        "value": curve[-1][1] if curve else None,
        "held": held([value for _, value in curve if value is not None], arrival.metric, job["hold"]),
        "test": run.rows[-1].get("test_value") if run.rows else None,  # for a run that went to its end
        "mean": _time_average(curve),
        "clock_s": run.clock_s,
        "updates": run.rows[-1]["update"] if run.rows else 0,
        "wall_s": round(time.perf_counter() - start, 2),
    }


class Arrival:
    """Watches a curve for the first of `hold` evaluations in a row that are as good as the target.

    A single one may be luck: a table of 40 rows to judge on has few values of its metric.
    """

    def __init__(self, metric: Metric, target: float | None, hold: int) -> None:
        self.metric, self._target, self._hold = metric, target, hold
        self._seen, self._good = 0, 0

    def at(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        """The first of `hold` good evaluations in a row, if there is one."""
        if self._target is None:
            return None
        while self._seen < len(rows) and self._good < self._hold:
            value = rows[self._seen]["value"]
            good = value is not None and self.metric.reached(value, self._target)
            self._good = self._good + 1 if good else 0
            self._seen += 1
        return rows[self._seen - self._hold] if self._good == self._hold else None


def held(values: Sequence[float], metric: Metric, hold: int) -> float | None:
    """The best level that a curve keeps for this many evaluations in a row."""
    best, worst = (max, min) if metric.higher_is_better else (min, max)
    levels = [worst(values[start : start + hold]) for start in range(len(values) - hold + 1)]
    return best(levels, default=None)


def _prepared(job: dict[str, Any]) -> Run:
    pattern, train = PATTERNS[job["pattern"]], job["tables"].get("train", {}) | job["train"]
    train = train | {"seed": job["seed"], "metric": SOURCES[job["table"]].metric}
    tables = job["tables"] | {"train": train}
    config = from_dict(tables)
    data = DATA[job["table"], scale_of(config)]
    batch = make_plan(config, data.parties, len(data.y_train), data.task, data.validation).training.batch_size
    if job["control"]:
        return late_block(data, tables, pattern.slow, FACTOR, ROW_S * batch)
    return prepare(from_dict(tables | {"clock": clock_of(pattern, batch)}), data)


def _time_average(curve: Sequence[tuple[float, float | None]]) -> float | None:
    """The metric's mean over the clock: high if the metric is good early and stays so."""
    total = 0.0
    for (before, value), (after, _) in pairwise(curve):
        if value is None:
            return None
        total += value * (after - before)
    return total / (curve[-1][0] - curve[0][0]) if len(curve) > 1 else None
