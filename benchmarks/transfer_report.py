"""The output of transfer.py: tables in Markdown and a picture, made from the lines of its results."""

import json
import shutil
from collections.abc import Iterable, Sequence
from math import exp, inf, log
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from markdown import markdown
from tables import DEVELOPMENT, PATTERNS, SOURCES, TEST

from colonnade.models.metrics import METRICS

__all__ = ["CONTROL", "TUNED", "draw", "fill", "learned", "oracle_of", "report"]

TUNED, CONTROL = "sync, tuned", "control"
SLOW = ("1", "2", "3", "4")
TICKS = [0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 2.0]
DRAWN = 5  # methods, beside the control
BEGIN, END = "<!-- made by benchmarks/transfer.py -->", "<!-- until here -->"
Record = dict[str, Any]  # a job and its result in one
Runs = dict[tuple[int, str], Record]  # of a cell, by seed and setting


class Oracle(NamedTuple):
    """`centralised`, mean over seeds, at the rate that is best on validation rows."""

    curve: float  # the best level that it holds
    test: float  # at the end


def oracle_of(table: str, records: Iterable[Record]) -> Oracle:
    """The centralised result of a table."""
    ends: dict[str, list[Oracle]] = {}
    for one in records:
        if one["stage"] == "centralised" and one["table"] == table and one["held"] is not None:
            ends.setdefault(one["setting"], []).append(Oracle(one["held"], one["test"]))
    means = [Oracle(mean(end.curve for end in them), mean(end.test for end in them)) for them in ends.values()]
    return (max if METRICS[SOURCES[table].metric].higher_is_better else min)(means)


class Cell(NamedTuple):
    """A method on a table under a pattern."""

    ratio: float  # its time divided by that of tuned sync
    reached: int  # how many of its seeds
    seeds: int

    def __str__(self) -> str:
        return f"{self.ratio:.2f}" + ("" if self.reached == self.seeds else f" ({self.reached}/{self.seeds})")


class Cells:
    """All cells of a study that have results."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        runs: dict[tuple[str, str, str], Runs] = {}
        for one in records:
            if one["stage"] == "cell":
                key = one["method"], one["table"], one["pattern"]
                runs.setdefault(key, {})[one["seed"], json.dumps(one["tables"])] = one
        self.refused = {key[0]: next(iter(them.values()))["why"] for key, them in runs.items() if _refused(them)}
        self._cells: dict[tuple[str, str, str], Cell] = {}
        self.settings: dict[tuple[str, str], str] = {}  # of tuned sync, by table and pattern
        self.seconds: dict[tuple[str, str], float] = {}  # and its time
        self.arrived: dict[tuple[str, str], tuple[int, int]] = {}  # and how many of its runs arrived, of how many
        for (method, table, pattern), them in runs.items():
            reference = _reference(runs, table, pattern)
            if reference is None or _refused(them):
                continue
            time_s = mean(_times(reference.values()).values())
            self.seconds[table, pattern] = time_s
            times = _times(them.values())
            reached = sum(any(one["time_s"] for one in them.values() if one["seed"] == seed) for seed in times)
            self._cells[method, table, pattern] = Cell(mean(times.values()) / time_s, reached, len(times))
            self.arrived[table, pattern] = sum(one["time_s"] is not None for one in reference.values()), len(reference)
            self.settings[table, pattern] = next(iter(reference.values()))["setting"]

    @property
    def methods(self) -> list[str]:
        """The methods in the order of the runs, the control last."""
        names = dict.fromkeys(key[0] for key in self._cells if key[0] != TUNED)
        return sorted(names, key=lambda name: name == CONTROL)

    def tables(self, names: Iterable[str] = SOURCES) -> list[str]:
        """Those of these methods that have cells."""
        return [name for name in names if any(key[1] == name for key in self._cells)]

    @property
    def patterns(self) -> list[str]:
        """The tables that have cells."""
        return [name for name in PATTERNS if any(key[2] == name and key[0] != TUNED for key in self._cells)]

    def get(self, method: str, table: str, pattern: str) -> Cell | None:
        """One cell, if it has results."""
        return self._cells.get((method, table, pattern))

    def end(self, method: str, table: str) -> float | None:
        """The metric on the test rows at the end of a run of the method's own length, if all runs ended."""
        of = ("end", method, table)
        runs = [one for one in self.records if (one["stage"], one["method"], one["table"]) == of]
        values = list({one["seed"]: one.get("test") for one in runs}.values())
        return mean(values) if values and None not in values else None

    def some(self, method: str, tables: Iterable[str], patterns: Iterable[str]) -> list[Cell]:
        """The cells of a method."""
        found = (self.get(method, table, pattern) for table in tables for pattern in patterns)
        return [cell for cell in found if cell is not None]


