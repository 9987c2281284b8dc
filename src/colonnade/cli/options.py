"""Options and arguments that several commands share."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from colonnade.protocol.strict_json import to_json

__all__ = [
    "Address",
    "Away",
    "Categorical",
    "Columns",
    "ConfigFile",
    "Continue",
    "DropColumns",
    "ListsMethods",
    "LogFilePath",
    "LogJson",
    "LogKeep",
    "LogLevel",
    "LogMb",
    "Out",
    "Parent",
    "Predict",
    "PredictData",
    "RaceOut",
    "RaceResume",
    "RaceWorkers",
    "RunOut",
    "Seed",
    "Setting",
    "SideConfig",
    "Stay",
    "Trust",
    "Workers",
    "names_in",
    "private_settings",
    "with_dropped",
]

Setting = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a config key; repeatable.")
]
Seed = Annotated[int | None, typer.Option(help="Replaces train.seed.")]

# For commands that have all roles in one place.
ConfigFile = Annotated[
    Path | None,
    typer.Argument(metavar="CONFIG.toml", help="The config of the run. Default: digits, with all defaults."),
]
RunOut = Annotated[Path | None, typer.Option(help="The run's folder; must be new or empty.")]
RaceOut = Annotated[Path | None, typer.Option(help="The folder. If it exists, finished runs in it are not repeated.")]
RaceResume = Annotated[
    Path | None,
    typer.Option(
        "--resume", metavar="DIR", help="Continue a stopped race in this folder; type the other options as before."
    ),
]
Workers = Annotated[
    str,
    typer.Option(metavar="N|ray", help="How many threads compute, or ray for a Ray cluster. The result is the same."),
]
RaceWorkers = Annotated[
    str,
    typer.Option(metavar="N|ray", help="How many runs at once, or ray for a Ray cluster. The result is the same."),
]
Address = Annotated[
    str | None, typer.Option(help="host:port of a running Ray cluster. Default: start one on this machine.")
]

# For a run that starts from the networks of an earlier one.
Continue = Annotated[
    Path | None,
    typer.Option(
        "--continue", metavar="FROM", help="Start a new run from the trained networks in this folder of an earlier run."
    ),
]
DropColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--drop-columns",
        metavar="COLUMN",
        help="With --continue: this column of the earlier run is gone, and its weights with it; repeatable.",
    ),
]

# For one member of a federation.
SideConfig = Annotated[
    Path, typer.Argument(metavar="CONFIG.toml", help="This member's config: the shared keys and its own.")
]
Out = Annotated[Path | None, typer.Option(help="This role's folder. If it exists, the run in it continues.")]
Trust = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        metavar="MODULE",
        help="Allow the config to import this module or package, for its own model or method; repeatable.",
    ),
]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log one JSON object per line.")]
LogLevel = Annotated[str, typer.Option("--log-level", help="The least level to log: debug, info, warning or error.")]
LogFilePath = Annotated[
    Path | None,
    typer.Option("--log-file", metavar="PATH", help="Log to this file instead of the error stream."),
]
LogMb = Annotated[float, typer.Option("--log-mb", help="At this size the log file becomes PATH.1.")]
LogKeep = Annotated[int, typer.Option("--log-keep", help="How many old log files to keep.")]
Parent = Annotated[int | None, typer.Option(hidden=True, help="Stop when this process is gone.")]
Predict = Annotated[
    bool,
    typer.Option(
        "--predict", help="Answer prediction requests with the model trained in this folder, instead of training."
    ),
]

# Private settings of a member, for the commands that write its first config.
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES", help="The columns to use as features, separated by commas; A..B is a range. Default: all."
    ),
]
Categorical = Annotated[
    str | None, typer.Option(metavar="NAMES", help="Columns whose numbers are codes, separated by commas.")
]
PredictData = Annotated[
    str | None, typer.Option("--predict-data", metavar="FILE", help="Further rows, for predictions alone.")
]
Stay = Annotated[bool, typer.Option("--stay", help="Answer predictions after the training.")]
Away = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES", help="What replaces a party that does not answer, in order, such as fallback,refuse."
    ),
]


class ListsMethods(TyperCommand):
    """A command whose help ends with the names of all methods; they are imported only then."""

    def format_help(self, *args: Any) -> None:  # a context and a formatter; their types are private to typer
        """Show the usual help, and the names."""
        from colonnade.algorithms import METHODS
        from colonnade.algorithms.registry import installed

        names = ", ".join((*METHODS, *installed().methods))
        self.epilog = f"Methods: {names}. To see what each does: colonnade protocols"
        super().format_help(*args)


def with_dropped(settings: list[str] | None, columns: list[str] | None) -> list[str] | None:
    """Add --drop-columns to the settings, as `party.drop_columns`."""
    return [*(settings or []), f"party.drop_columns={to_json(columns)}"] if columns else settings


def names_in(text: str) -> list[str]:
    """Split names that are separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def private_settings(
    columns: str | None, categorical: str | None, stay: bool = False, away: str | None = None
) -> dict[str, Any]:
    """Return the dotted keys that these options set."""
    listed = {"party.columns": columns, "party.categorical": categorical}
    found: dict[str, Any] = {key: names_in(text) for key, text in listed.items() if text is not None}
    found |= {"predict.stay": True} if stay else {}
    return found | ({} if away is None else {"predict.away": names_in(away)})
