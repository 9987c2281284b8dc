"""A grid of settings for every method: which is best, and whether the grid ends too early to know."""

import re
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import mean
from typing import Any, NamedTuple

from colonnade.config.schema import apply_overrides, parse_override
from colonnade.experiments.compare import Contestant, Entry, contestants
from colonnade.models.metrics import METRICS
from colonnade.protocol.errors import ConfigError
from colonnade.results.verdict import flaw_of

__all__ = ["Best", "Grid", "best_of", "grid_contestants", "parse_grid", "that_ran"]

_UNSAFE = re.compile(r"[^\w.+-]+")  # in a file's name
Grid = dict[str, list[Any]]  # key → values, in the order in which they were given


def parse_grid(texts: Sequence[str]) -> Grid:
    """`train.learning_rate=0.01,0.03,0.1`; lists and strings as in --set."""
    grid: Grid = {}
    for text in texts:
        key, equals, values = text.partition("=")
        parts = [part.strip() for part in values.split(",") if part.strip()]
        if not equals or not parts:
            raise ConfigError("--grid", text, "write KEY=VALUE,VALUE,…, e.g. train.learning_rate=0.01,0.03,0.1")
        if key in grid:
            raise ConfigError("--grid", text, f"{key} is given twice")
        grid[key] = [parse_override(f"{key}={part}")[1] for part in parts]
        if len({repr(value) for value in grid[key]}) < len(parts):
            raise ConfigError("--grid", text, "names a value twice")
    if not grid:
        raise ConfigError("--grid", "", "name at least one key, e.g. train.learning_rate=0.01,0.03,0.1")
    return grid


def grid_contestants(tables: Mapping[str, Any], labels: Sequence[str], grid: Grid) -> list[Contestant]:
    """Every method at every point of the grid."""
    return [
        Contestant(_label(one.label, point), apply_overrides(one.tables, point), one.own | point.keys())
        for one in contestants(tables, labels)
        for point in _points(grid)
    ]


def _points(grid: Grid) -> list[dict[str, Any]]:
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def _label(method: str, point: Mapping[str, Any]) -> str:
    """Also a folder's name."""
    settings = [f"{key.rpartition('.')[2]}={_UNSAFE.sub('_', str(value))}" for key, value in point.items()]
    return " ".join([method, *settings])


class Best(NamedTuple):
    """A method's best point, its mean, and the keys whose best value is the grid's first or last."""

    method: str
    point: dict[str, Any]
    value: float
    edges: list[str]


def best_of(entries: Sequence[Entry], labels: Sequence[str], grid: Grid) -> list[Best]:
    """By the configured metric, mean over seeds; points with a run that failed or has warnings cannot win."""
    found = []
    for label in labels:
        scored = []
        for point in _points(grid):
            runs = [entry for entry in entries if entry.label == _label(label, point)]
            results = [entry.summary["value"] for entry in runs if entry.summary and not flaw_of(entry.summary)]
            known = [value for value in results if value is not None]
            if runs and len(known) == len(runs):
                scored.append((mean(known), point))
        if scored:
            upwards = METRICS[_metric(entries)].higher_is_better
            value, point = (max if upwards else min)(scored, key=lambda pair: pair[0])
            found.append(Best(label, point, value, [key for key in grid if _at_edge(grid[key], point[key])]))
    return found


def that_ran(entries: Sequence[Entry], labels: Sequence[str], grid: Grid) -> list[str]:
    """The methods that could run at a point of the grid at least."""
    ran = {entry.label for entry in entries if not entry.unsuitable}
    return [label for label in labels if any(_label(label, point) in ran for point in _points(grid))]


def _metric(entries: Sequence[Entry]) -> str:
    return next(str(entry.summary["metric"]) for entry in entries if entry.summary)


def _at_edge(values: list[Any], best: Any) -> bool:
    """Only numbers have one."""
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return numbers and len(values) > 1 and best in (min(values), max(values))
