"""`colonnade init`: write a first config from a few questions, or flags."""

import sys
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["init"]

SERVER = "server"


def init(
    name: Annotated[str, typer.Argument(help="'server', or this party's name.")],
    dir: Annotated[Path | None, typer.Option("--dir", help="The folder to write to. Default: NAME.")] = None,
    parties: Annotated[
        str | None, typer.Option(help="All parties, separated by commas, in the order that all members use.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="This member's table; its path starts at the folder.")] = None,
    id: Annotated[str | None, typer.Option("--id", help="The column with the ids.")] = None,
    label: Annotated[str | None, typer.Option(help="The column to predict, if this table has it.")] = None,
    address: Annotated[str | None, typer.Option(help="The server's address, as host:port.")] = None,
    method: Annotated[
        str | None, typer.Option(help="The method, the same for all members; `colonnade protocols` lists them.")
    ] = None,
) -> None:
    """Write a commented config and the folders of the server or of a party; ask for options that are missing.

    Examples:
      colonnade init server --parties bank,shop --data data/labels.csv --id customer --label default
      colonnade init bank
    """
    from colonnade.algorithms import DEFAULT_METHOD, find_method
    from colonnade.config.first import Answers, write_first_config

    method = method or DEFAULT_METHOD
    labelled = name == SERVER or find_method(method).capabilities.party_labels
    what = "the labels" if name == SERVER else "this party's columns"
    parties = _ask(parties, "--parties", "All parties, separated by commas, in the order that all members use")
    data = _ask(data, "--data", f"File with {what}, CSV or Parquet", f"data/{name if name != SERVER else 'labels'}.csv")
    id = _ask(id, "--id", "Its column with the ids", "id")
    if labelled and label is None:
        label = _ask(label, "--label", "Its column to predict", "label")
    place = "Where the server listens" if name == SERVER else "Address of the server"
    address = _ask(address, "--address", place, "127.0.0.1:7450")
    folder = dir or Path(name)
    names = tuple(part.strip() for part in parties.split(",") if part.strip())
    for path in write_first_config(folder, Answers(name, names, data, id, label, address, method)):
        typer.echo(f"Wrote {path}{'/' if path.is_dir() else ''}")
    typer.echo(f"Next, in {folder}:")
    typer.echo(f"  put the table here: {data}")
    typer.echo(f"  colonnade certs {'init' if name == SERVER else f'request {name}'}")
    typer.echo(f"  colonnade align {name}.toml, when all members have their certificates")
    typer.echo(f"  colonnade {f'serve {name}.toml' if name == SERVER else f'join {name}.toml --party {name}'}")


def _at_a_terminal() -> bool:
    return sys.stdin.isatty()


def _ask(given: str | None, flag: str, question: str, default: str | None = None) -> str:
    """Return the flag's value; else the operator's answer at a terminal; else the default."""
    from colonnade.protocol.errors import ConfigError

    if given is not None:
        return given
    if _at_a_terminal():
        return str(typer.prompt(question, default=default))
    if default is None:
        raise ConfigError(
            flag, None, f"add the flag, or run the command in a terminal, where it asks: {question.lower()}"
        )
    return default
