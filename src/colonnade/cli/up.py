"""`colonnade up`: a whole federation on this machine."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from colonnade.cli.options import Continue, DropColumns, RunOut, Seed, Setting
from colonnade.cli.printing import console
from colonnade.cli.run import run

__all__ = ["up"]


def up(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG.toml", help="The config of the run. Default: digits, with all defaults."),
    ] = None,
    settings: Setting = None,
    seed: Seed = None,
    out: RunOut = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Continue the stopped run in this folder.")] = None,
    predict: Annotated[
        bool,
        typer.Option(
            "--predict", help="Answer prediction requests after the training; with --resume, from a run that has ended."
        ),
    ] = False,
    continues: Continue = None,
    drop_columns: DropColumns = None,
) -> None:
    """Start a whole federation on this machine, each role in its own process, over loopback with mutual TLS.

    Examples:
      colonnade up
      colonnade up race.toml --set protocol.name=sync
      colonnade up race.toml --predict
      colonnade up --resume runs/race-1 --predict
      colonnade up june.toml --continue runs/may-1
    """
    if predict and resume is not None:
        _answer(resume)
    else:
        stay = ["predict.stay=true"] if predict else []
        how: Any = {"resume": resume, "continues": continues, "drop_columns": drop_columns}
        run(config, [*(settings or []), *stay], seed, out, "processes", **how)


def _answer(folder: Path) -> None:
    """Answer predictions until Ctrl-C."""
    from colonnade.cli.live import up_with_table
    from colonnade.config.schema import from_dict
    from colonnade.deployment.up import reopen_up
    from colonnade.results.folder import tables_of

    federation = reopen_up(from_dict(tables_of(folder)), folder, predict=True)
    with suppress(KeyboardInterrupt):
        up_with_table(federation, console)
