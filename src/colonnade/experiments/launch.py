"""Prepare a run on any driver: in the simulator, as processes on this machine, or as actors of Ray."""

from collections.abc import Callable
from pathlib import Path

from colonnade.config.resolve import refuse_unbuildable
from colonnade.config.schema import Config
from colonnade.data import Partition
from colonnade.deployment.up import FederationUp, prepare_up, reopen_folder, reopen_up
from colonnade.drivers.checkpoints import NEWEST
from colonnade.experiments.run import Run, loading_like, prepare, reopen
from colonnade.protocol.errors import ConfigError
from colonnade.results.folder import RunFolder
from colonnade.results.places import nodes_of
from colonnade.results.summary import Summary
from colonnade.results.trained import find_run

__all__ = ["Load", "checkpoint_of", "launch", "load_ahead", "record_of"]

Load = Callable[..., Partition]


def launch(
    config: Config,
    out: Path,
    *,
    resume: bool,
    load: Load,
    driver: str,
    workers: int | str,
    continues: Path | None = None,
) -> Run | FederationUp:
    """Return a new run in `out`, or the one in that folder; `workers` are the simulator's.

    `continues` is the folder of the run from whose networks a new run starts.
    """
    if driver == "sim":
        if resume:
            return reopen(config, out, load, workers)
        before = None if continues is None else find_run(continues)
        return prepare(config, None, out, load, workers, before)
    kind: type[FederationUp] = FederationUp
    if driver == "ray":
        from colonnade.deployment.on_ray import FederationOnRay as kind  # noqa: PLC0415 - an extra
    return reopen_up(config, out, kind=kind) if resume else prepare_up(config, out, None, load, kind, continues)


def load_ahead(config: Config, out: Path, load: Load, continues: Path | None = None) -> Load:
    """Load the data once, and refuse what can be refused before a cluster starts, which takes a while."""
    RunFolder.refuse_used(out)
    before = None if continues is None else find_run(continues)
    data = loading_like(load, before)(config)
    refuse_unbuildable(config, data, before)
    return lambda _, **__: data


def record_of(config: Config, folder: Path, driver: str) -> Summary | None:
    """Return the summary of a run that is over; None if it can continue."""
    over = reopen_folder(config, folder).record()
    if over is None and driver == "sim" and nodes_of(folder).is_dir():
        raise ConfigError(
            "--resume", str(folder), "is a run of separate processes: add --driver processes, or --driver ray"
        )
    return over


def checkpoint_of(folder: Path, driver: str) -> Path:
    """Return the checkpoint from which the run would continue; it may not exist yet."""
    state = folder if driver == "sim" else nodes_of(folder) / "server" / "run" / "state"
    return state / NEWEST
