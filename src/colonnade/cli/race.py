"""What `compare`, `sweep` and `demo` share: run a comparison under a live table, print its result and remarks."""

from collections.abc import Sequence
from pathlib import Path

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from colonnade.cli.printing import command_to_resume, console, say, typed_command
from colonnade.cli.progress_bars import RaceBoard, report_with_bar
from colonnade.cli.workers import cluster, parse_workers
from colonnade.experiments.compare import Contestant, Entry, entries_of, is_race, race, ranking_of, unsuitable
from colonnade.experiments.ranking import Ranking, by_reason, in_words
from colonnade.experiments.run import check_workers
from colonnade.protocol.errors import ConfigError
from colonnade.results.places import fresh_folder

__all__ = ["exit_if_any_failed", "race_with_board"]


def race_with_board(
    racing: Sequence[Contestant],
    seeds: int,
    out: Path | None,
    name: str,
    workers: str = "1",
    address: str | None = None,
    resume: Path | None = None,
    about: str = "",
) -> list[Entry]:
    """Run all entries, in `out` or in a new folder of this name, or continue in `resume`.

    After Ctrl-C, finished runs are kept, the interrupted run has a checkpoint, and the exit code is 130.
    """
    entries, chosen = entries_of(racing, seeds), parse_workers(workers)
    check_workers(chosen)
    if resume is not None and out is not None:
        raise ConfigError("--out", str(out), "--resume continues in its own folder; remove --out")
    if resume is not None and not is_race(resume):
        raise ConfigError("--resume", str(resume), "this folder holds no comparison (comparison.json is missing)")
    folder = resume or out or fresh_folder(name)
    try:
        with cluster(chosen == "ray", address), RaceBoard(console) as board:
            race(entries, folder, board.show, typed_command(), chosen, about)
        _show(entries, folder)
    except KeyboardInterrupt:
        suitable = [entry for entry in entries if not entry.unsuitable]
        done = sum(entry.summary is not None for entry in suitable)
        say(f"Stopped; {done} of {len(suitable)} runs are finished and kept. To continue: {command_to_resume(folder)}")
        raise typer.Exit(130) from None
    return entries


def _show(entries: list[Entry], out: Path) -> None:
    ranking = ranking_of(entries)
    console.print(_table(ranking))
    for reason, labels in by_reason(unsuitable(entries)).items():
        verb = "take" if len(labels) > 1 else "takes"
        console.print(f"[yellow]{escape(', '.join(labels))}[/] {verb} no part: {escape(reason)}", soft_wrap=True)
    for entry in entries:
        if entry.error:
            console.print(f"[red]{escape(entry.folder)}[/]: {escape(entry.error)}", soft_wrap=True)
        for text in entry.remarks:
            console.print(f"[yellow]{escape(entry.folder)}[/]: {escape(text)}", soft_wrap=True)
    if any(entry.summary for entry in entries):
        say(f"Report: {report_with_bar(out, console)}")
    say(f"Folder: {out}")
    if words := in_words(ranking):
        say(words)


def _table(ranking: Ranking) -> Table:
    """Show mean ± standard deviation over seeds; marks the best of the ranked columns.

    A mean that includes a run without a result is struck out, with the reason beside the method's name. Below the name
    is what the method has instead of the configured model.
    """
    spread = ranking.seeds > 1
    title = f"mean ± sd over {ranking.seeds} seeds; * best" if spread else "one seed; * best"
    failed = "; † a method with a run that failed or has warnings takes no part either" if ranking.flaws else ""
    caption = f"metric on the test rows at the end, time to target on {ranking.judged_on} rows; an oracle takes no part"
    caption += f" in the race{failed}"
    table = Table(title=title, box=SIMPLE_HEAD, caption=caption)
    table.add_column("method", no_wrap=True)
    for column in ranking.columns:
        table.add_column(column.title, justify="right")  # a narrow terminal breaks the line before the deviation
    for label, values in ranking.values.items():
        flaw = ranking.flaws.get(label, "")
        cells = []
        for value, column, winners in zip(values, ranking.columns, ranking.winners, strict=True):
            text = column.write(value, spread)
            if flaw and value is not None:
                text = f"[dim strike]{text}[/] †"
            cells.append(f"[bold]{text} *[/]" if label in winners else text)
        setting = f"\n  [dim]{escape(words)}[/]" if (words := ranking.settings.get(label)) else ""
        table.add_row(escape(label) + (f" [red]({flaw})[/]" if flaw else "") + setting, *cells)
    return table


def exit_if_any_failed(entries: Sequence[Entry]) -> None:
    if any(entry.error for entry in entries):
        raise typer.Exit(1)
