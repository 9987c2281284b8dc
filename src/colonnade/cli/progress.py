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

from colonnade.config.resolve import load_partition
from colonnade.config.schema import Config
from colonnade.data import Partition
from colonnade.data.suggest import listing
from colonnade.experiments.compare import Entry
from colonnade.experiments.ranking import Ranking, rank
from colonnade.experiments.run import Run, Standing
from colonnade.results.summary import Summary
from colonnade.results.verdict import flaw_of

__all__ = [
    "RaceBoard",
    "bar_columns",
    "comparison_table",
    "load_with_bar",
    "print_summary",
    "ranking_of",
    "report_with_bar",
    "run_with_bar",
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


def run_with_bar(run: Run, console: Console | None = None) -> Summary:
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
        TextColumn("{task.description}", markup=False),  # may hold a path or a party's name
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
            table.add_row(escape(entry.label), str(entry.seed), *states[entry.folder])
        return table


def _outcome(entry: Entry) -> str:
    if entry.error or entry.summary is None or entry.summary["value"] is None:
        return escape(entry.error[:80])
    flaw = flaw_of(entry.summary)
    return f"{entry.summary['metric']} {entry.summary['value']:.4f}" + (f", {flaw}" if flaw else "")


def comparison_table(entries: Sequence[Entry]) -> Table:
    """Mean ± standard deviation over seeds; the best of the columns that a race is about is marked.

    A mean with a run that is no result in it is struck out, and beside the method's name stands why.
    """
    ranking = ranking_of(entries)
    spread = ranking.seeds > 1
    title = f"mean ± sd over {ranking.seeds} seeds; * best" if spread else "one seed; * best"
    failed = "; † nor do methods with a run that failed or has warnings" if ranking.flaws else ""
    caption = f"an oracle takes no part in the race{failed}"
    table = Table(title=title, box=SIMPLE_HEAD, caption=caption)
    table.add_column("method", no_wrap=True)
    for column in ranking.columns:
        table.add_column(column.title, justify="right")  # a narrow terminal breaks before the deviation
    for label, values in ranking.values.items():
        flaw = ranking.flaws.get(label, "")
        cells = []
        for value, column, winners in zip(values, ranking.columns, ranking.winners, strict=True):
            text = column.write(value, spread)
            if flaw and value is not None:
                text = f"[dim strike]{text}[/] †"
            cells.append(f"[bold]{text} *[/]" if label in winners else text)
        table.add_row(escape(label) + (f" [red]({flaw})[/]" if flaw else ""), *cells)
    return table


def ranking_of(entries: Sequence[Entry]) -> Ranking:
    """The race so far."""
    groups: dict[str, list[Summary | None]] = {}
    for entry in entries:
        groups.setdefault(entry.label, []).append(entry.summary)
    return rank(groups)


def print_summary(summary: Summary, console: Console) -> None:
    """A run's summary for a person, its warnings and its note."""
    console.print(_summary_table(summary))
    for text in summary.get("warnings", ()):  # a run of an older release has none
        console.print(f"[yellow]Warning: {escape(text)}[/]", soft_wrap=True)
    if summary["note"]:
        console.print(f"[yellow]{escape(summary['note'])}[/]", soft_wrap=True)


def _summary_table(summary: Summary) -> Table:
    flaw = flaw_of(summary)
    how = ", ".join(dict.fromkeys(filter(None, (summary["status"], flaw))))
    table = Table(show_header=False, title=f"{summary['protocol']}: {how}")
    sizes = summary["bytes_up"], summary["bytes_down"], summary["bytes_eval"]
    rows: list[tuple[str, str]] = [
        (summary["metric"], _marked(summary, summary["value"], ".4f")),
        ("loss", _marked(summary, summary["loss"], ".4f")),
        ("updates, epochs", f"{summary['updates']}, {summary['epochs']:.2f}"),
        ("clock, wall", f"{summary['clock_s']:.2f} s, {summary['wall_s']:.1f} s"),
        ("bytes up, down, evaluation", " , ".join(f"{size / 1e6:.2f} MB" for size in sizes)),
        ("staleness mean, p95, max", ", ".join(f"{value:.1f}" for value in summary["staleness"].values())),
        ("utilisation", escape(_shares(summary["utilisation"]))),
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
        rows.insert(1, ("time to target", "not reached" if reached is None else _marked(summary, reached, ".2f", " s")))
    for name, text in rows:
        table.add_row(name, text)
    return table


def _marked(summary: Summary, value: float | None, form: str, unit: str = "") -> str:
    """A number of the evaluations, never plain if the run is no result."""
    flaw = flaw_of(summary)
    if value is None or not flaw:
        return "–" if value is None else f"{value:{form}}{unit}"
    why = "see the warnings" if summary["status"] == "finished" else f"evaluated before it {flaw}"
    return f"[dim strike]{value:{form}}{unit}[/] ({why})"


def _shares(utilisation: dict[str, float]) -> str:
    return listing(f"{role} {share:.0%}" for role, share in utilisation.items())


def _number(value: float | None) -> str:
    return "not told" if value is None else f"{value:.4g}"
