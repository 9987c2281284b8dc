"""The command line of real networks: serve, join, up, status; predict has a file of its own."""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table

from colonnade.cli.predict import predict

if TYPE_CHECKING:
    from colonnade.deployment.party_side import PartySide
    from colonnade.deployment.server_side import ServerSide
    from colonnade.deployment.up import FederationUp
    from colonnade.drivers.processes.node import Node
    from colonnade.results.summary import Summary

__all__ = [
    "LogJson",
    "LogLevel",
    "Out",
    "Parent",
    "Setting",
    "checked_config",
    "join",
    "leave_if_stopped",
    "log_of",
    "own_folder",
    "register",
    "run_process",
    "serve",
    "status",
    "up",
    "up_with_table",
]

console = Console()

Config = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The shared config with this side's own settings.")]
Out = Annotated[Path | None, typer.Option(help="This role's folder: made, or gone on with.")]
LogJson = Annotated[bool, typer.Option("--log-json", help="One JSON object per line.")]
LogLevel = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")]
Parent = Annotated[int | None, typer.Option(hidden=True, help="Stop when this process is gone.")]
Predict = Annotated[
    bool, typer.Option("--predict", help="Train no more: answer questions from what was trained in this folder.")
]
Setting = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a config key; repeatable.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the main app."""
    for command in (serve, join, up, status, predict):
        app.command()(command)


def serve(
    config: Config,
    settings: Setting = None,
    out: Out = None,
    log_json: LogJson = False,
    log_level: LogLevel = "info",
    predict: Predict = False,
    parent: Parent = None,
) -> None:
    """Run the server of a federation: it holds the labels, and the parties dial it.

    Started again with the same folder, it goes on from its checkpoint.

    Examples:
      colonnade serve server.toml
      colonnade serve server.toml --predict
    """
    from colonnade.cli.progress import print_summary
    from colonnade.deployment.server_host import ServerHost
    from colonnade.deployment.server_side import ServerSide
    from colonnade.deployment.server_training import ServerTraining
    from colonnade.drivers.processes.tls_log import tls_refusals_to

    log = log_of("server", log_json, log_level)
    side = ServerSide(checked_config(config, settings), out or own_folder(config, "server"), log)
    process = None if predict else ServerHost(ServerTraining(side))
    for note in side.share.notes:
        log.info("note", about=note)
    with tls_refusals_to(log):
        if process is None:
            return _answer_as_server(side, parent)
        summary = run_process(process.run(), parent)
    if not log_json and summary["status"] != "stopped":
        print_summary(summary, console)
    elif summary["note"]:
        console.print(f"[yellow]{escape(summary['note'])}[/]", soft_wrap=True)
    leave_if_stopped(process.node)
    if summary["status"] not in ("finished", "stopped"):
        raise typer.Exit(1)
    if summary["status"] == "finished" and side.config.predict.stay and not process.node.stopped:
        with tls_refusals_to(log):
            _answer_as_server(side, parent)


def _answer_as_server(side: "ServerSide", parent: int | None) -> None:
    from colonnade.predict.processes import predicting_server

    answering = predicting_server(side)
    run_process(answering.run(), parent)
    leave_if_stopped(answering.node)


def join(
    config: Config,
    party: Annotated[str, typer.Option(help="This party's name, as in network.parties and its certificate.")],
    settings: Setting = None,
    out: Out = None,
    log_json: LogJson = False,
    log_level: LogLevel = "info",
    predict: Predict = False,
    parent: Parent = None,
) -> None:
    """Take part in a federation with this party's own columns; dials out, opens no port.

    Examples:
      colonnade join clinic.toml --party clinic
      colonnade join clinic.toml --party clinic --predict
    """
    from colonnade.deployment.party_host import PartyHost
    from colonnade.deployment.party_side import PartySide
    from colonnade.deployment.party_training import PartyTraining
    from colonnade.drivers.processes.tls_log import tls_refusals_to

    log = log_of(party, log_json, log_level)
    side = PartySide(checked_config(config, settings), party, out or own_folder(config, party), log)
    process = None if predict else PartyHost(PartyTraining(side))
    for note in side.share.notes:
        log.info("note", about=note)
    with tls_refusals_to(log):
        if process is None:
            return _answer_as_party(side, parent)
        end = run_process(process.run(), parent)
    leave_if_stopped(process.node)
    if end.note:
        console.print(f"[yellow]{escape(end.note)}[/]", soft_wrap=True)
    if end.status not in ("finished", "stopped"):
        raise typer.Exit(1)
    if end.status == "finished" and side.config.predict.stay and not process.node.stopped:
        with tls_refusals_to(log):
            _answer_as_party(side, parent)


def _answer_as_party(side: "PartySide", parent: int | None) -> None:
    from colonnade.predict.processes import predicting_party

    answering = predicting_party(side)
    run_process(answering.run(), parent)
    leave_if_stopped(answering.node)


def up(
    config: Annotated[Path | None, typer.Argument(metavar="CONFIG.toml", help="Left out: all defaults.")] = None,
    settings: Setting = None,
    seed: Annotated[int | None, typer.Option(help="Replaces train.seed.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; must be new or empty.")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with a run that was stopped.")] = None,
    predict: Annotated[
        bool, typer.Option("--predict", help="Stay up and answer questions; with --resume of a run that has ended.")
    ] = False,
) -> None:
    """Start a whole federation on this machine, every role its own process, over loopback with mutual TLS.

    Examples:
      colonnade up
      colonnade up race.toml --set protocol.name=sync
      colonnade up race.toml --predict
      colonnade up --resume runs/race-1 --predict
    """
    from colonnade.cli.main import run

    if predict and resume is not None:
        _answer_together(resume)
    else:
        stay = ["predict.stay=true"] if predict else []
        run(config, [*(settings or []), *stay], seed, out, "processes", resume=resume)


def _answer_together(folder: Path) -> None:
    from colonnade.config.schema import from_dict
    from colonnade.deployment.up import reopen_up
    from colonnade.results.folder import tables_of

    federation = reopen_up(from_dict(tables_of(folder)), folder, predict=True)
    with suppress(KeyboardInterrupt):
        up_with_table(federation, console)


def status(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="host:port of the server.")],
    certificate: Annotated[Path, typer.Option(help="Of a member of the federation, or of the server.")],
    key: Annotated[Path, typer.Option(help="Its private key.")],
    authority: Annotated[Path, typer.Option(help="The federation's ca.pem.")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Ask a running server how it is doing.

    Example:
      colonnade status 127.0.0.1:7450 --certificate clinic.pem --key clinic.key --authority ca.pem
    """
    import json

    from colonnade.drivers.processes.certificates import Identity
    from colonnade.drivers.processes.dial import ask_status
    from colonnade.drivers.processes.limits import Limits

    answer = asyncio.run(ask_status(Identity.load(certificate, key, authority), address, Limits()))
    if as_json:
        print(answer.decode())
    else:
        console.print(status_table(json.loads(answer)))


