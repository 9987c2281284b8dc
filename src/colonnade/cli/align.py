"""The command line of alignment: one side of it, or all sides on this machine."""

import asyncio
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TaskID
from rich.table import Table

from colonnade.cli.network import (
    LogJson,
    LogLevel,
    Out,
    Parent,
    Setting,
    checked_config,
    leave_if_stopped,
    log_of,
    own_folder,
    run_process,
)

__all__ = ["align"]

console = Console()
SAY_EVERY_S = 10.0  # where there is no terminal for a bar


def align(
    configs: Annotated[
        list[Path], typer.Argument(metavar="CONFIG.toml...", help="This side's config, or everybody's.")
    ],
    party: Annotated[str | None, typer.Option(help="This party's name; the certificate says it anyway.")] = None,
    settings: Setting = None,
    out: Out = None,
    log_json: LogJson = False,
    log_level: LogLevel = "info",
    parent: Parent = None,
) -> None:
    """Find the rows that all tables have in common, without showing the others: private set intersection.

    Every organisation types it with its own config; whose certificate is the server's is the server, and the parties
    dial it. Each writes the common order of its rows to the file that party.aligned or server.aligned names, where
    training reads it. With several configs, all of them run on this machine, each in its own folder.

    Examples:
      colonnade align server.toml
      colonnade align clinic.toml
      colonnade align server/server.toml clinic/clinic.toml lab/lab.toml
    """
    from colonnade.protocol.errors import ConfigError

    if len(configs) > 1:
        if party or settings or out:
            raise ConfigError("CONFIG", [str(path) for path in configs], "options go with a single config only")
        _align_all(configs)
    else:
        _align_one(configs[0], party, settings, out, log_json, log_level, parent)


def _align_one(
    config: Path,
    party: str | None,
    settings: list[str] | None,
    out: Path | None,
    log_json: bool,
    log_level: str,
    parent: int | None,
) -> None:
    from colonnade.deployment.alignment import aligning_host
    from colonnade.drivers.processes.tls_log import tls_refusals_to

    def folder(name: str) -> Path:
        return out or own_folder(config, name).with_name(f"{own_folder(config, name).name}-align")

    checked = checked_config(config, settings)
    with Bars(shown=not log_json) as bars:  # first: from here on the log is written above the bars
        process = aligning_host(checked, party, folder, lambda name: log_of(name, log_json, log_level))
        with tls_refusals_to(process.log):
            end = run_process(bars.watch(process), parent)
    leave_if_stopped(process.node)
    status, note = (end["status"], end["note"]) if isinstance(end, dict) else (end.status, end.note)
    if isinstance(end, dict) and status == "finished" and not log_json:
        console.print(_table(end["ids"], end["have"]))
    _end(status, note)


def _align_all(configs: list[Path]) -> None:
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
    if note:
        console.print(f"[yellow]{escape(note)}[/]", soft_wrap=True)
    if status not in ("finished", "stopped"):
        raise typer.Exit(1)


class Bars:
    """One for each member: ids raised, rate and time left."""

    def __init__(self, shown: bool = True) -> None:
        from colonnade.cli.progress import bar_columns

        screen = Console(stderr=True)
        self._shown = shown and screen.is_terminal
        self._progress = Progress(*bar_columns(), console=screen, transient=True, disable=not self._shown)
        self._tasks: dict[str, TaskID] = {}
        self._began = self._said = time.monotonic()

    def __enter__(self) -> "Bars":
        self._progress.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.__exit__(*error)

    def show(self, bars: dict[str, Any]) -> None:
        """How far everybody is."""
        for name, (done, whole) in bars.items():
            if not whole:
                self._began = time.monotonic()  # not all are here yet
                continue
            if name not in self._tasks:
                self._tasks[name] = self._progress.add_task(name, total=whole, text="")
            rate = done / max(time.monotonic() - self._began, 1e-9)
            text = f"{done:,} of {whole:,} points, {rate:,.0f}/s"
            self._progress.update(self._tasks[name], completed=done, text=text)

    async def watch(self, process: Any) -> Any:
        """Run one side under its bars; without a terminal, a line in the log now and then."""
        running = asyncio.ensure_future(process.run())
        try:
            while not running.done():
                await asyncio.wait([running], timeout=0.25)
                bars = process.application.bars()
                self.show(bars)
                if not self._shown and time.monotonic() - self._said >= SAY_EVERY_S:
                    self._said = time.monotonic()
                    far = {name: f"{done}/{whole}" for name, (done, whole) in bars.items() if whole}
                    if far:
                        process.log.info("raising", **far)
            return running.result()
        finally:
            running.cancel()