def _reference(runs: dict[tuple[str, str, str], Runs], table: str, pattern: str) -> Runs | None:
    """The runs of tuned `sync` under this pattern, or under one with steps as long."""
    step_s = PATTERNS[pattern].step_s(1)
    alike = [pattern, *(name for name, other in PATTERNS.items() if other.step_s(1) == step_s)]
    return next((found for name in alike if (found := runs.get((TUNED, table, name)))), None)


def _refused(them: Runs) -> bool:
    return any(one["status"] == "refused" for one in them.values())


def _times(runs: Iterable[Record]) -> dict[int, float]:
    """By seed, the time to the target or the limit; for the control, that of its faster setting."""
    found: dict[int, float] = {}
    for one in runs:
        time_s = one["limit_s"] if one["time_s"] is None else one["time_s"]
        found[one["seed"]] = min(time_s, found.get(one["seed"], inf))
    return found


def geometric(values: Sequence[float]) -> float:
    """The geometric mean."""
    return exp(mean(map(log, values)))


def report(records: Sequence[Record], shown: Iterable[str] | None = None) -> str:
    """The tables in Markdown; `shown`: the methods with a table of their own, or all."""
    cells = Cells(records)
    groups = {"test tables": cells.tables(TEST), "development tables": cells.tables(DEVELOPMENT)}
    rows = max(one["rows"] for one in records)
    seeds = len({one["seed"] for one in records if one["stage"] == "cell"})
    parts = [f"Tables of at most {rows:,} rows; times over {seeds} seed{'s' * (seeds > 1)}."]
    for title, tables in groups.items():
        if tables:
            parts += [f"### All methods, {title}", f"Over {', '.join(tables)}:", overall(cells, tables)]
    for method in cells.methods if shown is None else [name for name in cells.methods if name in shown]:
        parts += [f"### {method}: each table", by_table(cells, method)]
    parts += ["### The tuned `sync`", tuned_table(cells)]
    if cells.refused:
        parts += ["### Not run", "\n".join(f"- `{name}`: {why}" for name, why in cells.refused.items())]
    return "\n\n".join(parts) + "\n"


