"""`colonnade reproduce`: tables and figures of the papers, each with the paper's numbers beside ours."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colonnade.cli.options import Address, RaceWorkers
from colonnade.cli.printing import console, say

if TYPE_CHECKING:
    from colonnade.reproduce.conduct import Job
    from colonnade.reproduce.item import Item
    from colonnade.reproduce.result import Result

__all__ = ["reproduce"]


def reproduce(
    names: Annotated[list[str] | None, typer.Argument(metavar="[ITEM]...", help="Items, or 'all'.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version for a laptop. Without ITEM: all items.")
    ] = False,
    data: Annotated[
        Path | None, typer.Option(help="The folder with the folders of the real data (mnist, a9a, …).")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder for runs, results and the book.")] = Path("runs/reproduce"),
    workers: RaceWorkers = "1",
    address: Address = None,
) -> None:
    """Repeat a table or figure of one of the five papers, and say whether its claim holds.

    Without an item, the command lists all of them with their state. Settings are chosen on validation rows and measured
    once on test rows. The same command continues after an interruption.

    Examples:
      colonnade reproduce
      colonnade reproduce flex-table3 --quick
      colonnade reproduce vafl-fig2-time --data data --workers 2
      colonnade reproduce --quick --data data --workers 2
    """
    from colonnade.cli.workers import cluster, parse_workers
    from colonnade.reproduce.book import read_results, write_book
    from colonnade.reproduce.conduct import Job
    from colonnade.reproduce.item import find_items, items

    chosen = find_items(names or [])
    if not names and not quick:
        _list(out)
        return
    if data is not None and not data.is_dir():
        from colonnade.protocol.errors import ConfigError

        raise ConfigError("--data", str(data), "is not a folder; docs/reproduction.md says what it holds")
    computing = parse_workers(workers)
    size = "quick" if quick else "full"
    try:
        with cluster(computing == "ray", address):
            for item in chosen:
                _one(Job(item, out, size, data, computing))
                write_book(out, items(), read_results(out))
    except KeyboardInterrupt:
        say("Stopped. Finished runs are kept: the same command continues.")
        raise typer.Exit(130) from None
    say(f"Book: {out / 'book.html'}")


def _list(out: Path) -> None:
    from itertools import groupby

    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from colonnade.reproduce.book import read_results, state_of
    from colonnade.reproduce.item import items

    results = read_results(out) if out.is_dir() else {}
    table = Table("", "what it repeats", "state", "seconds", box=SIMPLE_HEAD)
    table.columns[0].no_wrap = True  # these names are typed
    for paper, group in groupby(items().values(), lambda item: item.paper):
        table.add_section()
        table.add_row(f"[bold]{paper}[/]")
        for item in group:
            result = results.get(item.id)
            state = state_of(item, result) or "not run"
            size = f" ({result.size})" if result else ""
            seconds = f"{result.seconds:.0f}" if result else ""
            table.add_row(item.id, f"{item.where}: {item.title}", state + size, seconds)
    console.print(table)
    say("To run one: colonnade reproduce ITEM --quick")


def _one(job: "Job") -> None:
    from dataclasses import replace

    from colonnade.cli.progress_bars import RaceBoard
    from colonnade.reproduce.conduct import conduct
    from colonnade.reproduce.result import write_result

    with RaceBoard(console) as board:
        result = conduct(replace(job, tell=say, show=board.show))
    write_result(job.out / job.item.id, result)
    _print(job.item, result)


def _print(item: "Item", result: "Result") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from colonnade.reproduce.book import checks_of, duration_of, table_of
    from colonnade.reproduce.judge import findings, verdict_of

    found = findings(item, result)
    unit = f", {item.measure.unit}" if item.measure.unit else ""
    for title, rows in (
        (f"{item.paper}, {item.where}: {item.measure.name}{unit} (the paper's)", table_of(item, result)),
        ("", checks_of(found)),
    ):
        table = Table(title=escape(title) if title else None, box=SIMPLE_HEAD)
        for name in rows[0]:
            table.add_column(escape(name))
        for row in rows[1:]:
            table.add_row(*map(escape, row))
        console.print(table)
    for name, why in result.untested.items():
        say(f"{name}: not tested: {why}")
    for cell in result.cells:
        if cell.fault:
            say(f"† {cell.row}, {cell.column}: {cell.fault}")
    if item.stand_in:
        say(f"Stand-in: {item.stand_in}")
    say(f"{item.id}: {verdict_of(found)}, in {duration_of(result)}")
