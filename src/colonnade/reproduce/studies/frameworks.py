"""VFL-Cascaded's Table III: what each framework can do, as a number for each of the paper's four marks."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from colonnade.config.resolve import load_partition
from colonnade.config.schema import apply_overrides, from_dict
from colonnade.experiments.compare import Entry, contestants, entries_of, race
from colonnade.experiments.run import one_thread, prepare
from colonnade.reproduce.conduct import Curve, Job
from colonnade.reproduce.item import Column, Row
from colonnade.reproduce.result import Cell
from colonnade.reproduce.studies.leaks import success

__all__ = ["Signs", "marks"]

Array = npt.NDArray[np.float32]
FROZEN = "frozen"
TURNS, EVENTS = 5, 2000  # each framework runs so many times, for so many events


class Signs:
    """A party of hard steps, sign(x W): its derivative is 0 wherever it exists. θ is W as one flat vector."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.shape = (inputs, outputs)

    def initial(self, generator: np.random.Generator) -> Array:
        return generator.normal(0.0, 1.0, self.shape).astype(np.float32).ravel()

    def __call__(self, theta: Array, rows: Array) -> Array:
        return np.where(rows @ theta.reshape(self.shape) > 0, np.float32(1), np.float32(-1))


def marks(job: Job, columns: Sequence[Column]) -> tuple[list[Cell], dict[str, dict[str, Curve]]]:
    """A column for each mark; its setting `mark` names a function below."""
    cells: list[Cell] = []
    for column in columns:
        job.tell(f"{job.item.id}: {column.name}")
        tables = job.tables(column)
        cells += MARKS[tables.pop("mark")](job, column, tables)
    return cells, {}


def _own(job: Job, column: Column, row: Row) -> dict[str, Any]:
    """The settings of a framework in this column."""
    return row.set | job.item.sets.get(f"{row.name}, {column.name}", {})


def _applicable(job: Job, column: Column, tables: dict[str, Any]) -> list[Cell]:
    """The points that parties without a derivative gain over the same parties, untrained; 0 for a refusal."""
    runs = _raced(job, column, tables, FROZEN)
    base = [_value(run) for run in runs.pop(FROZEN)]
    cells = []
    for name, own in runs.items():
        refused = next((run.unsuitable or run.error for run in own if run.unsuitable or run.error), "")
        values = [0.0 if refused else 100 * (_value(run) - low) for run, low in zip(own, base, strict=True)]
        remarks = [f"refuses these parties: {refused}"] if refused else []
        cells.append(Cell(row=name, column=column.name, values=list(values), remarks=remarks))
    return cells


def _accurate(job: Job, column: Column, tables: dict[str, Any]) -> list[Cell]:
    """The test accuracy after the same number of epochs."""
    runs = _raced(job, column, tables)
    return [Cell(row=name, column=column.name, values=[100 * _value(run) for run in own]) for name, own in runs.items()]


def _raced(job: Job, column: Column, tables: dict[str, Any], *more: str) -> dict[str, list[Entry]]:
    methods = {row.name: _own(job, column, row) for row in job.rows()}
    methods |= {name: {"protocol.name": name} | job.item.sets.get(f"{name}, {column.name}", {}) for name in more}
    entries = entries_of(contestants(tables | {"methods": methods}, list(methods)), job.seeds)
    race(entries, job.folder("report", column), job.show, workers=job.workers)
    return {name: [run for run in entries if run.label == name] for name in methods}


def _value(run: Entry) -> float:
    return float(run.summary["value"] or 0.0) if run.summary else 0.0


def _private(job: Job, column: Column, tables: dict[str, Any]) -> list[Cell]:
    """The labels that a curious client infers from the server's answers, per cent."""
    methods = {row.name: row.set["protocol.name"] for row in job.rows()}
    found = success(job, tables, list(methods.values()))
    return [
        Cell(row=name, column=column.name, values=list(found[method, "curious client"]))
        for name, method in methods.items()
    ]


def _costly(job: Job, column: Column, tables: dict[str, Any]) -> list[Cell]:
    """The processor time of an update over that of the first row; the frameworks run in turns."""
    data = load_partition(from_dict(tables))
    spent: dict[str, list[float]] = {row.name: [] for row in job.rows()}
    with one_thread():
        for _ in range(TURNS):
            for row in job.rows():
                run: Any = prepare(from_dict(apply_overrides(tables, _own(job, column, row))), data)
                start = time.process_time()
                run.simulator.advance(EVENTS)
                spent[row.name].append((time.process_time() - start) / run.simulator.nodes[0].role.progress.k)
    first = np.array(spent[job.rows()[0].name])
    return [
        Cell(row=name, column=column.name, values=[float(np.median(np.array(own) / first))])
        for name, own in spent.items()
    ]


MARKS: dict[str, Callable[[Job, Column, dict[str, Any]], list[Cell]]] = {
    "applicable": _applicable,
    "accurate": _accurate,
    "private": _private,
    "costly": _costly,
}
