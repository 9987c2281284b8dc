"""`colonnade check`: everything that is wrong with one member's set-up."""

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from colonnade.cli.options import Out, Setting, SideConfig, Trust
from colonnade.cli.printing import console, visible

__all__ = ["check"]

MARKS = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "error": "[red]error[/]"}


def check(
    config: SideConfig,
    settings: Setting = None,
    party: Annotated[str | None, typer.Option(help="This party's name. Default: the name in its certificate.")] = None,
    out: Out = None,
    dial: Annotated[bool, typer.Option("--dial", help="Also try whether the server answers at its address.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    trust: Trust = None,
) -> None:
    """Say everything that is wrong with this member's set-up, before anything is dialled; exit code 2 for an error.

    It checks the config, the table and its ids, the alignment, the method, the certificates, the clock, the address,
    the port, the disk and the installed extras. It writes nothing.

    Examples:
      colonnade check shop.toml
      colonnade check shop.toml --dial
      colonnade check server.toml --json
    """
    from colonnade.deployment.check import check_member
    from colonnade.protocol.strict_json import to_json

    found = check_member(config, settings or [], party=party, out=out, trusted=trust or [], dial=dial)
    if as_json:
        rows = [one._asdict() for one in found.findings]
        print(to_json({"ok": found.ok, "member": found.name, "checks": rows}, indent=2))
    else:
        console.print(_table([one._asdict() for one in found.findings]))
    if not found.ok:
        raise typer.Exit(2)


def _table(rows: list[dict[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for row in rows:
        text = escape(visible(row["text"])) + (f"\n→ {escape(visible(row['next']))}" if row["next"] else "")
        table.add_row(row["name"], MARKS[row["status"]], text)
    return table
