"""`colonnade admit`: the federation signs the requests of its parties."""

from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.printing import say

__all__ = ["admit"]


def admit(
    requests: Annotated[
        list[Path] | None, typer.Argument(metavar="NAME.request...", help="The files that parties sent.")
    ] = None,
    config: Annotated[Path, typer.Option("--config", help="The server's config.")] = Path("server.toml"),
    dir: Annotated[Path, typer.Option("--dir", help="The federation's folder; it holds the authority's key.")] = Path(
        "federation"
    ),
    days: Annotated[int, typer.Option(help="Days that the certificates are valid.")] = 365,
    renew: Annotated[bool, typer.Option("--renew", help="Replace the certificates of parties that have one.")] = False,
) -> None:
    """Sign the requests of invited parties. When all parties are admitted, write an answer for each of them.

    Compare the code of each request by telephone before you send an answer. Without a request, the command writes the
    answers again, with the present list of members.

    Examples:
      colonnade admit shop.request insurer.request
      colonnade admit
    """
    from colonnade.deployment.admission import admit as sign
    from colonnade.drivers.processes.identity import date_in_words

    done = sign(requests or [], config, dir, days, renew)
    for one in done.admitted:
        say(f"Signed {one.party} until {date_in_words(one.until)}")
        say(f"  code of its request: {one.code}")
    if done.missing:
        say(f"Not admitted yet: {', '.join(done.missing)}. The answers are written when all parties are admitted.")
        return
    for name in done.installed:
        say(f"{name} is in this folder: installed")
    for path in done.answers.values():
        say(f"Wrote {path}")
    say(f"  code of the members: {done.members_code}")
    say("Next:")
    if done.answers:
        say("  compare the codes of the requests by telephone; then send each answer to its party")
        say("  the party, in its folder: colonnade accept NAME.answer")
    say(f"  here: colonnade check {config}, then colonnade align {config}")
