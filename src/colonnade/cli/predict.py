"""`colonnade predict`: ask a trained federation for predictions."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from colonnade.cli.printing import console, say

__all__ = ["predict"]


def predict(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG.toml", help="The server's config, or the one given to `up`.")
    ],
    ids: Annotated[Path, typer.Option(help="A file with one id per line, or a .csv or .parquet with a column of ids.")],
    out: Annotated[Path, typer.Option(help="The CSV to write.")],
    column: Annotated[
        str | None, typer.Option(help="The column with the ids, if the file of --ids has several.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run's folder. Default: the one that the config implies.")
    ] = None,
) -> None:
    """Ask a trained federation for predictions.

    The command asks the running server (`serve --predict`, or predict.stay = true). If none runs, and the folders of
    all roles are on this machine (`colonnade up`), it starts them from their checkpoints, asks, and stops them.

    Examples:
      colonnade predict server.toml --ids customers.csv --column customer --out scores.csv
      colonnade predict credit.toml --run runs/credit-1 --ids ids.txt --out scores.csv
    """
    from rich.progress import Progress

    from colonnade.cli.progress_bars import bar_columns
    from colonnade.predict.asking import ask, open_door, read_ids, write_answers

    wanted = read_ids(ids, column)
    with (
        open_door(config, run) as door,
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
        say(f"{count} ids: {words}")
    for words, count in refused.most_common():
        say(f"{count} ids without an answer: {words}")
    say(f"Written: {out}")
    if len(refused) and not rests:
        raise typer.Exit(1)


def _rests_on(answer: dict[str, Any]) -> str:
    """Say in words which parties an answer rests on."""
    parts = [f"answered by {', '.join(answer['parties']) or 'no party now'}"]
    parts += [f"{kind}: {', '.join(answer[kind])}" for kind in ("cached", "fallback") if answer[kind]]
    return "; ".join(parts)
