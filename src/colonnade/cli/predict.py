"""The command line of predictions."""

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from colonnade.predict.asking import Door

__all__ = ["predict"]

console = Console()


def predict(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG.toml", help="The server's config, or the one given to `up`.")
    ],
    ids: Annotated[Path, typer.Option(help="One id per line; or a .csv or .parquet with a column of them.")],
    out: Annotated[Path, typer.Option(help="The CSV to write.")],
    column: Annotated[str | None, typer.Option(help="Of --ids, if it has several.")] = None,
    run: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run's folder, if it is not the usual one.")
    ] = None,
) -> None:
    """Ask a trained federation for predictions.

    Asks the running server (`serve --predict`, or predict.stay = true). If none runs, and all roles' folders are on
    this machine (`colonnade up`), brings them up from their checkpoints, asks, and stops them.

    Examples:
      colonnade predict server.toml --ids customers.csv --column customer --out scores.csv
      colonnade predict credit.toml --run runs/credit-1 --ids ids.txt --out scores.csv
    """
    from rich.progress import Progress

    from colonnade.cli.progress import bar_columns
    from colonnade.predict.asking import ask, read_ids, write_answers

    wanted = read_ids(ids, column)
    with (
        _door(config, run) as door,
        Progress(*bar_columns(), console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        task = progress.add_task("predicting", total=len(wanted), text="")
        classes, answers = ask(
            door, wanted, lambda done: progress.update(task, completed=done, text=f"{done} of {len(wanted)} ids")
        )
    write_answers(out, classes, answers)
    refused = Counter(answer["refused"] for answer in answers if answer["refused"])
    rests = Counter(_rests_on(answer) for answer in answers if not answer["refused"])
    for words, count in rests.most_common():
        _say(f"{count} ids: {words}")
    for words, count in refused.most_common():
        _say(f"{count} ids without an answer: {words}")
    _say(f"Written: {out}")
    if len(refused) and not rests:
        raise typer.Exit(1)


def _door(config: Path, run: Path | None) -> AbstractContextManager["Door"]:
    from colonnade.config.schema import from_dict, read_toml
    from colonnade.deployment.up import reopen_up
    from colonnade.predict.asking import door_of, up_for_questions
    from colonnade.protocol.errors import ConfigError
    from colonnade.results.folder import tables_of

    from_dict(read_toml(config))
    folder = run or _usual_folder(config)
    together = (folder / "nodes").is_dir()  # of `up`: all roles are here
    door = door_of(folder / "nodes" / "server" / "run" if together else folder)
    if door is not None and door.answers():
        return nullcontext(door)
    if not together:
        where = f"nobody answers at {door.address}" if door is not None else "no server answers questions from it now"
        advice = (
            f"{where}: start `colonnade serve {config} --predict`, and the parties with `colonnade join ... --predict`"
        )
        raise ConfigError("--run", str(folder), advice)
    return up_for_questions(reopen_up(from_dict(tables_of(folder)), folder, predict=True))


def _usual_folder(config: Path) -> Path:
    """The config's own, if it is a run's; where `serve` writes; else the newest that `up` made."""
    from colonnade.cli.network import own_folder

    if config.name == "config.toml" and (config.parent / "nodes").is_dir():
        return config.parent

    served = own_folder(config, "server")
    made = [path for path in Path("runs").glob(f"{config.stem}-*") if path.name.rpartition("-")[2].isdecimal()]
    made = [path for path in made if (path / "nodes").is_dir()]
    newest = max(made, key=lambda path: int(path.name.rpartition("-")[2]), default=served)
    return served if served.is_dir() else newest


def _rests_on(answer: dict[str, Any]) -> str:
    """What an answer rests on, in words."""
    parts = [f"rest on {', '.join(answer['parties']) or 'nobody now'}"]
    parts += [f"{kind}: {', '.join(answer[kind])}" for kind in ("cached", "fallback") if answer[kind]]
    return "; ".join(parts)


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
