"""`colonnade align`: one member of an alignment, or all members on this machine."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from colonnade.cli.one_side import checked_config, log_of
from colonnade.cli.options import LogFilePath, LogJson, LogKeep, LogLevel, LogMb, Out, Parent, Setting
from colonnade.cli.printing import console, say_note
from colonnade.protocol.errors import ConfigError

if TYPE_CHECKING:
    from colonnade.drivers.processes.logs import Log

__all__ = ["align"]


def align(
    configs: Annotated[
        list[Path], typer.Argument(metavar="CONFIG.toml...", help="This member's config, or those of all members.")
    ],
    party: Annotated[str | None, typer.Option(help="This party's name. Default: the name in its certificate.")] = None,
    settings: Setting = None,
    out: Out = None,
    log_json: LogJson = False,
    log_level: LogLevel = "info",
    log_file: LogFilePath = None,
    log_mb: LogMb = 16.0,
    log_keep: LogKeep = 5,
    parent: Parent = None,
) -> None:
    """Find the rows that all tables have in common, without revealing the other rows (private set intersection).

    Every organisation runs it with its own config. The member with the server's certificate is the server, and the
    parties dial it. Each member writes the common order of its rows to the file that party.aligned or server.aligned
    names, where training reads it. With several configs, all of them run on this machine, each in its own folder.

    Examples:
      colonnade align server.toml
      colonnade align clinic.toml
      colonnade align server/server.toml clinic/clinic.toml lab/lab.toml
    """
    if len(configs) > 1:
        if party or settings or out:
            raise ConfigError(
                "CONFIG",
                [str(path) for path in configs],
                "options such as --party need a single config; leave them out",
            )
        _align_all(configs)
    else:

        def log(name: str) -> "Log":
            return log_of(name, log_json, log_level, log_file, log_mb, log_keep)

        _align_one(configs[0], party, settings, out, log_json, log, parent)


def _align_one(
    config: Path,
    party: str | None,
    settings: list[str] | None,
    out: Path | None,
    log_json: bool,
    log: "Callable[[str], Log]",
    parent: int | None,
) -> None:
    from colonnade.cli.align_bars import Bars
    from colonnade.deployment.alignment import aligning_host
    from colonnade.deployment.process import leave_if_stopped, run_process
    from colonnade.results.places import align_folder

    def folder(name: str) -> Path:
        return out or align_folder(config, name)

    checked = checked_config(config, settings)
    with Bars(shown=not log_json) as bars:  # first: from here on the log is written above the bars
        process = aligning_host(checked, party, folder, log)
        end = run_process(bars.watch(process), parent)
    leave_if_stopped(process.node)
    status, note = (end["status"], end["note"]) if isinstance(end, dict) else (end.status, end.note)
    if isinstance(end, dict) and status == "finished" and not log_json:
        console.print(_table(end["ids"], end["have"]))
    _end(status, note)


def _align_all(configs: list[Path]) -> None:
    import asyncio

    from colonnade.cli.align_bars import Bars
    from colonnade.deployment.align_all import AlignAll

    together = AlignAll(configs)
    with Bars() as bars:
        summaries = asyncio.run(together.run(lambda status: bars.show(status["bars"])))
    server = summaries["server"]
    if server["status"] == "finished":
        console.print(_table(server["ids"], server["have"]))
    _end(server["status"], server["note"])


def _table(ids: dict[str, int], have: dict[str, int]) -> Table:
    table = Table("table of", "ids", "in common", title="alignment")
    for name, count in ids.items():
        table.add_row(escape(name), f"{count:,}", f"{have[name]:,} ({have[name] / count:.1%})")
    return table


def _end(status: str, note: str) -> None:
    say_note(note)
    if status not in ("finished", "stopped"):
        raise typer.Exit(1)
