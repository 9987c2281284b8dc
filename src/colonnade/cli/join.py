"""`colonnade join`: a party of a federation."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colonnade.cli.one_side import log_of, trusted_config
from colonnade.cli.options import (
    Continue,
    DropColumns,
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
    with_dropped,
)
from colonnade.cli.printing import say_note

if TYPE_CHECKING:
    from colonnade.config.schema import Config
    from colonnade.deployment.party_side import PartySide
    from colonnade.drivers.processes.logs import Log

__all__ = ["join"]


def join(
    config: SideConfig,
    party: Annotated[str, typer.Option(help="This party's name, as in network.parties and its certificate.")],
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
    drop_columns: DropColumns = None,
    parent: Parent = None,
) -> None:
    """Take part in a federation with this party's own columns: connect to the server, and open no port.

    Examples:
      colonnade join clinic.toml --party clinic
      colonnade join clinic.toml --party clinic --predict
      colonnade join clinic.toml --party clinic --out runs/june --continue runs/clinic
    """
    from colonnade.deployment.party_host import PartyHost
    from colonnade.deployment.party_training import PartyTraining
    from colonnade.deployment.process import leave_if_stopped, run_process
    from colonnade.results.places import own_folder

    log = log_of(party, log_json, log_level, log_file, log_mb, log_keep)
    checked = trusted_config(config, with_dropped(settings, drop_columns), trust)
    side = _side(checked, party, out or own_folder(config, party), log, continues)
    if predict:
        return _answer(side, parent)
    process = PartyHost(PartyTraining(side))
    end = run_process(process.run(), parent)
    leave_if_stopped(process.node)
    say_note(end.note)
    if end.status not in ("finished", "stopped"):
        raise typer.Exit(1)
    if end.status == "finished" and side.config.predict.stay and not process.node.stopped:
        _answer(side, parent)


def _side(config: "Config", name: str, out: Path, log: "Log", continues: Path | None) -> "PartySide":
    from colonnade.deployment.party_side import PartySide

    side = PartySide(config, name, out, log, continues)
    for note in side.share.notes:
        log.info("note", about=note)
    return side


def _answer(side: "PartySide", parent: int | None) -> None:
    """Answer predictions until the process is stopped."""
    from colonnade.deployment.process import leave_if_stopped, run_process
    from colonnade.predict.processes import predicting_party

    answering = predicting_party(side)
    run_process(answering.run(), parent)
    leave_if_stopped(answering.node)
