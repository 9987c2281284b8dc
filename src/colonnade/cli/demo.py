"""`colonnade demo`: the comparison on embedded data."""

from typing import Annotated

import typer

from colonnade.cli.options import RaceOut, RaceResume
from colonnade.cli.printing import say

__all__ = ["demo"]


def demo(
    seeds: Annotated[int, typer.Option(help="Runs per method.")] = 1,
    out: RaceOut = None,
    resume: RaceResume = None,
) -> None:
    """Race the methods of all five families: one of four parties is ten times slower.

    It uses built-in data. The clock is virtual: the race takes about a minute.
    """
    from colonnade.cli.race import exit_if_any_failed, race_with_board
    from colonnade.experiments.compare import contestants
    from colonnade.experiments.demo import ABOUT, DEMO, DEMO_METHODS

    say(f"{ABOUT}\nThe fourth party computes ten times slower than the others. The clock is virtual.")
    racing = contestants(DEMO, DEMO_METHODS)
    exit_if_any_failed(race_with_board(racing, seeds, out, "demo", resume=resume, about=ABOUT))
