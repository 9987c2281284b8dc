"""`colonnade doctor`: whether this machine and this installation can run Colonnade."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from colonnade.cli.printing import console

__all__ = ["doctor"]

MARKS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "fault": "[red]fault[/]"}


def doctor(
    dir: Annotated[Path, typer.Option("--dir", help="The folder for runs.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check Python, packages, extras, cores, GPU, disk, open files and clock; exit code 1 for a fault.

    Examples:
      colonnade doctor
      colonnade doctor --json
    """
    from colonnade.doctor import examine, installed_versions, own_requirements
    from colonnade.protocol.strict_json import to_json

    requirements = own_requirements()
    checks = examine(dir, requirements)
    healthy = all(check.status != "fault" for check in checks)
    if as_json:
        found = {"ok": healthy, "checks": [check._asdict() for check in checks]}
        print(to_json(found | {"packages": installed_versions(requirements)}, indent=2))
    else:
        console.print(_table([check._asdict() for check in checks]))
    if not healthy:
        raise typer.Exit(1)


def _table(checks: list[dict[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for check in checks:
        table.add_row(check["name"], MARKS[check["status"]], escape(check["text"]))
    return table