def up_with_table(federation: "FederationUp", out: Console) -> "Summary":
    """Run a federation under its live table."""
    federation.say = lambda text: out.print(text, markup=False, highlight=False, soft_wrap=True)
    with Live(console=out, refresh_per_second=4, transient=True) as live:
        return asyncio.run(federation.run(lambda found: live.update(status_table(found))))


def status_table(status: dict[str, Any]) -> Group:
    """The live table."""
    table = Table("party", "state", "steps/s", "staleness", "up", "down", "last seen")
    colours = {"connected": "green", "away": "yellow", "lost": "red"}
    for party in status["parties"]:
        colour = colours.get(party["state"], "dim")
        seen = "" if party["last_seen_s"] is None else f"{party['last_seen_s']:.0f} s ago"
        staleness = "" if party["staleness"] is None else f"{party['staleness']:.1f}"
        table.add_row(
            escape(party["name"]),
            f"[{colour}]{party['state']}[/]",
            f"{party['steps_per_s']:.1f}",
            staleness,
            _bytes(party["bytes_up"]),
            _bytes(party["bytes_down"]),
            seen,
        )
    value = "" if status["value"] is None else f" · {status['metric']} {status['value']:.4g}"
    head = f"{status['protocol']} · {status['state']} · update {status['updates']} ({status['updates_per_s']:.1f}/s)"
    lines = [f"{head} · epoch {status['epochs']:.2f}{value} · {status['clock_s']:.0f} s"]
    if status["state"] == "waiting" and status["waits_for"]:
        names = escape(", ".join(status["waits_for"]))
        lines.append(f"[yellow]waits for {names} for {status['waited_s']:.0f} s[/]")
    bar = Padding(ProgressBar(1.0, status["fraction"], width=60), 0, expand=False)  # a bar alone ends no line
    return Group(*lines, bar, table)


def _bytes(count: int) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000  # type: ignore[assignment]
    return f"{count:.1f} TB"


def checked_config(path: Path, settings: list[str] | None) -> Any:
    """A config file with what was typed beside it."""
    from colonnade.config.schema import apply_overrides, from_dict, parse_override, read_toml

    return from_dict(apply_overrides(read_toml(path), dict(parse_override(text) for text in settings or [])))


def own_folder(config: Path, role: str) -> Path:
    """The same at every start, so that it goes on."""
    return Path("runs") / (role if config.stem == role else f"{config.stem}-{role}")


def log_of(role: str, as_json: bool, level: str) -> Any:
    """A role's log, as the options want it."""
    from colonnade.drivers.processes.logs import Log
    from colonnade.protocol.errors import ConfigError

    if level not in ("debug", "info", "warning", "error"):
        raise ConfigError("--log-level", level, "use debug, info, warning or error")
    return Log(role, as_json=as_json, level=level)


def run_process(work: Coroutine[Any, Any, Any], parent: int | None) -> Any:
    """A server or party until its end; if the parent process goes away, it stops as if by SIGTERM.

    On uvloop, which costs less for each message than asyncio's own loop. What the start has made stays: walking over
    all of it would stop the traffic for 90 ms now and then.
    """
    import uvloop

    gc.freeze()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return uvloop.run(_with_parent(work, parent))
    finally:  # a closed uvloop would go on swallowing signals: the next phase could not be ended
        for number, handler in before.items():
            signal.signal(number, handler)


def leave_if_stopped(node: "Node") -> None:
    """Python would wait for a job that runs, which may take minutes; a node that starts again computes it again."""
    if node.stopped and node.jobs.running:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


async def _with_parent(work: Coroutine[Any, Any, Any], parent: int | None) -> Any:
    if parent is None:
        return await work

    async def watch() -> None:
        while os.getppid() == parent:
            await asyncio.sleep(1.0)
        os.kill(os.getpid(), 15)

    watcher = asyncio.ensure_future(watch())
    try:
        return await work
    finally:
        watcher.cancel()
