"""Progress bars and tables in the terminal."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from colonnade.data import Partition
from colonnade.data.suggest import listing
from colonnade.experiments.compare import Entry
from colonnade.experiments.config import Config
from colonnade.experiments.ranking import Ranking, rank
from colonnade.experiments.resolve import load_partition
from colonnade.experiments.run import Run, Standing

__all__ = [
    "RaceBoard",
    "bar_columns",
    "comparison_table",
    "load_with_bar",
    "ranking_of",
    "report_with_bar",
    "run_with_bar",
    "summary_table",
]

REFRESH_S = 0.2
BORDERS = 6  # lines of a table that are no rows
FAILED = "[red]failed[/]"
_WORDS = ("running", "failed", "done", "waiting")
_RANKS = {FAILED: 1, "done": 2, "waiting": 3}


def load_with_bar(config: Config, console: Console | None = None) -> Partition:
    """Load a config's data under a bar that says how far it is."""
    console = console or Console()
    with Progress(*bar_columns(), console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"loading {config.data.name}", total=1.0, text="")
        return load_partition(config, lambda text, done: progress.update(task, completed=done, text=text))


def run_with_bar(run: Run, console: Console | None = None) -> dict[str, Any]:
    """Execute a run under a bar with rate, metric and time left."""
    with Progress(*bar_columns(), console=console, refresh_per_second=5, transient=True) as progress:
        task = progress.add_task(run.federation.method.name, total=1.0, text="")
        show = _throttled(lambda run: progress.update(task, completed=run.fraction, text=_state(run.standing)))
        return run.execute(show)


def report_with_bar(folder: Path, console: Console | None = None) -> Path:
    """Read the runs and draw the page under a bar."""
    from colonnade.report.page import write_report

    with Progress(*bar_columns(), console=console, transient=True) as progress:
        task = progress.add_task("report", total=1.0, text="")
        return write_report(folder, lambda text, done: progress.update(task, completed=done, text=text))


def bar_columns() -> tuple[ProgressColumn, ...]:
    """Of every bar: what, how far, in words, and how long still."""
    share = TextColumn("{task.percentage:>3.0f}%")
    return (
        TextColumn("{task.description}"),
        BarColumn(),
        share,
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(),
    )


def _throttled(show: Callable[[Run], None]) -> Callable[[Run], None]:
    last = 0.0

    def maybe(run: Run) -> None:
        nonlocal last
        if time.monotonic() - last >= REFRESH_S:
            last = time.monotonic()
            show(run)

    return maybe


def _state(at: Standing) -> str:
    metric = f"{at.metric} {at.value:.4f}  " if at.value is not None else ""
    return f"{metric}{at.updates} updates, {at.updates / max(at.wall_s, 1e-9):.0f}/s, clock {at.clock_s:.1f} s"


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

    def show(self, entries: list[Entry], entry: Entry, at: Standing | None) -> None:
        """Note where an entry is and redraw now and then."""
        key, now = entry.folder, time.monotonic()
        began = self._began.setdefault(key, now)
        if at is None:
            self._texts[key] = (FAILED if entry.error else "done", _outcome(entry))
        else:
            done = at.fraction
            left = f", {(now - began) * (1 - done) / done:.0f} s left" if done > 0.01 else ""
            self._texts[key] = (f"{done:4.0%}", _state(at) + left)
        if at is None or now - self._shown >= REFRESH_S:
            self._shown = now
            self._live.update(self._table(entries))

    def _table(self, entries: list[Entry]) -> Table:
        states = {entry.folder: self._texts.get(entry.folder, ("waiting", "")) for entry in entries}
        ranks = {name: _RANKS.get(done, 0) for name, (done, _) in states.items()}
        counts = [f"{list(ranks.values()).count(rank)} {word}" for rank, word in enumerate(_WORDS)]
        table = Table("method", "seed", "done", "state", title=f"the race: {', '.join(counts)}")
        if len(entries) > self._live.console.height - BORDERS:  # the end of a long table is not seen
            entries = sorted(entries, key=lambda entry: ranks[entry.folder])
        for entry in entries:
            table.add_row(entry.label, str(entry.seed), *states[entry.folder])
        return table


def _outcome(entry: Entry) -> str:
    if entry.error or entry.summary is None or entry.summary["value"] is None:
        return escape(entry.error[:80])
    return f"{entry.summary['metric']} {entry.summary['value']:.4f}"


def comparison_table(entries: Sequence[Entry]) -> Table:
    """Mean ± standard deviation over seeds; the best of the columns that a race is about is marked."""
    ranking = ranking_of(entries)
    spread = ranking.seeds > 1
    title = f"mean ± sd over {ranking.seeds} seeds; * best" if spread else "one seed; * best"
    table = Table(title=title, box=SIMPLE_HEAD, caption="an oracle and failed runs take no part in the race")
    table.add_column("method", no_wrap=True)
    for column in ranking.columns:
        table.add_column(column.title, justify="right")  # a narrow terminal breaks before the deviation
    failed = {entry.label for entry in entries if entry.error}
    for label, values in ranking.values.items():
        cells = [
            f"[bold]{column.write(value, spread)} *[/]" if label in winners else column.write(value, spread)
            for value, column, winners in zip(values, ranking.columns, ranking.winners, strict=True)
        ]
        table.add_row(label, *cells, style="red" if label in failed else None)
    return table


def ranking_of(entries: Sequence[Entry]) -> Ranking:
    """The race so far."""
    groups: dict[str, list[dict[str, Any] | None]] = {}
    for entry in entries:
        groups.setdefault(entry.label, []).append(entry.summary)
    return rank(groups)


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
        ("utilisation", listing(f"{role} {share:.0%}" for role, share in summary["utilisation"].items())),
        ("trace", summary["trace_sha256"][:16]),
        ("weights", (summary["weights_sha256"] or "not all known")[:16]),  # a party left before the end
    ]
    spent = summary["privacy"]
    if spent is not None:
        rows.append(
            ("privacy", f"ε = {_number(spent['epsilon'])} at δ = {spent['delta']:g}, μ = {_number(spent['mu'])}")
        )
    if summary["metric"] == "loss":
        del rows[1]  # it is there already
    if summary["target"] is not None:
        reached = summary["time_to_target_s"]
        rows.insert(1, ("time to target", "not reached" if reached is None else f"{reached:.2f} s"))
    for name, text in rows:
        table.add_row(name, text)
    return table


def _number(value: float | None) -> str:
    return "not told" if value is None else f"{value:.4g}"


_BYTES = ("bytes_up", "bytes_down", "bytes_eval")
