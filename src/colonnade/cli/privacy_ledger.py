"""`colonnade privacy ledger`: what a party has released."""

from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.privacy_report import refuse_no_page, write_page

__all__ = ["ledger"]


def ledger(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="A party's ledgers, of one or more runs.")],
    last: Annotated[int, typer.Option(help="How many of the newest releases to list; the others are added up.")] = 20,
    delta: Annotated[float | None, typer.Option(help="δ. Default: the δ of the ledger.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Also write the page to this file.")] = None,
) -> None:
    """Show what a party has released and what that cost; checks the chain line by line.

    Examples:
      colonnade privacy ledger runs/clinic/ledger.jsonl
      colonnade privacy ledger runs/clinic/ledger.jsonl --out spent.html
    """
    import hashlib
    from datetime import UTC, datetime

    from colonnade.drivers.ledger_file import read_ledger
    from colonnade.report.ledger_words import ReadLedger, ledger_in_words

    refuse_no_page(out)
    read = []
    for path in files:
        terms, lines, account = read_ledger(path)
        read.append(ReadLedger(str(path), hashlib.sha256(path.read_bytes()).hexdigest(), terms, lines, account))
    wanted = float(read[0].terms["delta"]) if delta is None else delta
    write_page(ledger_in_words(read, last, wanted, datetime.now(UTC)), out)
