"""The server of a federation in this process: it reads only its labels, makes its role and runs it as a node.

The same runs across organisations (`serve`) and with all others on one machine (`up`).
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from colonnade.algorithms.evaluation import Measurement
from colonnade.algorithms.method import SERVER
from colonnade.algorithms.training import Cadence
from colonnade.config.resolve import make_plan, method_of, parties_of
from colonnade.config.schema import Config, from_dict, read_toml
from colonnade.data import (
    ServerShare,
    load_server_share,
    read_server_share,
    share_without_labels,
)
from colonnade.deployment.own_side import (
    SHARE,
    alignment_of,
    limits_of,
    load_identity,
    members_of,
    refuse_joint,
    stop_on_signals,
)
from colonnade.deployment.terms import SHARED_NETWORK, Terms, shared_digest, shared_part
from colonnade.drivers.files import replace_file
from colonnade.drivers.processes.certificates import expires_in_days
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.metrics import serve_metrics
from colonnade.drivers.processes.node import Keeper, Node
from colonnade.drivers.processes.service import Service
from colonnade.drivers.processes.timeline import picture
from colonnade.drivers.processes.wire import End
from colonnade.protocol.errors import ConfigError, TrainingDiverged
from colonnade.protocol.events import NANOSECONDS
from colonnade.protocol.messages import Payload
from colonnade.results.folder import RunFolder
from colonnade.results.summary import (
    Summary,
    metrics_row,
    staleness_histogram,
    summarise,
    traffic_fields,
    weights_digest,
)

__all__ = ["ServerProcess", "Stalled", "parties_now", "run_id"]

SAY_WAITING_AFTER_S = 5.0
CERTIFICATE_WARNING_DAYS = 14


class ServerProcess(Keeper):
    """The server: its share, its role, its run folder."""

    driver = "processes"
    record: Summary | None = None  # of a run that is over: served again, it is told and left as it is

    def __init__(self, config: Config, out: Path, log: Log) -> None:
        self.config, self.out, self.log = config, out, log
        self.identity, self.pins = load_identity(config), members_of(config)
        self.share = _server_share(config)
        parties = parties_of(config)
        self.plan = plan = make_plan(config, parties, len(self.share.y_train), self.share.task)
        refuse_joint(plan)
        assert plan.method.server is not None
        share = self.share
        if share.absent is not None:
            plan.refuse_lacking()
            lacking = (share.absent[0].sum(0) + share.absent[1].sum(0)).tolist()
            who = ", ".join(f"{name} {count}" for name, count in zip(parties, lacking, strict=True) if count)
            log.info("some lack rows", rows=share.rows, lacking=who)
        role = plan.method.server(plan.server(share.task, share.y_train, share.y_test, share.absent))
        self.folder = _folder(out, config)
        self.record = self.folder.record()
        self.rows: list[dict[str, Any]] = []
        self._checkpoints = Cadence(plan.checkpoint_every, plan.training.rows_per_epoch)
        self.shared = shared_part(config, self.pins)
        self.node = Node(role, plan.method.payloads, out / "state", parties, limits_of(config), log, self)
        terms = Terms(
            self.shared, self.share.rows, self.share.ids_sha256, dict(zip(parties, plan.widths, strict=True))
        )  # fmt: skip
        self.service = Service(
            self.node,
            self.identity,
            self.pins,
            terms,
            self.status,
            admit_late=config.network.admit_late,
            run=run_id(out),
            relay=plan.method.capabilities.peers,
        )
        self._begin_watching()

    def _begin_watching(self) -> None:
        """What is known of the run beside the role."""
        self.address = self.config.network.address
        self._moved_at = time.monotonic()
        self._waiting_said = 0.0
        self._k = 0
        self._rate = 0.0
        self.note = ""

    # What is kept beside the role

    def emitted(self, record: Payload, node: Node) -> None:
        """A row for metrics.jsonl."""
        if isinstance(record, Measurement):
            clock_s = node.now / NANOSECONDS
            row = metrics_row(record, self.plan.training.metric, clock_s, clock_s, node.traffic)
            self.rows.append(row)
            if self.record is not None:
                return  # the row is there already
            self.folder.append(row)
            self.log.info("evaluated", update=record.update, value=row["value"], missing=len(record.missing))

    def checkpoint_due(self, node: Node) -> bool:
        """By updates or epochs; by time the node decides itself."""
        progress = node.role.progress  # type: ignore[attr-defined]
        return self._checkpoints.due(progress.k, progress.rows)

    def save(self) -> dict[str, Any]:
        """What the checkpoint knows of the folder."""
        here = self.service.attendance.save(self.node.clock())
        return {"rows": len(self.rows), "checkpoints": self._checkpoints.count, "here": here}

    def load(self, saved: dict[str, Any] | None) -> None:
        """Cut the folder back to the checkpoint; the log brings the rest again."""
        count = saved["rows"] if saved else 0
        self.rows = self.folder.cut_back(count) if self.record is None else self.folder.rows()[:count]
        self._checkpoints.count = saved["checkpoints"] if saved else 1
        if saved:
            self.service.attendance.load(saved["here"])

    # The life of the process

    async def run(self) -> Any:  # a Summary; an alignment has its own
        """Serve until training ends; the summary."""
        torch.set_num_threads(1)
        stop_on_signals(self.node)
        port, tasks = self.config.network.metrics_port, []
        # First: if the port is taken, nothing has begun and no party has come.
        stop_metrics = serve_metrics(port, self._ask_from_thread()) if port is not None else lambda: None
        try:
            try:
                self.node.open()
                self._refuse_lost_state()
                self.node.jobs.lane.know_clock(self.node.clock())
                self._say_start()
                self.address = await self.service.start(self.wanted_address())
                replace_file(self.out / "address", [self.address.encode()])
                self.log.info("listening", address=self.address, digest=shared_digest(self.shared)[:16])
                tasks = [asyncio.ensure_future(task) for task in (self.node.watch(), self._watch_progress())]
                await self.node.ended.wait()
            finally:
                stop_metrics()
                for task in tasks:
                    task.cancel()
            self._note_timeline()
            status = self._how_it_ended()
        except (Exception, asyncio.CancelledError):  # the parties come back when this server does
            await self.service.hang_up()
            self.node.close()
            raise
        if status != "stopped":
            await self.service.stop(End(status, self.note))
        else:
            await self.service.hang_up()
        summary = self.record or self.summary(status)
        self.node.close()
        if status != "stopped" and self.record is None:
            self._write(summary)
        self._say_end(summary)
        return summary

    def wanted_address(self) -> str:
        """A port that the system chose at the first start is kept: the parties know it."""
        address, path = self.config.network.address, self.out / "address"
        before = path.read_text() if address.endswith(":0") and path.is_file() else ""
        here = before.startswith(address[:-1])  # and not, say, on a node of Ray's
        return before if here else address

    def _refuse_lost_state(self) -> None:
        """A second training would write over the record of the first."""
        if self.record is not None and not self.node.finished and self.node.error is None:
            advice = "holds the record of a run that is over, without its state: choose another --out"
            raise ConfigError("--out", str(self.out), advice)

    def _say_start(self) -> None:
        node = self.node
        if node.finished:
            self.log.info("this run is over; for a new one choose another --out", folder=self.out)
        elif node.replayed or node.now:
            self.log.info("going on", update=node.role.progress.k, replayed=node.replayed)  # type: ignore[attr-defined]
        days = expires_in_days(self.identity)
        if days < CERTIFICATE_WARNING_DAYS:
            self.log.warning("the certificate expires soon", days=days)

    def _say_end(self, summary: Mapping[str, Any]) -> None:
        self.log.info("ended", status=summary["status"], updates=summary["updates"], value=summary["value"])
        for text in summary["warnings"] if summary["status"] != "stopped" else ():
            self.log.warning(text)

    def _how_it_ended(self) -> str:
        error = self.node.error
        if isinstance(error, TrainingDiverged):
            self.note = str(error)
            return "diverged"
        if isinstance(error, Stalled):
            self.note = str(error)
            return "stalled"
        if error is not None:
            raise error
        return "finished" if self.node.finished else "stopped"

    def _write(self, summary: Mapping[str, Any]) -> None:
        counts = self.node.role.summary().get("staleness_counts")
        told = {name: bye.lane for name, bye in self.service.byes.items()}
        timeline = picture((SERVER, *self.node.peers), *self._lanes, told, self._lanes_until)
        self.folder.write_figures(timeline, staleness_histogram(counts))
        self.folder.write_summary(summary)

    def _note_timeline(self) -> None:
        """Before the farewell, which is no part of the training; what the parties did they tell there."""
        self._lanes_until = end = self.node.clock()
        self._lanes = self.node.jobs.lane.shares(end), self.service.attendance.shares(end)

    async def _watch_progress(self) -> None:
        """Say for whom the training waits and for how long; give up when that is hopeless."""
        while True:
            await asyncio.sleep(0.5)
            k = self.node.role.progress.k  # type: ignore[attr-defined]
            waited = time.monotonic() - self._moved_at
            if k != self._k:
                self._rate = (k - self._k) / waited if waited > 0 else 0.0
                self._k, self._moved_at, self._waiting_said = k, time.monotonic(), 0.0
            else:
                self._say_waiting(waited)

    def _say_waiting(self, waited: float) -> None:
        names = self.waits_for()
        absent = [name for name in names if self.node.peers[name].stream is None]
        if waited >= max(SAY_WAITING_AFTER_S, 2 * self._waiting_said) and names:
            self._waiting_said = waited
            fields = {"on": ",".join(names), "absent": ",".join(absent) or "nobody", "s": round(waited)}
            why = self.node.role.summary().get("note")
            self.log.warning("waiting", **fields, **({"why": why} if why else {}))
        if absent and waited > self.config.network.give_up_s:
            self.node.fail(Stalled(f"waited {waited:.0f} s for {', '.join(absent)} (network.give_up_s)"))

    def waits_for(self) -> list[str]:
        """Whom the next step needs and has not."""
        ask = getattr(self.node.role, "waits_for", None)
        return list(ask()) if ask is not None else []

    # For people

    def status(self) -> dict[str, Any]:
        """The live table, as data."""
        node, last = self.node, self.rows[-1] if self.rows else {}
        progress = node.role.progress  # type: ignore[attr-defined]
        waited = time.monotonic() - self._moved_at
        return {
            "protocol": self.plan.method.name,
            "state": node.finished or ("waiting" if waited > SAY_WAITING_AFTER_S else "training"),
            "clock_s": round(node.clock() / NANOSECONDS, 1),
            "updates": progress.k,
            "updates_per_s": round(self._rate, 2),
            "epochs": round(progress.epochs, 3),
            "fraction": self.fraction(),
            "metric": self.plan.training.metric,
            "value": last.get("value"),
            "waits_for": self.waits_for(),
            "waited_s": round(waited, 1),
            "digest": shared_digest(self.shared),
            "parties": self._parties(last.get("staleness") or []),
        }

    def _parties(self, staleness: Sequence[float] = ()) -> list[dict[str, Any]]:
        return parties_now(self.node, staleness)

    def _ask_from_thread(self) -> Callable[[], dict[str, Any]]:
        """`status` for a thread that is not the event loop's."""
        loop = asyncio.get_running_loop()

        async def ask() -> dict[str, Any]:
            return self.status()

        return lambda: asyncio.run_coroutine_threadsafe(ask(), loop).result(timeout=5)

    def fraction(self) -> float:
        """How much of the run is done, from 0 to 1."""
        limit, progress = self.plan.training.limit, self.node.role.progress  # type: ignore[attr-defined]
        clock_s = self.node.clock() / NANOSECONDS
        done = {"seconds": clock_s, "updates": progress.k, "epochs": progress.epochs}[limit.unit]
        return float(min(1.0, done / limit.amount))

    def summary(self, status: str) -> Mapping[str, Any]:
        """summary.json."""
        node, principal, byes = self.node, self.node.role.summary(), self.service.byes
        digests = [principal["weights"], *(byes[name].weights for name in node.peers if name in byes)]
        told = len(byes) == len(node.peers) and all(digests[1:])
        given_up = sum(peer.conversation.lost for peer in node.peers.values())
        return summarise(
            self.plan,
            principal,
            driver=self.driver,
            status=status,
            note=self.note,
            clock_s=node.now / NANOSECONDS,
            wall_s=node.clock() / NANOSECONDS,
            rows=self.rows,
            test_rows=len(self.share.y_test),
            traffic=traffic_fields(node.traffic, given_up),
            utilisation={SERVER: node.utilisation()}
            | {name: byes[name].utilisation for name in node.peers if name in byes},
            spent={name: msgspec.to_builtins(bye.privacy) for name, bye in byes.items() if bye.privacy is not None},
            trace_sha256=node.trace.hexdigest,
            weights_sha256=weights_digest(digests) if told else None,
        )


