"""Run an item: choose the settings on the validation rows, then measure them once on the test rows.

Each column is two comparisons in folders of their own, so an interrupted item continues where it stopped: `tune`, where
every method tries the grid, and `report`, where it runs with its best point and fresh seeds. In `report` the curves,
too, are of the test rows, which no choice has seen.
"""

import importlib
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from colonnade.config.schema import Config, apply_overrides
from colonnade.data import Partition
from colonnade.data.catalogue import CATALOGUE
from colonnade.experiments.compare import Contestant, Entry, OnProgress, contestants, entries_of, kept_partition, race
from colonnade.experiments.sweep import Grid, best_of, grid_contestants, points_of
from colonnade.protocol.errors import ColonnadeError
from colonnade.reproduce.item import Column, Item, Row
from colonnade.reproduce.measures import measure
from colonnade.reproduce.result import Cell, Result, fresh
from colonnade.results.verdict import flaw_of

__all__ = ["Job", "conduct"]

FIRST_SEED = 1000  # of the reported runs; the settings were chosen with seeds from 0 on
POINTS = 80  # of a curve
Curve = list[list[float]]


@dataclass(frozen=True, slots=True)
class Job:
    """How to run an item, and what to tell while it runs."""

    item: Item
    out: Path
    size: str = "full"  # or "quick"
    data: Path | None = None  # the folder with the real data
    workers: int | str = 1
    tell: Callable[[str], None] = lambda text: None
    show: OnProgress | None = None

    @property
    def seeds(self) -> int:
        return self.item.quick.seeds if self.size == "quick" else self.item.full.seeds

    def folder(self, part: str, column: Column) -> Path:
        """Where a part of this version of the item keeps its runs; items that share them share the folder."""
        name = re.sub(r"[^\w.+-]+", "-", column.name)
        version = f"{self.size}-{self.item.runs[self.size][:8]}"
        return self.out / (self.item.of or self.item.id) / version / f"{part}-{name}"

    def columns(self) -> list[Column]:
        """The columns that can run here."""
        return [column for column in self.item.columns if column.name not in self.untested]

    @property
    def untested(self) -> dict[str, str]:
        """Column → why it cannot run here."""
        return {column.name: why for column in self.item.columns if (why := self._obstacle(column))}

    def rows(self) -> list[Row]:
        return [row for row in self.item.rows if not (row.full and self.size == "quick")]

    def _obstacle(self, column: Column) -> str:
        if column.full and self.size == "quick":
            return "left out by --quick"
        if column.gpu and not torch.cuda.is_available():
            return "needs a GPU, and this machine has none"
        if not column.data or (self.data is not None and (self.data / column.data).is_dir()):
            return ""
        where = "no folder is named with --data" if self.data is None else f"--data has no folder {column.data}"
        others = [one.name for one in self.item.columns if not one.data and not one.gpu]
        stand_in = f"; without files: {', '.join(others)}" if others else ""
        return f"needs the data {column.data}, and {where}. To get them: {_how_to_get(column.data)}{stand_in}"

    def tables(self, column: Column) -> dict[str, Any]:
        """The config of a column, without a method."""
        settings = dict((self.item.quick if self.size == "quick" else self.item.full).set)
        for name in column.use:
            settings |= self.item.sets[name]
        folder = str((self.data / column.data).resolve()) if self.data and column.data else ""
        return _filled(apply_overrides(self.item.base, settings | column.set), folder)


def _how_to_get(name: str) -> str:
    return f"colonnade data get {name} --dir DIR" if name in CATALOGUE else "see docs/reproduction.md"


def _filled(value: Any, folder: str) -> Any:
    """Replace {data} by the folder of the column's data."""
    if isinstance(value, dict):
        return {key: _filled(item, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, folder) for item in value]
    return value.replace("{data}", folder) if isinstance(value, str) else value


class Chosen(NamedTuple):
    """The settings of a row, and the keys whose value is the first or last of its grid."""

    point: dict[str, Any]
    edges: list[str]


def conduct(job: Job) -> Result:
    """Run what is missing of an item, and return all of it."""
    start, used, columns = time.monotonic(), _processor_s(), job.columns()
    if job.item.study:
        module, _, name = job.item.study.partition(":")
        study = getattr(importlib.import_module(f"colonnade.reproduce.studies.{module}"), name)
        cells, curves = study(job, columns) if columns else ([], {})
    else:
        cells, curves = [], {}
        for column in columns:
            found, drawn = _column(job, column)
            cells += found
            curves |= {column.name: drawn} if drawn else {}
    seconds = round(time.monotonic() - start, 1)
    used = 0.0 if job.workers == "ray" else round(_processor_s() - used, 1)
    return fresh(
        job.item, job.size, job.seeds, seconds=seconds, processor_s=used,
        cells=cells, untested=job.untested, curves=curves,
    )  # fmt: skip


