"""The commands for callers of predictions over HTTP: new, list, revoke."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from colonnade.predict.tokens import Tokens

__all__ = ["token_app"]

token_app = typer.Typer(
    help="Tokens: which callers may ask a server for predictions over HTTP.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

ServerConfig = Annotated[
    Path, typer.Argument(metavar="CONFIG.toml", help="The server's config, or the one given to `up`.")
]
Name = Annotated[str, typer.Argument(help="The caller's name, for the log and the metrics.")]
Run = Annotated[Path | None, typer.Option(metavar="DIR", help="The run's folder, if it is not the usual one.")]


@token_app.command()
def new(
    config: ServerConfig,
    name: Name,
    days: Annotated[float, typer.Option(help="How long the token is valid.")] = 90,
    run: Run = None,
) -> None:
    """Make a caller's token and print it; it is shown only once.

    A running server admits the caller at once.

    Example:
      colonnade token new server.toml scoring --days 30 > scoring.token
    """
    text = _tokens(config, run).new(name, days)
    _audit(config, run, "token made", caller=name, days=days)
    typer.echo(f"Token of {name}, for {days:g} days. Only its hash is kept:", err=True)
    typer.echo(text)


@token_app.command("list")
def list_(config: ServerConfig, run: Run = None) -> None:
    """Print the callers and until when their tokens are valid.

    Example:
      colonnade token list server.toml
    """
    import time
    from datetime import UTC, datetime

    from colonnade.drivers.processes.identity import date_in_words

    for token in _tokens(config, run).all():
        until = date_in_words(datetime.fromtimestamp(token.expires, UTC))
        typer.echo(f"{token.name:<20} {'expired' if token.expires <= time.time() else 'until'} {until}")


@token_app.command()
def revoke(config: ServerConfig, name: Name, run: Run = None) -> None:
    """Revoke a caller's token. A running server refuses it at once.

    Example:
      colonnade token revoke server.toml scoring
    """
    from colonnade.protocol.errors import ConfigError

    if not _tokens(config, run).revoke(name):
        raise ConfigError("NAME", name, "has no token here; see `colonnade token list`")
    _audit(config, run, "token revoked", caller=name)
    typer.echo(f"Revoked: {name}")


def _audit(config: Path, run: Path | None, event: str, **fields: object) -> None:
    """Write the change to the server's audit log."""
    from colonnade.drivers.processes.audit import AUDIT_FILE, AuditLog
    from colonnade.predict.asking import server_folder

    audit = AuditLog(server_folder(config, run) / AUDIT_FILE, "server")
    audit.note(event, fields)
    audit.close()
    if audit.fault:
        typer.echo(f"Warning: not in the audit log: {audit.fault}", err=True)


def _tokens(config: Path, run: Path | None) -> "Tokens":
    from colonnade.predict.asking import server_folder
    from colonnade.predict.tokens import Tokens
    from colonnade.protocol.errors import ConfigError

    folder = server_folder(config, run)
    if not folder.is_dir():
        raise ConfigError("--run", str(folder), f"there is no run yet: start `colonnade serve {config}` first")
    return Tokens(folder / "predict")