class Stalled(Exception):
    """Nobody who could move the training on has come back in time."""


def run_id(out: Path) -> str:
    """Tells this run from every other; a server that goes on keeps it."""
    path = out / "run_id"
    if not path.is_file():
        replace_file(path, [secrets.token_hex(16).encode()], 0o600)
    return path.read_text(encoding="ascii")


def _server_share(config: Config) -> ServerShare:
    server, (method, options) = config.server, method_of(config.protocol)
    if method.capabilities.party_labels and server.data is None:
        if server.rows is None:
            advice = f"{method.name}: the parties have the labels; say how many rows all their tables have"
            raise ConfigError("server.rows", None, advice)
        return share_without_labels(
            server.rows,
            options.task,  # type: ignore[attr-defined]
            test_fraction=config.data.test_fraction,
            split_seed=config.data.split_seed,
            test_rows=server.test_rows,
        )
    if server.data is None:
        raise ConfigError("server.data", None, "name the file with the labels")
    if server.data.endswith(SHARE):
        return load_server_share(Path(server.data))
    return read_server_share(
        Path(server.data),
        label=server.label,
        id=server.id,
        aligned=alignment_of(server.aligned, SERVER, "server"),
        parties=parties_of(config),
        test_fraction=config.data.test_fraction,
        split_seed=config.data.split_seed,
        format=server.format,
    )


