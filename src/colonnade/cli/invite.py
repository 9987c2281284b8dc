"""`colonnade invite`: one file for each new party."""

from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.options import Trust
from colonnade.cli.printing import say

__all__ = ["invite"]

LOCALLY = ("127.", "localhost:", "[::1]:")


def invite(
    names: Annotated[list[str], typer.Argument(metavar="PARTY...", help="Names in network.parties.")],
    config: Annotated[Path, typer.Option("--config", help="The server's config.")] = Path("server.toml"),
    dir: Annotated[Path, typer.Option("--dir", help="The federation's folder; it holds the authority's key.")] = Path(
        "federation"
    ),
    days: Annotated[int, typer.Option(help="Days that the invitation is valid.")] = 14,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where parties reach the server. Default: network.address."),
    ] = None,
    trust: Trust = None,
) -> None:
    """Write an invitation for each of these parties: one signed file with all that the party needs.

    Type it in the server's folder. If the federation has no authority yet, the command makes it.

    Examples:
      colonnade invite shop
      colonnade invite shop insurer --address train.example.org:7450 --days 30
    """
    from colonnade.config.schema import from_dict, read_toml
    from colonnade.deployment.invitation import invite as write

    new = not (dir / "ca.key").exists()
    for invited in write(config, names, dir, days, address, trust or []):
        if new:
            say(f"{dir / 'ca.key'} signs for this federation. Keep it on this machine, and back it up.")
            new = False
        say(f"Wrote {invited.path}, valid until {invited.until}")
        say(f"  code: {invited.code}")
    if (address or from_dict(read_toml(config)).network.address).startswith(LOCALLY):
        say("Only parties on this machine can dial this address; for others add --address HOST:PORT.")
    say("Next:")
    say("  send each file to its party, and compare the code by telephone")
    say("  the party: colonnade accept NAME.invitation --data FILE --id COLUMN")
    say("  here, with the requests of all parties: colonnade admit NAME.request ...")
