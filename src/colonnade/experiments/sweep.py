"""Run every method over a grid of settings: which point is best, and whether the grid ends too early to know.

Points are compared on the validation rows. Without any, `best_of` uses the test rows, and `Best.chosen_on` says so.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from statistics import mean
from typing import Any, Literal, NamedTuple

from colonnade.config.schema import apply_overrides, parse_override
from colonnade.experiments.compare import Contestant, Entry, contestants
from colonnade.models.metrics import METRICS
from colonnade.protocol.errors import ConfigError
from colonnade.results.summary import Summary
from colonnade.results.verdict import flaws_of

__all__ = [
    "Best",
    "By",
    "Grid",
    "Point",
    "best_of",
    "check_by",
    "grid_contestants",
    "parse_grid",
    "points_of",
    "that_ran",
]

By = Literal["metric", "loss", "time-to-target"]

_UNSAFE = re.compile(r"[^\w.+-]+")  # in a file's name
Grid = dict[str, list[Any]]  # key → values, in the given order


def parse_grid(texts: Sequence[str]) -> Grid:
    """Parse `train.learning_rate=0.01,0.03,0.1`; lists and strings are written as in --set."""
    grid: Grid = {}
    for text in texts:
        key, equals, values = text.partition("=")
        parts = [part.strip() for part in values.split(",") if part.strip()]
        if not equals or not parts:
            raise ConfigError("--grid", text, "must be KEY=VALUE,VALUE,…, e.g. train.learning_rate=0.01,0.03,0.1")
        if key in grid:
            raise ConfigError("--grid", text, f"{key} is given twice")
        grid[key] = [parse_override(f"{key}={part}")[1] for part in parts]
        if len({repr(value) for value in grid[key]}) < len(parts):
            raise ConfigError("--grid", text, "names a value twice")
    if not grid:
        raise ConfigError("--grid", "", "name at least one key, e.g. train.learning_rate=0.01,0.03,0.1")
    return grid


def grid_contestants(tables: Mapping[str, Any], labels: Sequence[str], grid: Grid) -> list[Contestant]:
    """Return every method at every point of the grid."""
    return [
        Contestant(_label(one.label, point), apply_overrides(one.tables, point), one.own | point.keys())
        for one in contestants(tables, labels)
        for point in _points(grid)
    ]


def _points(grid: Grid) -> list[dict[str, Any]]:
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def _label(method: str, point: Mapping[str, Any]) -> str:
    """Return the label of a point, which is also a folder's name."""
    settings = [f"{key.rpartition('.')[2]}={_UNSAFE.sub('_', str(value))}" for key, value in point.items()]
    return " ".join([method, *settings])


class Best(NamedTuple):
    """A method's best point, its means over seeds, and the keys whose best value is the grid's first or last."""

    method: str
    point: dict[str, Any]
    edges: list[str]
    metric: str
    chosen_on: str  # "validation" or "test" rows
    validation: float | None  # mean of the metric; None: there are no validation rows
    test: float | None
    loss: float | None  # mean, on the rows on which it was chosen
    reached: int  # seeds that reached the target
    seeds: int
    time_s: float | None  # their mean time to the target


class Point(NamedTuple):
    """A method at one point of the grid."""

    method: str
    point: dict[str, Any]
    flaw: str  # what is wrong with its runs; "": all of them are results
    scored: Best | None  # None: its runs have a fault


def check_by(by: str, tables: Mapping[str, Any]) -> By:
    """Refuse what cannot be compared, before anything runs."""
    for known in ("metric", "loss", "time-to-target"):
        if by == known:
            break
    else:
        raise ConfigError("--by", by, "use 'metric', 'loss' or 'time-to-target'")
    if known == "time-to-target" and tables.get("train", {}).get("target") is None:
        raise ConfigError("--by", by, "needs a target: --set train.target=0.9")
    return known


def best_of(entries: Sequence[Entry], labels: Sequence[str], grid: Grid, by: By = "metric") -> list[Best]:
    """Return the best point of each method, by means over seeds; a point with a failed run or a warning cannot win.

    By time to target, a point that reached it with more seeds comes first, then the faster mean.
    """
    found = []
    for label in labels:
        scored = [one.scored for one in points_of(entries, [label], grid) if one.scored is not None]
        ranked = [(rank, best) for best in scored if (rank := _rank(best, by)) is not None]
        if ranked:
            found.append(max(ranked, key=lambda pair: pair[0])[1])
    return found


def points_of(entries: Sequence[Entry], labels: Sequence[str], grid: Grid) -> list[Point]:
    """Return every method at every point at which it could run, with its means over seeds."""
    found = []
    for label in labels:
        for point in _points(grid):
            runs = [one.summary for one in entries if one.label == _label(label, point) and not one.unsuitable]
            if not runs:
                continue
            flaw, results = flaws_of(runs), [summary for summary in runs if summary is not None]
            edges = [key for key in grid if _at_edge(grid[key], point[key])]
            found.append(Point(label, point, flaw, None if flaw else _scored(label, point, edges, results)))
    return found


def _scored(label: str, point: dict[str, Any], edges: list[str], results: Sequence[Summary]) -> Best:
    first = results[0]
    chosen_on = "validation" if first["validation_rows"] else "test"
    times = [time for summary in results if (time := summary["time_to_target_s"]) is not None]
    on_validation = chosen_on == "validation"
    return Best(
        label, point, edges, first["metric"], chosen_on,
        validation=_mean(results, lambda summary: summary["validation_value"]),
        test=_mean(results, lambda summary: summary["value"]),
        loss=_mean(results, lambda summary: summary["validation_loss"] if on_validation else summary["loss"]),
        reached=len(times), seeds=len(results), time_s=mean(times) if times else None,
    )  # fmt: skip


def _mean(results: Sequence[Summary], read: Callable[[Summary], float | None]) -> float | None:
    """Return the mean; None if one of them has no value."""
    values = [value for summary in results if (value := read(summary)) is not None]
    return mean(values) if len(values) == len(results) else None


def _rank(best: Best, by: By) -> tuple[float, ...] | None:
    """Return a key, larger is better; None if it cannot be compared."""
    if by == "time-to-target":
        return (best.reached, -best.time_s) if best.time_s is not None else None
    value, metric = (best.loss, "loss") if by == "loss" else (_chosen(best), best.metric)
    if value is None:
        return None
    return (value if METRICS[metric].higher_is_better else -value,)


def _chosen(best: Best) -> float | None:
    return best.validation if best.chosen_on == "validation" else best.test


def that_ran(entries: Sequence[Entry], labels: Sequence[str], grid: Grid) -> list[str]:
    """Return the methods that could run at one point of the grid or more."""
    ran = {entry.label for entry in entries if not entry.unsuitable}
    return [label for label in labels if any(_label(label, point) in ran for point in _points(grid))]


def _at_edge(values: list[Any], best: Any) -> bool:
    """Whether the best value is the grid's first or last; only numbers have an edge."""
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return numbers and len(values) > 1 and best in (min(values), max(values))
