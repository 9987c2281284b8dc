"""Progress bars, and the live table of a comparison, in the terminal."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from colonnade.cli.in_notebook import NotebookLive, in_notebook
from colonnade.config.resolve import load_partition
from colonnade.config.schema import Config
from colonnade.data import NOTHING_FITTED, Fitted, Partition
from colonnade.experiments.compare import Entry
from colonnade.experiments.run import Run, Standing
from colonnade.results.summary import Summary
from colonnade.results.verdict import flaw_of

__all__ = [
    "RaceBoard",
    "bar_columns",
    "load_with_bar",
    "report_with_bar",
    "run_with_bar",
]

REFRESH_S = 0.2
BORDERS = 6  # lines of a table that are not rows
FAILED = "[red]failed[/]"
_WORDS = ("running", "failed", "done", "waiting")
_RANKS = {FAILED: 1, "done": 2, "waiting": 3}


def load_with_bar(
    config: Config, console: Console | None = None, before: Mapping[str, Fitted] = NOTHING_FITTED
) -> Partition:
    """Load a config's data under a progress bar; `before` as in `load_partition`."""
    console = console or Console()
    with Progress(*bar_columns(), console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"loading {config.data.name}", total=1.0, text="")
        return load_partition(config, lambda text, done: progress.update(task, completed=done, text=text), before)


def run_with_bar(run: Run, console: Console | None = None) -> Summary:
    """Execute a run under a bar with rate, metric and time left."""
    if console is None and in_notebook():
        with NotebookLive() as live:
            return run.execute(
                _throttled(lambda run: live.update(Text(f"{run.fraction:4.0%}  {_state(run.standing)}")))
            )
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
    """Columns of every bar: what, how far, in words, and the time left."""
    share = TextColumn("{task.percentage:>3.0f}%")
    return (
        TextColumn("{task.description}", markup=False),  # may contain a path or a party's name
        BarColumn(),
        share,
        TextColumn("{task.fields[text]}", markup=False),
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

    def __init__(self, console: Console | None = None) -> None:
        notebook = console is None and in_notebook()
        self._live = NotebookLive() if notebook else Live(console=console, refresh_per_second=5, transient=True)
        self._texts: dict[str, tuple[str, str]] = {}
        self._shown = 0.0
        self._began: dict[str, float] = {}

    def __enter__(self) -> "RaceBoard":
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(*error)

    def show(self, entries: list[Entry], entry: Entry, at: Standing | None) -> None:
        """Store the progress of an entry, and redraw from time to time."""
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
        if len(entries) > self._live.console.height - BORDERS:  # the end of a long table is not visible
            entries = sorted(entries, key=lambda entry: ranks[entry.folder])
        for entry in entries:
            table.add_row(escape(entry.label), str(entry.seed), *states[entry.folder])
        return table


def _outcome(entry: Entry) -> str:
    if entry.error or entry.summary is None or entry.summary["value"] is None:
        return escape(entry.error[:80])
    flaw = flaw_of(entry.summary)
    return f"test {entry.summary['metric']} {entry.summary['value']:.4f}" + (f", {flaw}" if flaw else "")
