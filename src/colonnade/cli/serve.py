"""`colonnade serve`: the server of a federation."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from colonnade.cli.one_side import log_of, trusted_config
from colonnade.cli.options import (
    Continue,
    LogFilePath,
    LogJson,
    LogKeep,
    LogLevel,
    LogMb,
    Out,
    Parent,
    Predict,
    Setting,
    SideConfig,
    Trust,
)
from colonnade.cli.printing import console, say_note
from colonnade.extras import require_extra

if TYPE_CHECKING:
    from colonnade.config.schema import Config
    from colonnade.deployment.server_side import ServerSide
    from colonnade.drivers.processes.logs import Log

__all__ = ["serve"]


def serve(
    config: SideConfig,
    settings: Setting = None,
    out: Out = None,
    log_json: LogJson = False,
    log_level: LogLevel = "info",
    log_file: LogFilePath = None,
    log_mb: LogMb = 16.0,
    log_keep: LogKeep = 5,
    predict: Predict = False,
    trust: Trust = None,
    continues: Continue = None,
    parent: Parent = None,
) -> None:
    """Run the server of a federation: it holds the labels, and the parties connect to it.

    Started again with the same folder, it continues from its checkpoint.

    Examples:
      colonnade serve server.toml
      colonnade serve server.toml --predict
      colonnade serve server.toml --out runs/june --continue runs/server
    """
    from colonnade.cli.summary import print_summary
    from colonnade.deployment.process import leave_if_stopped, run_process
    from colonnade.deployment.server_host import ServerHost
    from colonnade.deployment.server_training import ServerTraining
    from colonnade.results.places import own_folder

    log = log_of("server", log_json, log_level, log_file, log_mb, log_keep)
    checked = trusted_config(config, settings, trust)
    side = _side(checked, out or own_folder(config, "server"), log, continues)
    if predict or side.config.predict.stay:  # before any training, not after it
        require_extra("serve", "answering predictions over HTTP", "h11")
    if predict:
        return _answer(side, parent)
    process = ServerHost(ServerTraining(side))
    summary = run_process(process.run(), parent)
    if not log_json and summary["status"] != "stopped":
        print_summary(summary, console)
    else:
        say_note(summary["note"])
    leave_if_stopped(process.node)
    if summary["status"] not in ("finished", "stopped"):
        raise typer.Exit(1)
    if summary["status"] == "finished" and side.config.predict.stay and not process.node.stopped:
        _answer(side, parent)


def _side(config: "Config", out: Path, log: "Log", continues: Path | None) -> "ServerSide":
    from colonnade.deployment.server_side import ServerSide

    side = ServerSide(config, out, log, continues)
    for note in side.share.notes:
        log.info("note", about=note)
    return side


def _answer(side: "ServerSide", parent: int | None) -> None:
    """Answer predictions until the process is stopped."""
    from colonnade.deployment.process import leave_if_stopped, run_process
    from colonnade.predict.processes import predicting_server

    answering = predicting_server(side)
    run_process(answering.run(), parent)
    leave_if_stopped(answering.node)
