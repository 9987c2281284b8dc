"""`colonnade privacy`: what a method's privacy settings allow, and what they cost."""

import typer

from colonnade.cli.privacy_audit import audit
from colonnade.cli.privacy_fedvs import fedvs
from colonnade.cli.privacy_ledger import ledger
from colonnade.cli.privacy_plan import plan
from colonnade.cli.privacy_report import report

__all__ = ["privacy_app"]

privacy_app = typer.Typer(
    help="Plan, report and check what a method's messages reveal.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


@privacy_app.callback()
def _group() -> None:
    """Plan, report and check what a method's messages reveal."""


for command in (fedvs, plan, report, ledger, audit):
    privacy_app.command()(command)