def fill(page: Path, records: Sequence[Record]) -> None:
    """Put the tables of `swift` and of the control between the two marks of a page."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page}: lacks {BEGIN} or {END}")
    text = report(records, ("swift", CONTROL))
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")


def overall(cells: Cells, tables: Sequence[str]) -> str:
    """One line per method: the ratio with one slow party, the worst cell, the other patterns, the ends."""
    others = [pattern for pattern in cells.patterns if pattern not in SLOW]
    rows = []
    for method in cells.methods:
        slow = cells.some(method, tables, SLOW)
        everything = cells.some(method, tables, cells.patterns)
        shown = [_geometric(slow), f"{max(cell.ratio for cell in slow):.2f}" if slow else "–"]
        shown += [_geometric(cells.some(method, tables, [pattern])) for pattern in others]
        reached, seeds = sum(cell.reached for cell in everything), sum(cell.seeds for cell in everything)
        behind = [gap for table in tables if (gap := _behind(cells, method, table)) is not None]
        ends = f"{mean(behind):+.2f} ({min(behind):+.2f})" if behind else "–"
        rows.append([f"`{method}`" if method != CONTROL else method, *shown, f"{reached} of {seeds}", ends])
    names = ["method", "one slow", "worst cell", *others, "runs that reached it", "end, points (worst)"]
    return markdown(names, rows)


def _geometric(cells: Sequence[Cell]) -> str:
    return f"{geometric([cell.ratio for cell in cells]):.2f}" if cells else "–"


def _behind(cells: Cells, method: str, table: str) -> float | None:
    """Points above the centralised metric at the end; for rmse: per cent below it."""
    end = cells.end(method, table)
    if end is None:
        return None
    best = oracle_of(table, cells.records).test
    return 100 * ((end - best) if METRICS[SOURCES[table].metric].higher_is_better else 1 - end / best)


def by_table(cells: Cells, method: str) -> str:
    """One line per table: the ratio under each pattern."""
    rows = []
    for table in cells.tables():
        shown = [cells.get(method, table, pattern) for pattern in cells.patterns]
        end = cells.end(method, table)
        rows.append(
            [table, *("–" if cell is None else str(cell) for cell in shown), "–" if end is None else f"{end:.4g}"]
        )
    return markdown(["table", *cells.patterns, "end"], rows)


def tuned_table(cells: Cells) -> str:
    """Explain the ratios."""
    rows = []
    for table in cells.tables():
        runs = [one for one in cells.records if one["stage"] == "cell" and one["table"] == table]
        seconds = [_seconds(cells, table, pattern) for pattern in cells.patterns]
        setting = next((cells.settings[key] for key in cells.settings if key[0] == table), "–")
        target = runs[0]["target"]
        best = oracle_of(table, cells.records)
        shown = [f"{best.test:.4g}", f"{best.curve:.4g}", f"{target:.4g}"]
        rows.append([table, SOURCES[table].metric, *shown, setting, *seconds])
    names = [
        "table",
        "metric",
        "centralised, test rows",
        "its curve",
        "target",
        "setting",
        *(f"{name} (s)" for name in cells.patterns),
    ]
    return markdown(names, rows)


def _seconds(cells: Cells, table: str, pattern: str) -> str:
    if (table, pattern) not in cells.seconds:
        return "–"
    reached, seeds = cells.arrived[table, pattern]
    return f"{cells.seconds[table, pattern]:.2f}" + ("" if reached == seeds else f" ({reached}/{seeds})")


def draw(records: Sequence[Record], path: Path) -> None:
    """One mark per table, pattern and method: a picture, or a page if there is no Chromium."""
    cells = Cells(records)
    try:
        import plotly.graph_objects as plotly  # noqa: PLC0415 - a machine that only runs jobs may lack it
        from aggregation import save  # noqa: PLC0415
    except ImportError:
        return
    picture = plotly.Figure()
    for method in [*cells.methods[:DRAWN], *cells.methods[DRAWN:][-1:]]:
        places = [(f"{table}, {name}", cell) for table in cells.tables() for name in cells.patterns
                  if (cell := cells.get(method, table, name)) is not None]  # fmt: skip
        shape = ["circle" if cell.reached == cell.seeds else "x" for _, cell in places]
        picture.add_scatter(
            x=[place for place, _ in places], y=[cell.ratio for _, cell in places], name=method, mode="markers",
            marker={"symbol": shape, "size": 7},
        )  # fmt: skip
    picture.add_hline(y=1.0, line_dash="dot")
    picture.update_layout(
        title="Time to the target as a share of tuned sync's (×: not in all runs)", yaxis_type="log",
        yaxis_title="ratio",
        yaxis_tickvals=TICKS, template="plotly_white", height=580, xaxis_tickangle=-60, margin={"t": 50, "b": 160},
    )  # fmt: skip
    browser = any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    save(picture, path.with_suffix(".png" if browser else ".html"))


def learned(records: Sequence[Record]) -> str:
    """One line per method, one column per table."""
    tables = [name for name in SOURCES if any(one["table"] == name for one in records)]
    by_key = {(one["method"], one["table"]): one for one in records}
    rows = []
    for method in dict.fromkeys(one["method"] for one in records):
        found = (by_key.get((method, table)) for table in tables)
        rows.append([f"`{method}`", *("–" if one is None else _verdict(one) for one in found)])
    know_nothing = [next(one["trivial"] for one in records if one["table"] == table) for table in tables]
    return markdown(["method", *tables], [["labels alone", *(f"{value:.4g}" for value in know_nothing)], *rows]) + "\n"


def _verdict(one: Record) -> str:
    if one["status"] == "refused":
        return "refused"
    if one["status"] != "finished" or one["test"] is None:
        return f"**{one['status']}**"
    upwards = METRICS[SOURCES[one["table"]].metric].higher_is_better
    worse = one["test"] < one["trivial"] if upwards else one["test"] > one["trivial"]
    return f"**{one['test']:.4g}**" if worse else f"{one['test']:.4g}"
