"""`colonnade data list|get`: the data sets with a name, and how to put them into the data folder."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colonnade.cli.printing import console, say
from colonnade.protocol.errors import DataError

if TYPE_CHECKING:
    from colonnade.data.catalogue import Known

__all__ = ["data_app"]

data_app = typer.Typer(
    help="List the named data sets, and get their files.", no_args_is_help=True, add_completion=False
)
Folder = Annotated[Path, typer.Option("--dir", help="The data folder, as in data.dir of a config.")]


@data_app.command("list")
def list_all(folder: Folder = Path("data")) -> None:
    """List the data sets: sizes, licences, and which of them are on this machine."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Column, Table

    from colonnade.data.catalogue import CATALOGUE
    from colonnade.data.obtain import is_there

    table = Table(Column("name", no_wrap=True), "what", "rows × columns", "licence", "where", box=SIMPLE_HEAD)
    for known in CATALOGUE.values():
        where = "built in" if known.embedded else str(folder) if is_there(known, folder) else "data get"
        table.add_row(known.name, known.what, known.shape, known.licence, where)
    console.print(table)


@data_app.command()
def get(
    name: Annotated[str, typer.Argument(help="The name of a data set; `colonnade data list` shows them.")],
    source: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="PATH|URL", help="A folder, .zip or file on this machine, or the address of a mirror."
        ),
    ] = None,
    folder: Folder = Path("data"),
) -> None:
    """Put the files of a data set into the data folder, checked by their SHA-256.

    Without --from, the command fetches them from their owners. If that fails, it says what to download by hand.

    Examples:
      colonnade data get a9a
      colonnade data get uci-credit-card --from ~/Downloads/UCI_Credit_Card.csv
    """
    from colonnade.data.catalogue import find_known
    from colonnade.data.obtain import download, install, instructions, is_there

    known = find_known(name)
    if known.embedded:
        say(f"{name} comes with scikit-learn. No download is needed.")
        return _how_to_use(known, None)
    if source is None and is_there(known, folder):
        say(f"{name} is already in {folder / name}. To replace it, add --from PATH")
        return _how_to_use(known, folder)
    try:
        if source is None:
            download(known, folder, say)
        elif "://" in source:
            download(known, folder, say, source)
        else:
            install(known, Path(source).expanduser(), folder, say)
    except DataError as error:
        say(f"Error: {error}")
        for line in instructions(known, folder):
            say(line)
        raise typer.Exit(1) from None
    _how_to_use(known, folder)


def _how_to_use(known: "Known", folder: Path | None) -> None:
    settings = {"data.source": known.name} | ({} if folder is None else {"data.dir": str(folder)}) | known.settings
    words = " ".join(f"--set {shlex.quote(f'{key}={value}')}" for key, value in settings.items())
    say(f"To train on it: colonnade run {words}")
