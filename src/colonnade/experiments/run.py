"""One run in the simulator: prepare, execute with checkpoints, summarise.

A run with a folder that is stopped by Ctrl-C writes a checkpoint before it raises KeyboardInterrupt.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import torch

from colonnade.algorithms.evaluation import Measurement
from colonnade.algorithms.remarks import Remark
from colonnade.algorithms.training import Cadence, Every
from colonnade.config.continuing import Continuation, TrainedMember, member_of_party, member_of_server
from colonnade.config.resolve import Federation, federation, limit_of, load_partition
from colonnade.config.schema import Config, TrainConfig
from colonnade.data import Partition
from colonnade.data.suggest import listing
from colonnade.drivers.ledger_file import LedgerFile
from colonnade.drivers.row_file import FileStorage
from colonnade.drivers.simulator import Simulator
from colonnade.drivers.simulator import checkpoint as simulator_checkpoint
from colonnade.drivers.simulator.cpu_loads import ended_note
from colonnade.drivers.simulator.lanes import Lanes
from colonnade.experiments.diagnostics import Diagnostics
from colonnade.experiments.interrupt import on_first_interrupt
from colonnade.experiments.live import RunLive
from colonnade.models.network import draw_in_turn
from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import CheckpointError, ConfigError, TrainingDiverged, WorkerLost
from colonnade.protocol.events import NANOSECONDS
from colonnade.protocol.messages import Array, Payload
from colonnade.protocol.ports import Releases
from colonnade.protocol.role import SERVER, Counts, Histogram, RoleSummary, Scaling, Trained
from colonnade.results.folder import RunFolder
from colonnade.results.summary import (
    Summary,
    metrics_row,
    staleness_histogram,
    summarise,
    traffic_fields,
    weights_digest,
)
from colonnade.results.track import Tracking
from colonnade.results.trained import kept_continuation, write_models
from colonnade.results.verdict import commonest

__all__ = ["RAY", "Run", "Standing", "check_workers", "loading_like", "one_thread", "prepare", "reopen"]

RAY = "ray"  # as `workers`: those of the cluster to which this process is connected
SLICE_EVENTS, SLICE_S = 500, 1.0  # between two updates of the progress bar, at most
LOSSES = 10  # lost workers in one run, at most: more means a fault in them
CHECKPOINT_WALL_S = 30.0  # a long run is saved about this often, in real time,
CHECKPOINT_PAUSE = 20  # but after a pause of this many times as long as the last checkpoint took (large tables)


class Standing(NamedTuple):
    """The progress of a run."""

    fraction: float
    updates: int
    clock_s: float
    wall_s: float
    metric: str
    value: float | None

    @classmethod
    def of(cls, train: TrainConfig, row: dict[str, Any]) -> "Standing":
        """Take the progress from the last line of its metrics, for a run in another process."""
        fraction = _share(limit_of(train), row["clock_s"], row["update"], row["epochs"])
        metric = _metric_of(train.metric or "value", row.get("rows") == "validation")
        return cls(fraction, row["update"], row["clock_s"], row["wall_s"], metric, row["value"])


def _metric_of(metric: str, validation: bool) -> str:
    return f"validation {metric}" if validation else metric


def _share(limit: Every, clock_s: float, updates: int, epochs: float) -> float:
    done = {"seconds": clock_s, "updates": updates, "epochs": epochs}[limit.unit]
    return min(1.0, done / limit.amount)


class Run:
    """A run that is ready to start, or to continue."""

    def __init__(self, setting: Federation, folder: RunFolder | None, workers: int | str = 1) -> None:
        self.federation, self.folder, self.workers = setting, folder, workers
        self._diagnostics = Diagnostics(setting)
        if self._diagnostics and workers == RAY:
            advice = "does not work with [diagnose], which needs all roles in this process; use threads"
            raise ConfigError("--workers", workers, advice)
        self.stopping = False  # Ctrl-C was typed
        self._begin()
        self._losses = 0
        self._damaged: list[str] = []  # files that an earlier checkpoint stood in for
        self._wall_before = 0.0
        self._started = self._saved_at = time.perf_counter()
        self._saving_s = 0.0  # how long the last checkpoint took
        self.status = "running"
        self.note = ""
        self._tracking = Tracking(setting.config)
        self._live: RunLive | None = None  # if there is a folder, while it runs

    def _begin(self) -> None:
        """Make new roles in their initial state."""
        setting = self.federation
        self.rows: list[dict[str, Any]] = []
        self._opened = False  # the files of the roles
        self._server, parties = setting.made()
        self._diagnostics.check([self._server, *parties])
        self.simulator = Simulator(
            [self._server, *parties],
            Codec(setting.method.payloads, lazily=True),
            setting.config.clock,
            setting.config.train.seed,
            full_trace=setting.config.train.trace == "full",
            on_emit=self._record,
            peers=setting.method.capabilities.peers,
        )
        self._checkpoints = Cadence(setting.plan.checkpoint_every, setting.training.rows_per_epoch)

    def execute(self, on_progress: Callable[["Run"], None] | None = None) -> Summary:
        """Run to the end; returns the summary, and writes it to the folder. Raises KeyboardInterrupt after Ctrl-C."""
        self._started = self._saved_at = time.perf_counter()
        folder = self.folder.path if self.folder is not None else None
        stopping = nullcontext() if folder is None else on_first_interrupt(self._stop)
        with self._tracking.open(folder), one_thread(), self._watched(), stopping:
            while not self._to_the_end(on_progress):
                pass
        if self.status == "stalled":
            self.note = (
                f"waits for {listing(self.principal_summary().get('waits_for', [])) or 'no party'} and cannot continue"
            )
        loads = ended_note({node.role.name: node.pace.load_s for node in self.simulator.nodes}, self.clock_s)
        lost = (
            f"workers were lost {self._losses} times, and the run continued from its last checkpoint"
            if self._losses
            else ""
        )
        self.note = "; ".join(filter(None, (self.note, lost, loads, *self._damage())))
        summary = self.summary()
        self._tracking.end(self.status, summary)
        summary["note"] = "; ".join(filter(None, (summary["note"], self._tracking.note)))
        if self.folder is not None:
            self.folder.write_figures(self.timeline(), self.staleness())
            if self.status == "finished" and (members := self.members()):
                write_models(self.folder.path, str(summary["weights_sha256"]), members)
            self.folder.write_summary(summary)  # last: with it, the run is complete
        if on_progress is not None:
            on_progress(self)
        if self.stopping:  # Ctrl-C at the very end: the run is over, and the caller must not continue with what follows
            raise KeyboardInterrupt
        return summary

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Keep live.json, if there is a folder; its last state tells how the execution ended."""
        if self.folder is None:
            yield
            return
        self._live, state = RunLive(self), "failed"
        try:
            yield
            state = self.status
        except KeyboardInterrupt:
            state = "stopped"
            raise
        finally:
            self._live.close(state)
            self._live = None

    def _stop(self) -> None:
        self.stopping = self.simulator.stopping = True

    def _to_the_end(self, on_progress: Callable[["Run"], None] | None) -> bool:
        """Return True at the end; False if workers were lost, and the run is back at its last checkpoint."""
        if self.stopping:
            raise KeyboardInterrupt
        try:
            with self._with_workers():
                while self.simulator.advance(SLICE_EVENTS, SLICE_S):
                    if self._live is not None:
                        self._live.look()
                    if on_progress is not None and not self.stopping:
                        on_progress(self)
                    if self.folder is not None and (self.stopping or self._checkpoint_due()):
                        begin = time.perf_counter()
                        content = self._checkpoint()
                        self.folder.save_checkpoint(content)
                        simulator_checkpoint.tell_checkpointed(self.simulator, content["simulator"])
                        self._saved_at = time.perf_counter()
                        self._saving_s = self._saved_at - begin
                        if self._live is not None:
                            self._live.events.add("checkpoint", "checkpoint written")
                    if self.stopping:
                        raise KeyboardInterrupt
                self.simulator.settle()
                self.status = self.simulator.status
        except TrainingDiverged as error:
            self.status, self.note = "diverged", str(error)
        except WorkerLost:
            self._losses += 1
            if self._losses > LOSSES:
                raise
            self._rewind()
            return False
        return True

    def _rewind(self) -> None:
        """Make all roles again, as a resumed run does: those on lost workers are gone."""
        spent_s = self.wall_s
        self._begin()
        if self.folder is not None:
            self.resume()
        self._wall_before, self._started = spent_s, time.perf_counter()

    @contextmanager
    def _with_workers(self) -> Iterator[None]:
        """Provide the requested threads (torch lets the others run while it works), or Ray's workers."""
        if self.workers == 1 or self.federation.method.joint is not None:
            yield
            return
        if isinstance(self.workers, str):
            if self._guards():
                raise ConfigError(
                    "--workers",
                    self.workers,
                    "does not work with privacy ledgers, which this process writes; use threads",
                )
            from colonnade.drivers.ray.hosts import away  # noqa: PLC0415 - an extra

            assert self.federation.method.party is not None
            setups = {party.name: party for party in self.federation.parties}
            with away(self.simulator, self.federation.method.party, setups):
                yield
            return
        draw_in_turn(Lock())
        with closing(Lanes(self.workers)) as workers:
            self.simulator.workers = workers
            try:
                yield
            finally:
                self.simulator.workers = None

    def _damage(self) -> list[str]:
        return [f"{text} (the run continued from the checkpoint before it)" for text in self._damaged]

    def resume(self) -> bool:
        """Continue from the folder's checkpoint; False if there is none yet (the run starts from the beginning)."""
        assert self.folder is not None
        found = self.folder.recover(self._load)
        self._damaged += self.folder.damaged
        if not found:
            self.keep_files()
            self.rows = self.folder.cut_back(0)
        return found

    def _load(self, saved: dict[str, Any]) -> None:
        if self._opened:  # a table did not fit the newest checkpoint: the roles must be new
            self.close_ledgers()
            self._begin()
        self.keep_files(empty=False)
        simulator_checkpoint.load(self.simulator, saved["simulator"])
        for guard in self._guards().values():
            guard.cut_back()
        assert self.folder is not None
        self.rows = self.folder.cut_back(saved["rows"])
        self._checkpoints.count = saved["checkpoints"]
        self._wall_before = saved["wall_s"]

    def _guards(self) -> dict[str, Releases]:
        """Return the guards of the parties that have something to guard."""
        guards = {node.role.name: node.guard for node in self.simulator.nodes}
        return {name: guard for name, guard in guards.items() if guard is not None and guard.on}

    def keep_files(self, empty: bool = True) -> None:
        """Keep privacy ledgers and tables in the folder."""
        self._opened = True
        self.keep_ledgers(empty)
        assert self.folder is not None
        for node in self.simulator.nodes:
            if node.storing is not None:
                node.storing.open(FileStorage(self.folder.path, empty=empty))

    def keep_ledgers(self, empty: bool = True) -> None:
        """Keep every party's privacy ledger in the folder.

        A run that restarts from the beginning repeats all its releases.
        """
        assert self.folder is not None
        for name, guard in self._guards().items():
            path = self.folder.path / "ledgers" / f"{name}.jsonl"
            if empty:
                path.unlink(missing_ok=True)
            guard.keep(LedgerFile(path))  # one thread

    def close_ledgers(self) -> None:
        """Close the ledgers at the end: nothing more is released."""
        for guard in self._guards().values():
            guard.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the data and settings for readers of the results."""
        return (*self.federation.notes, *self._damage())

    @property
    def wall_s(self) -> float:
        """Seconds of real time, earlier parts of a resumed run included."""
        return self._wall_before + time.perf_counter() - self._started

    @property
    def clock_s(self) -> float:
        """The run's virtual time in seconds."""
        return self.simulator.now / NANOSECONDS

    @property
    def epochs(self) -> float:
        """Epochs so far; an epoch is N·M party-rows."""
        return self._progress().epochs

    @property
    def fraction(self) -> float:
        """The part of the run that is done, from 0 to 1."""
        return _share(self.federation.training.limit, self.clock_s, self._progress().k, self._progress().epochs)

    @property
    def standing(self) -> Standing:
        """The progress of this run, for display."""
        value = self.rows[-1]["value"] if self.rows else None
        training = self.federation.training
        metric = _metric_of(training.metric, training.validation > 0)
        return Standing(self.fraction, self._progress().k, self.clock_s, self.wall_s, metric, value)

    def principal_summary(self) -> RoleSummary:
        """Return the summary of the coordinating role."""
        return self.simulator.principal.role.summary()

    def _progress(self) -> Counts:
        return self._server.progress

    def _record(self, record: Payload, simulator: Simulator) -> None:
        if isinstance(record, Remark) and self._live is not None:
            self._live.events.add("remark", record.text, record.party)
        if not isinstance(record, Measurement):
            return
        training = self.federation.training
        row = metrics_row(record, training, simulator.now / NANOSECONDS, self.wall_s, simulator.traffic)
        if self._diagnostics:
            simulator.settle()
            row |= self._diagnostics.row([node.role for node in simulator.nodes], record.update)
        self.rows.append(row)
        if self.folder is not None:
            self.folder.append(row)
        self._tracking.row(row)
        if self._live is not None:
            self._live.evaluated(row)

    def _checkpoint_due(self) -> bool:
        pause_s = max(CHECKPOINT_WALL_S, CHECKPOINT_PAUSE * self._saving_s)
        return self._checkpoint_due_by_progress() or time.perf_counter() - self._saved_at >= pause_s

    def _checkpoint_due_by_progress(self) -> bool:
        at = self._checkpoints.timer()
        if at is None:
            progress = self._progress()
            return self._checkpoints.due(progress.k, progress.rows)
        if self.simulator.now < at:
            return False
        self._checkpoints.count = int(self.clock_s / self.federation.plan.checkpoint_every.amount) + 1
        return True

    def _checkpoint(self) -> dict[str, Any]:
        return {
            "simulator": simulator_checkpoint.save(self.simulator),
            "rows": len(self.rows),
            "checkpoints": self._checkpoints.count,
            "wall_s": self.wall_s,
        }

    def timeline(self) -> dict[str, Any]:
        """Return timeline.json: shares of busy, transit and offline of every role in bins of the clock, and speeds."""
        shares = self.simulator.timeline.shares(self.simulator.now)
        return shares | {"speed": self.simulator.speeds.totals()}

    def staleness(self) -> Histogram:
        """Return staleness.json: how often embeddings of each age were used, in bins of `width` updates."""
        return staleness_histogram(self.principal_summary().get("staleness_counts"))

    def summary(self) -> Summary:
        """Return summary.json."""
        setting, simulator = self.federation, self.simulator
        said = {node.role.name: node.role.summary() for node in simulator.nodes}
        return summarise(
            setting.plan,
            self.principal_summary(),
            driver="sim",
            status=self.status,
            note=self.note,
            clock_s=self.clock_s,
            wall_s=self.wall_s,
            rows=self.rows,
            held_out=len(setting.data.y_test),
            commonest=commonest(setting.data.task, setting.data.y_test, setting.training.validation),
            traffic=traffic_fields(simulator.traffic),
            utilisation={node.role.name: node.utilisation(simulator.now) for node in simulator.nodes},
            spent={name: own for name, one in said.items() if name != SERVER and (own := one.get("privacy"))},
            trace_sha256=simulator.trace.hexdigest,
            weights_sha256=weights_digest(one["weights"] for one in said.values()),
            before=setting.before,
        )

    def members(self) -> list[TrainedMember]:
        """Return the trained networks, the server's first; none, if the method does not give its weights."""
        setting, name = self.federation, self.federation.method.name
        tensors: dict[str, dict[str, Array]] = {}
        for node in self.simulator.nodes:
            if isinstance(node.role, Trained):
                tensors |= node.role.trained()
        if not all(party.name in tensors for party in setting.parties):
            return []
        role = self.simulator.principal.role
        scale = role.target_scale() if isinstance(role, Scaling) else (0.0, 1.0)
        server = member_of_server(setting.server, name, tensors.get(SERVER, {}), scale)
        parties = setting.parties
        return [
            server,
            *(member_of_party(one, name, tensors[one.name], setting.data.fitted(one.index)) for one in parties),
        ]


