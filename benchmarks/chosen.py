"""Settings that are chosen on validation rows, and reported on test rows that no choice has used.

A job is one run: `data`, a key of DATA; `on`, "validation" or "test", the rows that its curve is of (it trains on the
same rows either way); `tables` of a config; `stop`, whether it ends at `train.target`; `late`, the arguments of the
control (late_block.py) that it runs instead, or None.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from statistics import mean
from typing import Any, TypeVar

from journal import Job, Journal, Result
from late_block import late_block

from colonnade.config.schema import from_dict
from colonnade.data import Partition
from colonnade.experiments.run import Run, one_thread, prepare
from colonnade.protocol.errors import TrainingDiverged
from colonnade.results.summary import time_to_target

__all__ = ["DATA", "choose", "error", "job", "judge", "results", "time_s"]

DATA: dict[str, Partition] = {}  # filled before the workers are forked
Key = TypeVar("Key")
Case = TypeVar("Case")
Setting = TypeVar("Setting")
EVENTS = 50  # between two checks of the curve
KEEP = 4  # settings tried with all seeds


def job(data: str, tables: dict[str, Any], *, stop: bool = False, late: dict[str, Any] | None = None) -> Job:
    """A run on validation rows; `results` gives it its seed and its rows."""
    return {"data": data, "on": "validation", "tables": tables, "stop": stop, "late": late}


def judge(job: Job) -> Result:
    """Do a job; return the time at which it reached its target, its last value and its curve."""
    start, data = time.perf_counter(), DATA[job["data"]]
    run = _prepared(job, data if job["on"] == "validation" else data.without_validation())
    status = "finished"
    try:
        with one_thread():
            while run.simulator.advance(EVENTS):
                if job["stop"] and _arrival(run) is not None:
                    status = "stopped"
                    break
            else:
                run.simulator.settle()
                status = run.simulator.status
    except TrainingDiverged:
        status = "diverged"
    curve = [(row["clock_s"], row["value"]) for row in run.rows]
    return {
        "status": status,
        "time_s": _arrival(run),
        "value": curve[-1][1] if curve else None,
        "curve": curve,
        "wall_s": round(time.perf_counter() - start, 2),
    }


def _prepared(job: Job, data: Partition) -> Run:
    if job["late"] is not None:
        return late_block(data, job["tables"], **job["late"])
    return prepare(from_dict(job["tables"]), data)


def _arrival(run: Run) -> float | None:
    return time_to_target(run.rows, run.federation.training.metric, run.federation.plan.target)


# The choice


def results(
    journal: Journal, title: str, jobs: Mapping[Key, Job], seeds: Sequence[int], on: str
) -> dict[Key, list[Result]]:
    """The results of every job with every seed, judged `on` validation or test rows."""
    seeded = [_seeded(one, seed) | {"on": on} for one in jobs.values() for seed in seeds]
    found = iter(journal.results(title, seeded))
    return {key: [next(found) for _ in seeds] for key in jobs}


def _seeded(job: Job, seed: int) -> Job:
    tables = job["tables"]
    return job | {"tables": tables | {"train": tables["train"] | {"seed": seed}}}


def choose(
    journal: Journal,
    cases: Mapping[Case, Mapping[Setting, Job]],
    seeds: Sequence[int],
    cost: Callable[[Result], float],
    keep: int = KEEP,
) -> dict[Case, Setting]:
    """For each case the setting with the least mean cost on validation rows.

    All settings run with the first seed, the best `keep` of them with the others, too.
    """
    first = _costs(journal, "tuning, all settings", cases, seeds[:1], cost)
    short = {
        case: {one: settings[one] for one in sorted(settings, key=lambda one: first[case, one][0])[:keep]}
        for case, settings in cases.items()
    }
    rest = _costs(journal, "tuning, the best", short, seeds[1:], cost)
    return {
        case: min(settings, key=lambda one: mean([*first[case, one], *rest[case, one]]))
        for case, settings in short.items()
    }


def _costs(
    journal: Journal,
    title: str,
    cases: Mapping[Case, Mapping[Setting, Job]],
    seeds: Sequence[int],
    cost: Callable[[Result], float],
) -> dict[tuple[Case, Setting], list[float]]:
    jobs = {(case, one): job for case, settings in cases.items() for one, job in settings.items()}
    found = results(journal, title, jobs, seeds, "validation")
    return {key: [cost(one) for one in runs] for key, runs in found.items()}


def time_s(result: Result) -> float:
    """As a cost: the time to the target; infinite if the run did not get there."""
    return inf if result["time_s"] is None else result["time_s"]


def error(result: Result) -> float:
    """As a cost: how far the accuracy at the end is below 1; infinite if the run did not get to its end."""
    return inf if result["status"] != "finished" or result["value"] is None else 1 - result["value"]
