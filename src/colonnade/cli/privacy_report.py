"""`colonnade privacy report`: a privacy officer's page about a config, before any training."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colonnade.cli.options import Setting, Trust
from colonnade.cli.printing import console, say, typed_command
from colonnade.protocol.errors import ConfigError

if TYPE_CHECKING:
    from colonnade.report.document import Document

__all__ = ["refuse_no_page", "report", "write_page"]


def report(
    config: Annotated[
        Path,
        typer.Argument(metavar="CONFIG.toml", help="The config of a simulation, or of one member of a federation."),
    ],
    out: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Also write the page to this file.")] = None,
    party: Annotated[
        str | None,
        typer.Option(help="The party whose config it is. Default: the party of network.certificate, or the server."),
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="Rows to assume if this member's table is not here. Default: 1000.")
    ] = None,
    columns: Annotated[
        int | None, typer.Option(help="Columns to assume for each party whose table is not here. Default: 10.")
    ] = None,
    settings: Setting = None,
    trust: Trust = None,
) -> None:
    """Report what leaves each party, what it reveals, ε and δ, attacks, and what would lower it; before any training.

    Examples:
      colonnade privacy report own.toml --out privacy.html
      colonnade privacy report clinic.toml --party clinic --rows 20000
    """
    from rich.progress import Progress

    from colonnade.cli.progress_bars import bar_columns
    from colonnade.config.schema import from_dict, typed_tables
    from colonnade.config.trust import refuse_untrusted
    from colonnade.experiments.privacy_report import privacy_report
    from colonnade.report.privacy_words import in_words

    refuse_no_page(out)
    typed = from_dict(typed_tables(config, settings))
    if typed.network.parties:  # a member of a federation
        refuse_untrusted(typed, trust or [])
    with Progress(*bar_columns(), console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("report", total=1.0, text="")
        found = privacy_report(
            typed,
            lambda text, done: progress.update(task, completed=done, text=text),
            party=party,
            rows=rows,
            columns=columns,
        )
    write_page(in_words(found, config.name, typed_command()), out)


def refuse_no_page(out: Path | None) -> None:
    """Refuse a file that is not a page, before minutes of work."""
    if out is not None and (out.suffix.lower() not in (".html", ".htm") or out.is_dir()):
        raise ConfigError("--out", str(out), "must end with .html")


def write_page(document: "Document", out: Path | None) -> None:
    """Print the text on the terminal and, with `out`, write the same as a page."""
    from colonnade.report.document import as_html, as_text

    say(as_text(document, console.width).rstrip())
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(as_html(document), encoding="utf-8")
        say(f"\nPage: {out}")