def prepare(
    config: Config,
    data: Partition | None = None,
    out: str | Path | None = None,
    load_data: Callable[..., Partition] = load_partition,
    workers: int | str = 1,
    before: Continuation | None = None,
) -> Run:
    """Prepare a run; everything that can be refused is refused here. `before`: the run that this one continues."""
    check_workers(workers)
    if out is not None:
        RunFolder.refuse_used(out)
    setting = federation(config, data, loading_like(load_data, before), before)
    run = Run(setting, None, workers)  # builds the models, which may also be refused
    if out is not None:
        run.folder = RunFolder.create(out, run.federation.config, before)
        run.keep_files()
    return run


def reopen(
    config: Config,
    folder: str | Path,
    load_data: Callable[..., Partition] = load_partition,
    workers: int | str = 1,
) -> Run:
    """Open a run that continues from its folder's checkpoint."""
    check_workers(workers)
    opened = RunFolder.reopen(folder, config)
    before = kept_continuation(opened.path)
    run = Run(federation(config, None, loading_like(load_data, before), before), opened, workers)
    try:
        run.resume()
    except CheckpointError:
        run.close_ledgers()  # so that a next try, with the right ledgers, can open them
        raise
    return run


def loading_like(load_data: Callable[..., Partition], before: Continuation | None) -> Callable[[Config], Partition]:
    """Return how to load the data of a run that continues another one: encoded and scaled as there."""
    return load_data if before is None else partial(load_data, before=before.fitted())


def check_workers(workers: int | str) -> None:
    """Raise ConfigError for a number of workers that cannot be."""
    if workers != RAY and not (isinstance(workers, int) and workers >= 1):
        raise ConfigError("--workers", workers, f"must be 1 or more, or {RAY!r}")


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one torch thread: roles share the machine, and results must not depend on its cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
