"""`colonnade init`: write a first config from a few questions, or flags."""

from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.options import Away, Categorical, Columns, PredictData, Setting, Stay, names_in, private_settings
from colonnade.cli.questions import ask
from colonnade.protocol.errors import ConfigError

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
    columns: Columns = None,
    categorical: Categorical = None,
    predict_data: PredictData = None,
    stay: Stay = False,
    away: Away = None,
    settings: Setting = None,
) -> None:
    """Write a commented config and the folders of the server or of a party; ask for options that are missing.

    A party that has an invitation needs no `init`: `colonnade accept` writes its config.

    Examples:
      colonnade init server --parties bank,shop --data data/labels.csv --id customer --label default
      colonnade init server --parties bank,shop --set model.embedding=16 --set train.metric=auc --stay
      colonnade init bank
    """
    from colonnade.algorithms import DEFAULT_METHOD, find_method
    from colonnade.config.first import Answers, write_first_config
    from colonnade.config.schema import parse_override

    of_parties = {"--columns": columns, "--categorical": categorical, "--predict-data": predict_data}
    _refuse_of_others(name, of_parties if name == SERVER else {"--away": away})
    method = method or DEFAULT_METHOD
    labelled = name == SERVER or find_method(method).capabilities.party_labels
    what = "the labels" if name == SERVER else "this party's columns"
    parties = ask(parties, "--parties", "All parties, separated by commas, in the order that all members use")
    data = ask(data, "--data", f"File with {what}, CSV or Parquet", f"data/{name if name != SERVER else 'labels'}.csv")
    id = ask(id, "--id", "Its column with the ids", "id")
    if labelled and label is None:
        label = ask(label, "--label", "Its column to predict", "label")
    place = "Where the server listens" if name == SERVER else "Address of the server"
    address = ask(address, "--address", place, "127.0.0.1:7450")
    folder = dir or Path(name)
    more = dict(map(parse_override, settings or [])) | private_settings(columns, categorical, stay, away)
    if predict_data is not None:
        more["party.predict_data"] = predict_data
    answers = Answers(name, tuple(names_in(parties)), data, id, label, address, method, more)
    for path in write_first_config(folder, answers):
        typer.echo(f"Wrote {path}{'/' if path.is_dir() else ''}")
    typer.echo(f"Next, in {folder}:")
    typer.echo(f"  put the table here: {data}")
    if name == SERVER:
        typer.echo(f"  colonnade invite {' '.join(names_in(parties))}")
    else:
        typer.echo(f"  colonnade certs request {name}")
    typer.echo(f"  colonnade align {name}.toml, when all members have their certificates")
    typer.echo(f"  colonnade {f'serve {name}.toml' if name == SERVER else f'join {name}.toml --party {name}'}")


def _refuse_of_others(name: str, options: dict[str, str | None]) -> None:
    for flag, value in options.items():
        if value is not None:
            whose = "a party" if name == SERVER else "the server"
            raise ConfigError(flag, value, f"is an option of {whose}, not of {name}; leave it out")