def _processor_s() -> float:
    """The processor time of this process and of its workers that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _column(job: Job, column: Column) -> tuple[list[Cell], dict[str, Curve]]:
    tables, rows = job.tables(column), job.rows()
    tables["methods"] = {row.name: row.set for row in rows}
    best, lost = _tuned(job, column, tables, [row for row in rows if row.tune])
    cells, racing = list(lost), []
    for row, one in zip(rows, contestants(tables, [row.name for row in rows]), strict=True):
        if any(cell.row == row.name for cell in lost):
            continue
        point = (best[row.name].point if row.name in best else {}) | {"train.seed": FIRST_SEED}
        racing.append(Contestant(one.label, apply_overrides(one.tables, point), one.own))
    if not racing:
        return cells, {}
    job.tell(f"{job.item.id}, {column.name}: measuring on the test rows")
    entries = _race(job, "report", column, entries_of(racing, job.seeds))
    by_row = {one.label: [entry for entry in entries if entry.label == one.label] for one in racing}
    cells += [_cell(job, column, name, runs, best.get(name)) for name, runs in by_row.items()]
    return cells, _curves(job, by_row)


def _tuned(
    job: Job, column: Column, tables: dict[str, Any], rows: Sequence[Row]
) -> tuple[dict[str, Chosen], list[Cell]]:
    """The best point of each row, by its validation rows, and the cells of rows that have none.

    A grid of one point needs no run.
    """
    tune = job.item.tune
    if tune is None or not rows:
        return {}, []
    grids = {row.name: tune.of(row, job.size) for row in rows}
    single = {name: grid for name, grid in grids.items() if all(len(values) == 1 for values in grid.values())}
    best = {name: Chosen({key: value for key, (value,) in grid.items()}, []) for name, grid in single.items()}
    grids = {name: grid for name, grid in grids.items() if name not in single}
    if not grids:
        return best, []
    job.tell(f"{job.item.id}, {column.name}: choosing {', '.join(tune.grid)} on the validation rows")
    racing = [one for name, grid in grids.items() for one in grid_contestants(tables, [name], grid)]
    entries = _race(job, "tune", column, entries_of(racing, tune.seeds))
    for name, grid in grids.items():
        best |= {one.method: Chosen(one.point, one.edges) for one in best_of(entries, [name], grid, tune.by)}
    return best, [_lost(job, column, name, entries, grid) for name, grid in grids.items() if name not in best]


def _lost(job: Job, column: Column, name: str, entries: Sequence[Entry], grid: Grid) -> Cell:
    """The cell of a row without a best point: it never reached the target, or every run has a fault."""
    sound = [point for point in points_of(entries, [name], grid) if point.scored is not None]
    if sound:
        return Cell(row=name, column=column.name, values=[None] * job.seeds)
    own = [run for run in entries if run.label.startswith(f"{name} ")] or entries
    why = next((run.unsuitable or run.error or flaw_of(run.summary) for run in own), "")
    return Cell(row=name, column=column.name, fault=f"no value of the grid gave a run without a fault: {why}")


def _race(job: Job, part: str, column: Column, entries: list[Entry]) -> list[Entry]:
    load = _load_for_report if part == "report" else None
    try:
        return race(entries, job.folder(part, column), job.show, workers=job.workers, load=load)
    except ColonnadeError as error:  # no method can run with these data and settings
        for entry in entries:
            entry.error = entry.error or str(error)
        return entries


def _load_for_report(config: Config) -> Partition:
    """The data of a reported run: the test rows alone."""
    return kept_partition(config).without_validation()


def _cell(job: Job, column: Column, name: str, runs: list[Entry], best: Chosen | None) -> Cell:
    fault = next((why for run in runs if (why := _fault(job, run))), "")
    values = [] if fault else [_scaled(job, run) for run in runs]
    adapted = {f"{key}: {words}" for run in runs for key, words in run.adapted.items()}
    warned = {text for run in runs for text in run.remarks if not text.startswith("ended early")}
    return Cell(
        row=name, column=column.name, values=values, fault=fault, remarks=sorted(adapted | warned),
        chosen=best.point if best else {}, edges=best.edges if best else [],
    )  # fmt: skip


def _fault(job: Job, run: Entry) -> str:
    """Why a run has no number."""
    if _counts_as_diverged(job, run):
        return ""
    lenient = job.item.measure.of_any_run and run.summary is not None
    return run.unsuitable or run.error or ("" if lenient else flaw_of(run.summary))


def _counts_as_diverged(job: Job, run: Entry) -> bool:
    diverged = run.summary is not None and run.summary["status"] == "diverged"
    return diverged and job.item.measure.diverged is not None


def _scaled(job: Job, run: Entry) -> float | None:
    assert run.summary is not None
    if _counts_as_diverged(job, run):
        return job.item.measure.diverged
    row = next(one for one in job.item.rows if one.name == run.label)
    number = measure(row.what or job.item.measure.what, run.summary, run.rows)
    return None if number is None else number * job.item.measure.times


def _curves(job: Job, by_row: dict[str, list[Entry]]) -> dict[str, Curve]:
    """The mean curve of each row over its seeds."""
    figure = job.item.figure
    if figure is None or figure.kind != "curves":
        return {}
    found = {}
    for name, runs in by_row.items():
        seen = [_points(run.rows, figure.x, figure.y) for run in runs if run.summary is not None]
        seen = [(x, y) for x, y in seen if len(x) > 1]
        if seen:
            found[name] = _mean(seen)
    return found


def _points(rows: Sequence[dict[str, Any]], x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
    kept = [(row[x], row[y]) for row in rows if row.get(x) is not None and row.get(y) is not None]
    return np.array([a for a, _ in kept]), np.array([b for _, b in kept])


def _mean(seen: Sequence[tuple[np.ndarray, np.ndarray]]) -> Curve:
    """The mean where all curves have values."""
    low, high = max(x[0] for x, _ in seen), min(x[-1] for x, _ in seen)
    at = np.linspace(low, high, POINTS) if len(seen[0][0]) > POINTS or len(seen) > 1 else seen[0][0]
    mean = np.mean([np.interp(at, x, y) for x, y in seen], axis=0)
    return [[float(f"{value:.5g}") for value in axis] for axis in (at, mean)]
