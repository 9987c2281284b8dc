"""`colonnade privacy audit`: which questions a party was asked."""

from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.printing import say

__all__ = ["audit"]


def audit(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="The party's folder, such as runs/clinic.")],
    last: Annotated[int, typer.Option(help="How many of the newest questions to list.")] = 10,
) -> None:
    """Show which questions a party was asked for predictions: when, how many ids, what it refused and why.

    Example:
      colonnade privacy audit runs/clinic
    """
    from collections import Counter

    from colonnade.predict.audit import read_audit

    totals, lines = read_audit(run / "predict")
    if not totals.questions:
        say(f"No question so far, in {run}.")
        return
    say(f"Since {totals.since}: {totals.questions} questions for {totals.ids} ids")
    unknown = totals.ids - totals.answered - totals.refused
    say(f"  {totals.answered} answered, {totals.refused} refused, {unknown} not known to the party")
    for why, count in Counter(line.why for line in lines if line.why).most_common():
        say(f"  {count} of the last {len(lines)} questions: {why}")
    say("")
    say(f"{'time':<21}{'who':<24}{'ids':>8}{'answered':>10}{'refused':>9}  why")
    for line in lines[-last:]:
        say(f"{line.time:<21}{line.who:<24}{line.ids:>8}{line.answered:>10}{line.refused:>9}  {line.why}".rstrip())
