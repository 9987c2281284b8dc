"""`colonnade run`: train once, on any driver."""

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colonnade.cli.options import (
    Address,
    ConfigFile,
    Continue,
    DropColumns,
    RunOut,
    Seed,
    Setting,
    Workers,
    with_dropped,
)
from colonnade.cli.printing import console, program, say, typed_command
from colonnade.cli.workers import cluster, parse_workers
from colonnade.protocol.errors import ConfigError

if TYPE_CHECKING:
    from colonnade.deployment.up import FederationUp
    from colonnade.experiments.run import Run
    from colonnade.results.summary import Summary

__all__ = ["run"]


def run(
    config: ConfigFile = None,
    settings: Setting = None,
    seed: Seed = None,
    out: RunOut = None,
    driver: Annotated[
        str,
        typer.Option(
            help="sim: one simulator; processes: one process per role, over loopback; ray: one Ray actor per role."
        ),
    ] = "sim",
    workers: Workers = "1",
    address: Address = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Continue the stopped run in this folder.")] = None,
    continues: Continue = None,
    drop_columns: DropColumns = None,
) -> None:
    """Train once.

    Examples:
      colonnade run
      colonnade run race.toml --set protocol.name=t-sync --set protocol.t=3 --seed 1
      colonnade run race.toml --resume runs/race-1
      colonnade run june.toml --continue runs/may-1
    """
    from colonnade.cli.progress_bars import load_with_bar
    from colonnade.config.schema import from_dict, typed_tables
    from colonnade.deployment.up import refuse_network
    from colonnade.experiments.launch import Load, launch, load_ahead, record_of
    from colonnade.results.folder import note_command, tables_of
    from colonnade.results.places import fresh_folder

    if driver not in ("sim", "processes", "ray"):
        raise ConfigError("--driver", driver, "use 'sim', 'processes' or 'ray'")
    if resume is not None and out is not None:
        raise ConfigError("--out", str(out), "--resume continues in its own folder; remove --out")
    if resume is not None and continues is not None:
        raise ConfigError("--continue", str(continues), "starts a new run; --resume finishes a stopped one: remove one")
    settings = with_dropped(settings, drop_columns)
    before = tables_of(resume) if config is None and resume is not None else None
    tables = typed_tables(config, settings, {} if seed is None else {"train.seed": seed}, before)
    checked = from_dict(tables)
    if driver != "sim" and resume is None:
        refuse_network(tables.get("network", {}))
    load: Load = partial(load_with_bar, console=console)
    out = resume or out or fresh_folder(config.stem if config else "digits")
    if resume is not None and (over := record_of(checked, resume, driver)) is not None:
        say(f"This run had already ended. To see its report: colonnade report {resume}")
        if checked.predict.stay:
            say(f"To answer predictions: colonnade up --resume {resume} --predict")
        return _show(over, resume)
    chosen = parse_workers(workers)
    if driver != "sim" and chosen != 1:
        raise ConfigError(
            "--workers",
            workers,
            f"is for the simulator: with --driver {driver} every role has its own process; remove --workers",
        )
    on_ray = "ray" in (chosen, driver)
    if on_ray and resume is None:
        load = load_ahead(checked, out, load, continues)
    with cluster(on_ray, address):
        how: Any = {"load": load, "driver": driver, "workers": chosen, "continues": continues}
        started = launch(checked, out, resume=resume is not None, **how)
        for note in started.notes:
            say(f"Note: {note}")
        note_command(out, typed_command())
        try:
            summary = _watch(started)
        except KeyboardInterrupt:
            say(f"Stopped. {_how_to_go_on(out, driver, address, checked.predict.stay)}")
            raise typer.Exit(130) from None
    _show(summary, out)


def _watch(started: "Run | FederationUp") -> "Summary":
    """Run to the end, under a bar or a table."""
    from colonnade.cli.live import up_with_table
    from colonnade.cli.progress_bars import run_with_bar
    from colonnade.experiments.run import Run

    return run_with_bar(started, console) if isinstance(started, Run) else up_with_table(started, console)


def _how_to_go_on(out: Path, driver: str, address: str | None, stay: bool) -> str:
    """Return, after Ctrl-C, the command to type and where it continues."""
    from colonnade.experiments.launch import checkpoint_of

    if stay and (out / "summary.json").is_file():
        return f"To answer again: {program()} up --resume {out} --predict"
    has_checkpoint = checkpoint_of(out, driver).is_file()
    where = "continue from the last checkpoint" if has_checkpoint else "start this run again (it has no checkpoint yet)"
    words = ["run", "--driver", driver, "--resume", str(out), *(["--address", address] if address else [])]
    return f"To {where}: {program()} {shlex.join(words)}"


def _show(summary: "Summary", out: Path) -> None:
    """Print the result of a run; the exit code says whether it finished."""
    from colonnade.cli.summary import print_summary

    print_summary(summary, console)
    say(f"Folder: {out}")
    if summary["status"] != "finished":
        raise typer.Exit(1)
