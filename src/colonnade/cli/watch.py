"""`colonnade watch`: a live page of a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colonnade.cli.printing import say
from colonnade.protocol.errors import ConfigError

if TYPE_CHECKING:
    from colonnade.dashboard.source import Source
    from colonnade.drivers.processes.certificates import Identity

__all__ = ["watch"]


def watch(
    target: Annotated[
        str, typer.Argument(metavar="RUN_OR_ADDRESS", help="The folder of a run, or host:port of a server.")
    ],
    config: Annotated[
        Path | None, typer.Option(metavar="CONFIG.toml", help="For an address: a member's config with its certificate.")
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="For an address: the certificate of a member.")] = None,
    key: Annotated[Path | None, typer.Option(help="The private key of that certificate.")] = None,
    authority: Annotated[Path | None, typer.Option(help="The federation's ca.pem.")] = None,
    port: Annotated[int, typer.Option(help="The page's port on this machine; 0: any free port.")] = 0,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Show a run on a local web page while it is under way, and after its end.

    The page is on this machine only, and needs the token in the printed address. Ctrl-C ends it; the run goes on.

    Examples:
      colonnade watch runs/race-1
      colonnade watch 127.0.0.1:7450 --config server.toml
      colonnade watch 127.0.0.1:7450 --certificate clinic.pem --key clinic.key --authority ca.pem
    """
    import sys
    import threading
    import webbrowser

    from colonnade.dashboard.page import open_door

    source = _source(target, config, (certificate, key, authority))
    try:
        door = open_door(source, port)
        say(f"Open {door.address}")
        say("Ctrl-C ends the page; the run goes on.")
        sys.stdout.flush()  # a program may read the address from a pipe
        if open_browser:
            webbrowser.open(door.address)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            door.close()
            say("The page is closed.")
    finally:
        source.close()


def _source(target: str, config: Path | None, files: tuple[Path | None, ...]) -> "Source":
    from colonnade.dashboard.source import FolderSource, ServerSource
    from colonnade.drivers.processes.limits import Limits

    folder, (_, separator, port) = Path(target), target.rpartition(":")
    if folder.is_dir():
        return FolderSource(folder)
    if not (separator and port.isdigit()):
        raise ConfigError("RUN_OR_ADDRESS", target, "is neither the folder of a run nor host:port of a server")
    return ServerSource(_identity(config, files), target, Limits(max_message_mb=8.0))


def _identity(config: Path | None, files: tuple[Path | None, ...]) -> "Identity":
    from colonnade.config.schema import from_dict, read_toml
    from colonnade.deployment.own_side import load_identity
    from colonnade.drivers.processes.certificates import Identity

    if config is not None:
        if any(files):
            raise ConfigError("--config", str(config), "names the certificate: leave out the other options")
        return load_identity(from_dict(read_toml(config)))
    certificate, key, authority = files
    if certificate is None or key is None or authority is None:
        advice = (
            "an address needs a member's certificate: add --config server.toml, or --certificate, --key, --authority"
        )
        raise ConfigError("--config", None, advice)
    return Identity.load(certificate, key, authority)
