"""Progress bars and tables in the terminal."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from colonnade.experiments.compare import Entry, mean_and_spread
from colonnade.experiments.run import Run
from colonnade.models.metrics import METRICS

__all__ = ["RaceBoard", "comparison_table", "run_with_bar", "summary_table"]

REFRESH_S = 0.2


def run_with_bar(run: Run, console: Console | None = None) -> dict[str, Any]:
    """Execute a run under a bar with rate, metric and time left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, refresh_per_second=5, transient=True) as progress:
        task = progress.add_task(run.federation.method.name, total=1.0, text="")
        show = _throttled(lambda run: progress.update(task, completed=run.fraction, text=_state(run)))
        return run.execute(show)


def _throttled(show: Callable[[Run], None]) -> Callable[[Run], None]:
    last = 0.0

    def maybe(run: Run) -> None:
        nonlocal last
        if time.monotonic() - last >= REFRESH_S:
            last = time.monotonic()
            show(run)

    return maybe


def _state(run: Run) -> str:
    updates = run.simulator.principal.role.progress.k  # type: ignore[attr-defined]
    value = run.rows[-1]["value"] if run.rows else None
    metric = f"{run.federation.training.metric} {value:.4f}  " if value is not None else ""
    return f"{metric}{updates} updates, {updates / max(run.wall_s, 1e-9):.0f}/s, clock {run.clock_s:.1f} s"


class RaceBoard:
    """The live table of a comparison."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=5, transient=True)
        self._texts: dict[str, tuple[str, str]] = {}
        self._shown = 0.0
        self._began: dict[str, float] = {}

    def __enter__(self) -> "RaceBoard":
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(*error)

    def show(self, entries: list[Entry], entry: Entry, run: Run | None) -> None:
        """Note where an entry is and redraw now and then."""
        key, now = entry.folder, time.monotonic()
        began = self._began.setdefault(key, now)
        if run is None:
            self._texts[key] = ("[red]failed[/]" if entry.error else "done", escape(entry.error[:80]))
        else:
            done = run.fraction
            left = (now - began) * (1 - done) / done if done > 0.01 else float("nan")
            self._texts[key] = (f"{done:4.0%}", f"{_state(run)}, {left:.0f} s left")
        if run is None or now - self._shown >= REFRESH_S:
            self._shown = now
            self._live.update(self._table(entries))

    def _table(self, entries: list[Entry]) -> Table:
        table = Table("method", "seed", "done", "state", title="the race")
        for entry in entries:
            table.add_row(entry.label, str(entry.seed), *self._texts.get(entry.folder, ("waiting", "")))
        return table


def comparison_table(entries: Sequence[Entry]) -> Table:
    """Mean ± standard deviation over seeds; the best of the columns that a race is about is marked."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.label, []).append(entry)
    first = next((entry.summary for entry in entries if entry.summary), None) or {"metric": "value", "target": None}
    columns = _columns(first["metric"], first["target"])
    seeds = max(len(group) for group in groups.values())
    title = f"mean ± sd over {seeds} seeds; * best" if seeds > 1 else "one seed; * best"
    table = Table(title=title, box=SIMPLE_HEAD, caption="an oracle and failed runs take no part in the race")
    table.add_column("method", no_wrap=True)
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    values = {label: [_statistic(group, column.read) for column in columns] for label, group in groups.items()}
    racing = [label for label, group in groups.items() if not _outside(group)]
    best = [column.best([values[label][i] for label in racing]) for i, column in enumerate(columns)]
    for label, group in groups.items():
        cells = [
            _cell(
                value,
                column.form,
                seeds > 1 and column.in_race,
                label in racing and value is not None and value[0] == winner,
            )
            for value, column, winner in zip(values[label], columns, best, strict=True)
        ]
        table.add_row(label, *cells, style="red" if any(entry.error for entry in group) else None)
    return table


class Column(NamedTuple):
    """A number of a summary, how it is written, and which way is better (None: neither)."""

    title: str
    read: Callable[[dict[str, Any]], float | None]
    form: str
    higher_is_better: bool | None = None

    @property
    def in_race(self) -> bool:
        """Whether the column has winners."""
        return self.higher_is_better is not None

    def best(self, values: list[tuple[float, float] | None]) -> float | None:
        """The winning mean."""
        means = [value[0] for value in values if value is not None]
        if not self.in_race or not means:
            return None
        return max(means) if self.higher_is_better else min(means)


def _columns(metric: str, target: float | None) -> list[Column]:
    upwards = METRICS[metric].higher_is_better if metric in METRICS else True
    columns = [
        Column(metric, lambda s: s["value"], ".4f", upwards),
        Column("MB", lambda s: (s["bytes_up"] + s["bytes_down"]) / 1e6, ".1f", False),
        Column("updates", lambda s: s["updates"], ".0f"),
        Column("staleness", lambda s: s["staleness"]["mean"], ".1f"),
    ]
    if target is None:
        return columns
    return [Column(f"s to {target:g}", lambda s: s["time_to_target_s"], ".2f", False), *columns]


def _outside(group: list[Entry]) -> bool:
    """The oracle does not federate, so its clock and bytes mean nothing."""
    return any(entry.error or entry.summary is None or entry.summary["protocol"] == "centralised" for entry in group)


def _statistic(group: list[Entry], read: Callable[[dict[str, Any]], float | None]) -> tuple[float, float] | None:
    return mean_and_spread([read(entry.summary) if entry.summary else None for entry in group])


def _cell(value: tuple[float, float] | None, form: str, spread: bool, best: bool) -> str:
    if value is None:
        return "–"
    text = f"{value[0]:{form}} ± {value[1]:{form}}" if spread else f"{value[0]:{form}}"
    return f"[bold]{text} *[/]" if best else text


def summary_table(summary: dict[str, Any]) -> Table:
    """A run's summary for a person."""
    table = Table(show_header=False, title=f"{summary['protocol']}: {summary['status']}")
    rows: list[tuple[str, str]] = [
        (summary["metric"], "–" if summary["value"] is None else f"{summary['value']:.4f}"),
        ("loss", "–" if summary["loss"] is None else f"{summary['loss']:.4f}"),
        ("updates, epochs", f"{summary['updates']}, {summary['epochs']:.2f}"),
        ("clock, wall", f"{summary['clock_s']:.2f} s, {summary['wall_s']:.1f} s"),
        ("bytes up, down, evaluation", " , ".join(f"{summary[key] / 1e6:.2f} MB" for key in _BYTES)),
        ("staleness mean, p95, max", ", ".join(f"{value:.1f}" for value in summary["staleness"].values())),
        ("utilisation", ", ".join(f"{role} {share:.0%}" for role, share in list(summary["utilisation"].items())[:9])),
        ("trace", summary["trace_sha256"][:16]),
        ("weights", summary["weights_sha256"][:16]),
    ]
    if summary["metric"] == "loss":
        del rows[1]  # it is there already
    if summary["target"] is not None:
        reached = summary["time_to_target_s"]
        rows.insert(1, ("time to target", "not reached" if reached is None else f"{reached:.2f} s"))
    for name, text in rows:
        table.add_row(name, text)
    return table


_BYTES = ("bytes_up", "bytes_down", "bytes_eval")
