"""`colonnade status`: the state of a running server."""

from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.printing import console

__all__ = ["status"]


def status(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="host:port of the server.")],
    certificate: Annotated[Path, typer.Option(help="The certificate of a member of the federation.")],
    key: Annotated[Path, typer.Option(help="The private key of that certificate.")],
    authority: Annotated[Path, typer.Option(help="The federation's ca.pem.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Ask a running server for its state.

    Example:
      colonnade status 127.0.0.1:7450 --certificate clinic.pem --key clinic.key --authority ca.pem
    """
    import asyncio
    import json

    from colonnade.cli.live import status_table
    from colonnade.drivers.processes.certificates import Identity
    from colonnade.drivers.processes.dial import ask_status
    from colonnade.drivers.processes.limits import Limits
    from colonnade.protocol.errors import RemoteProtocolError

    answer = asyncio.run(ask_status(Identity.load(certificate, key, authority), address, Limits()))
    if as_json:
        print(answer.decode())
    else:
        try:
            table = status_table(json.loads(answer))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            advice = "install the same release on all members, or add --json"
            raise RemoteProtocolError("server", f"its status has another form ({error!r}): {advice}") from None
        console.print(table)
