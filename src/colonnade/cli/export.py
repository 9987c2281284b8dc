"""`colonnade export`: trained networks as files that plain torch can read."""

from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.printing import say

__all__ = ["export"]


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run: a party's, the server's.")],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to write. Default: RUN/export.")] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Also write ONNX files; needs the extra 'onnx'.")] = False,
) -> None:
    """Write the trained networks in a run's folder as NAME.safetensors and NAME.json.

    A party's folder has the party's network, the server's folder the server's. A simulation's folder has all.

    Examples:
      colonnade export runs/clinic
      colonnade export runs/race-1 --out models --onnx
    """
    from colonnade.results.export import export_members
    from colonnade.results.trained import find_models

    found, members = find_models(run)
    for path in export_members(members.values(), found, out or run / "export", onnx):
        say(f"Wrote {path}")
