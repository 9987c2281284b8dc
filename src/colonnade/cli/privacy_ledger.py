"""`colonnade privacy ledger`: what a party has released."""

from math import sqrt
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from colonnade.cli.printing import console

__all__ = ["ledger"]


def ledger(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="A party's ledgers, of one or more runs.")],
    last: Annotated[int, typer.Option(help="How many of the newest releases to list; the rest is summed up.")] = 20,
    delta: Annotated[float | None, typer.Option(help="δ; left out: that of the ledger.")] = None,
) -> None:
    """What a party has released and what that cost; the chain is checked line by line.

    Example:
      colonnade privacy ledger runs/clinic/ledger.jsonl
    """
    from colonnade.drivers.ledger_file import read_ledger
    from colonnade.privacy.gaussian import epsilon_of

    square = 0.0
    for path in files:
        terms, lines, account = read_ledger(path)
        delta = terms["delta"] if delta is None else delta
        square += account.mu**2
        console.print(_ledger_heading(path, terms), highlight=False, soft_wrap=True, markup=False)
        console.print(_ledger_table(lines, last, delta))
    total = sqrt(square)
    text = (
        f"Together: μ = {total:.6g}, ε = {epsilon_of(total, delta or 1e-5):.6g} at δ = {delta:g}. The chain is whole."
    )
    console.print(text, highlight=False, soft_wrap=True)


def _ledger_heading(path: Path, terms: dict[str, Any]) -> str:
    steps = (
        f", steps clipped to {terms['dp_sgd']['clip']:g} with {terms['dp_sgd']['noise']:g}" if terms["dp_sgd"] else ""
    )
    return (
        f"{path}: {terms['party']}, mechanism {terms['mechanism']}, rows clipped to norm {terms['clip']:g}, noise "
        f"{terms['noise']:g}, local updates {terms['local_updates']}{steps}; {terms['train_rows']} training rows, "
        f"{terms['test_rows']} rows held out"
    )


def _ledger_table(lines: list[dict[str, Any]], last: int, delta: float) -> Table:
    from colonnade.privacy.gaussian import epsilon_of

    caption = "Δ: how far a record can move it. μ and ε: of everything up to and including the line."
    table = Table(box=SIMPLE_HEAD, caption=caption, caption_justify="left")
    for title in ("n", "UTC", "what"):
        table.add_column(title, no_wrap=True)
    for title in ("rows", "Δ", "noise", "μ", "ε"):
        table.add_column(title, justify="right")
    shown = lines[-last:] if last > 0 else []
    for what in dict.fromkeys(line["what"] for line in lines[: len(lines) - len(shown)]):
        own = [line for line in lines[: len(lines) - len(shown)] if line["what"] == what]
        rows = sum(line["rows"] for line in own)
        table.add_row(f"{len(own)} ×", f"to {_moment(own[-1])}", what, str(rows), "", "", f"{own[-1]['mu']:.4g}", "")
    for line in shown:
        numbers = (f"{line['sensitivity']:.4g}", f"{line['noise']:g}", f"{line['mu']:.4g}")
        cells = (str(line["n"]), _moment(line), line["what"], str(line["rows"]), *numbers)
        table.add_row(*cells, f"{epsilon_of(line['mu'], delta):.4g}")
    return table


def _moment(line: dict[str, Any]) -> str:
    """Month, day, hour and minute: a terminal is narrow; the ledger itself has the year."""
    return str(line["time"][5:16]).replace("T", " ")
