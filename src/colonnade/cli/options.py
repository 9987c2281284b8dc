"""Options and arguments that several commands share."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

__all__ = [
    "Address",
    "ConfigFile",
    "ListsMethods",
    "LogJson",
    "LogLevel",
    "Out",
    "Parent",
    "Predict",
    "RaceOut",
    "RaceResume",
    "RaceWorkers",
    "RunOut",
    "Seed",
    "Setting",
    "SideConfig",
    "Workers",
    "names_in",
]

Setting = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a config key; repeatable.")
]
Seed = Annotated[int | None, typer.Option(help="Replaces train.seed.")]

# For commands that have all roles in one place.
ConfigFile = Annotated[
    Path | None, typer.Argument(metavar="CONFIG.toml", help="What to run; left out: all defaults (digits).")
]
RunOut = Annotated[Path | None, typer.Option(help="Folder of the run; must be new or empty.")]
RaceOut = Annotated[Path | None, typer.Option(help="Folder; given again, what is finished is not repeated.")]
RaceResume = Annotated[
    Path | None,
    typer.Option(
        "--resume", metavar="DIR", help="Go on with a race that was stopped, in its folder; the rest as before."
    ),
]
Workers = Annotated[str, typer.Option(metavar="N|ray", help="Who computes: threads, or Ray; the result is the same.")]
RaceWorkers = Annotated[
    str, typer.Option(metavar="N|ray", help="How many runs at once, each in a process; or Ray; the result is the same.")
]
Address = Annotated[str | None, typer.Option(help="Of a Ray cluster that is up, host:port; left out: one of its own.")]

# For one member of a federation.
SideConfig = Annotated[
    Path, typer.Argument(metavar="CONFIG.toml", help="The shared config with this side's own settings.")
]
Out = Annotated[Path | None, typer.Option(help="This role's folder: made, or gone on with.")]
LogJson = Annotated[bool, typer.Option("--log-json", help="One JSON object per line.")]
LogLevel = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")]
Parent = Annotated[int | None, typer.Option(hidden=True, help="Stop when this process is gone.")]
Predict = Annotated[
    bool, typer.Option("--predict", help="Train no more: answer questions from what was trained in this folder.")
]


class ListsMethods(TyperCommand):
    """A command whose help ends with the names of all methods; they are imported only then."""

    def format_help(self, *args: Any) -> None:  # a context and a formatter; their types are private to typer
        """Show the usual help, and the names."""
        from colonnade.algorithms import METHODS
        from colonnade.algorithms.registry import installed

        names = ", ".join((*METHODS, *installed().methods))
        self.epilog = f"Methods: {names}. What each of them does: colonnade protocols"
        super().format_help(*args)


def names_in(text: str) -> list[str]:
    """Split names that are separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]