def _folder(out: Path, config: Config) -> RunFolder:
    """New, or gone on with: then addresses, paths and own limits may have changed, nothing else."""
    if not (out / "config.toml").is_file():
        return RunFolder.create(out, config)
    before, now = from_dict(read_toml(out / "config.toml")), config.network
    own = {key: getattr(before.network, key) for key in now.__struct_fields__ if key not in SHARED_NETWORK}
    network = msgspec.structs.replace(now, **own)
    return RunFolder.reopen(out, msgspec.structs.replace(config, network=network, predict=before.predict))


def parties_now(node: Node, staleness: Sequence[float] = ()) -> list[dict[str, Any]]:
    """The rows of the live table."""
    return [
        {
            "name": peer.name,
            "state": _state_of(peer),
            "steps_per_s": round(peer.rate(), 2),
            "staleness": round(staleness[index], 2) if index < len(staleness) else None,
            "bytes_up": peer.bytes_in,
            "bytes_down": peer.bytes_out,
            "bytes_eval": peer.bytes_evaluation,
            "last_seen_s": round(peer.silent_s(), 1) if peer.met else None,
        }
        for index, peer in enumerate(node.peers.values())
    ]


def _state_of(peer: Any) -> str:
    if peer.stream is not None:
        return "connected"
    if not peer.met and not peer.present:
        return "not here yet"
    return "away" if peer.present else "lost"
