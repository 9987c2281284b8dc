"""`colonnade report`: the HTML page of a folder."""

from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.printing import console, say

__all__ = ["report"]


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run, a comparison or an attack.")],
) -> None:
    """Write a self-contained HTML page with the plots."""
    from colonnade.cli.progress_bars import report_with_bar

    say(f"Report: {report_with_bar(folder, console)}")
