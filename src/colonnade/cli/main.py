"""The command line: every command has its own module, and `main` turns errors into exit codes."""

import signal
import sys
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from colonnade import __version__
from colonnade.cli.accept import accept
from colonnade.cli.admit import admit
from colonnade.cli.align import align
from colonnade.cli.attack import attack_app
from colonnade.cli.audit import audit_app
from colonnade.cli.certs import certs_app
from colonnade.cli.check import check
from colonnade.cli.compare import compare
from colonnade.cli.data import data_app
from colonnade.cli.demo import demo
from colonnade.cli.doctor import doctor
from colonnade.cli.export import export
from colonnade.cli.health import health
from colonnade.cli.init import init
from colonnade.cli.invite import invite
from colonnade.cli.join import join
from colonnade.cli.options import ListsMethods
from colonnade.cli.predict import predict
from colonnade.cli.printing import say, visible
from colonnade.cli.privacy import privacy_app
from colonnade.cli.protocols import protocols
from colonnade.cli.report import report
from colonnade.cli.reproduce import reproduce
from colonnade.cli.run import run
from colonnade.cli.serve import serve
from colonnade.cli.status import status
from colonnade.cli.sweep import sweep
from colonnade.cli.token import token_app
from colonnade.cli.train import train
from colonnade.cli.up import up
from colonnade.cli.watch import watch
from colonnade.protocol.errors import ColonnadeError
from colonnade.release import commit

__all__ = ["app", "main"]

app = typer.Typer(
    help="Vertical federated learning that does not stop for its slowest member.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _version(value: bool) -> None:
    if value:
        found = commit()
        say(f"colonnade {__version__}" + (f" (commit {found})" if found else ""))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the release and its commit.")
    ] = False,
) -> None:
    pass


# In the order of `colonnade --help`.
experiments = (run, train, compare, sweep, reproduce, demo, protocols, report, export)
members = (serve, join, up, status, watch, health, predict, align, init, invite, accept, admit, check, doctor)
for command in (*experiments, *members):
    app.command(cls=ListsMethods if command in (compare, sweep) else None)(command)
groups = {
    "data": data_app,
    "certs": certs_app,
    "token": token_app,
    "attack": attack_app,
    "privacy": privacy_app,
    "audit": audit_app,
}
for name, group in groups.items():
    app.add_typer(group, name=name)


def _as_ctrl_c(_number: int, frame: Any) -> None:
    """Let SIGTERM end every command as Ctrl-C does, also one that was started with Ctrl-C ignored."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)


def main() -> None:
    """Run the console script: an error that a user can act on is one line, without a traceback."""
    sys.path.append("")  # `package.module:Class` may be in the current folder
    signal.signal(signal.SIGTERM, _as_ctrl_c)
    if sys.platform == "win32":  # the code page of a file or a pipe has no ε and →
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(encoding="utf-8")
    try:
        app()
    except ColonnadeError as error:
        Console(stderr=True).print(f"[red]Error:[/] {escape(visible(str(error)))}", highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
