"""`colonnade demo`: the race on embedded data."""

from typing import Annotated

import typer

from colonnade.cli.options import RaceOut, RaceResume
from colonnade.cli.printing import console

__all__ = ["demo"]


def demo(
    seeds: Annotated[int, typer.Option(help="Runs per method.")] = 1,
    out: RaceOut = None,
    resume: RaceResume = None,
) -> None:
    """The race on embedded data: one of four parties is ten times slower."""
    from colonnade.cli.race import exit_if_any_failed, race_with_board
    from colonnade.experiments.compare import contestants
    from colonnade.experiments.demo import DEMO, DEMO_METHODS

    console.print("Handwritten digits, four parties with 16 pixels each; the fourth computes ten times slower.")
    exit_if_any_failed(race_with_board(contestants(DEMO, DEMO_METHODS), seeds, out, "demo", resume=resume))
