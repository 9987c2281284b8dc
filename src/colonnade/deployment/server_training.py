"""The server's part of a training: what it keeps in its run folder, and what it reports.

The same code runs across organisations (`serve`), with all roles on one machine (`up`), and on Ray.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from colonnade.algorithms.evaluation import Measurement
from colonnade.algorithms.method import SERVER
from colonnade.algorithms.remarks import Remark
from colonnade.algorithms.training import Cadence
from colonnade.config.schema import Config
from colonnade.deployment.application import Pace, end_of, parties_now
from colonnade.deployment.live import ServerLive
from colonnade.deployment.server_host import SAY_WAITING_AFTER_S, ServerHost
from colonnade.deployment.server_side import ServerSide
from colonnade.deployment.terms import shared_digest
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.node import Keeper, Node
from colonnade.drivers.processes.service import Service
from colonnade.drivers.processes.spans import past_span
from colonnade.drivers.processes.timeline import picture
from colonnade.drivers.processes.wire import End
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.events import NANOSECONDS
from colonnade.protocol.messages import Payload
from colonnade.results.summary import (
    Summary,
    metrics_row,
    staleness_histogram,
    summarise,
    traffic_fields,
    weights_digest,
)
from colonnade.results.track import Tracking
from colonnade.results.verdict import Commonest, commonest

__all__ = ["ServerTraining", "training_server"]


def training_server(config: Config, out: Path, log: Log) -> ServerHost["ServerTraining"]:
    """The server of a training that starts, or continues, in this folder."""
    return ServerHost(ServerTraining(ServerSide(config, out, log)))


class ServerTraining(Keeper):
    """Writes the measurements, the summary and the status of a training."""

    aim = "training"
    service: Service

    def __init__(self, side: ServerSide, driver: str = "processes") -> None:
        self.side, self._driver = side, driver
        self.role, plan = side.role, side.plan
        self.folder = side.folder()
        # Set if the run is over. A server that starts again then only reports the run and leaves its files unchanged.
        self.record: Summary | None = self.folder.record()
        self.rows: list[dict[str, Any]] = []
        self.remarks: dict[str, int] = {}  # on each party, since this process started
        self._tracking = Tracking(side.config, self.folder.path)
        self._checkpoints = Cadence(plan.checkpoint_every, plan.training.rows_per_epoch)
        self.node = side.make_node(self)
        self.shared, self.terms, self.run_id = side.shared, side.terms(side.shared), side.run_id()
        self.relay, network = plan.method.capabilities.peers, side.config.network
        self.admit_late = network.admit_late
        self._live = ServerLive(self, driver)

    def attach(self, service: Service) -> None:
        """Keep the service, because its attendance is part of the checkpoint."""
        self.service = service
        service.live = self._live.answer

    # What is kept beside the role

    def emitted(self, record: Payload, node: Node) -> None:
        """Write a row of metrics.jsonl, or log a remark on a party."""
        if isinstance(record, Remark):
            self.remarks[record.party] = self.remarks.get(record.party, 0) + 1
            self.side.log.warning(record.text, party=record.party)
        elif isinstance(record, Measurement):
            if node.evaluating_since:
                past_span("evaluation", node.evaluating_since, update=record.update)
                node.evaluating_since = 0
            clock_s = node.now / NANOSECONDS
            row = metrics_row(record, self.side.plan.training, clock_s, clock_s, node.traffic)
            self.rows.append(row)
            if self.record is not None:
                return  # the row is there already
            self.folder.append(row)
            self._tracking.row(row)
            missing = len(record.missing)
            self.side.log.info("evaluated", update=record.update, value=row["value"], rows=row["rows"], missing=missing)

    def checkpoint_due(self, node: Node) -> bool:
        """Whether updates or epochs require a checkpoint. The node itself decides by time."""
        progress = self.role.progress
        return self._checkpoints.due(progress.k, progress.rows)

    def save(self) -> dict[str, Any]:
        """What the checkpoint must know about the folder."""
        here = self.service.attendance.save(self.node.clock())
        return {"rows": len(self.rows), "checkpoints": self._checkpoints.count, "here": here}

    def load(self, saved: dict[str, Any] | None) -> None:
        """Cut the folder back to the checkpoint. Replaying the journal writes the rest again."""
        count = saved["rows"] if saved else 0
        self.rows = self.folder.cut_back(count) if self.record is None else self.folder.rows()[:count]
        self._checkpoints.count = saved["checkpoints"] if saved else 1
        if saved:
            self.service.attendance.load(saved["here"])

    # The life of the run

    def opened(self) -> None:
        """Raise ConfigError for a folder without its state; log where the run continues."""
        node = self.node
        if self.record is not None and not node.finished and node.error is None:
            advice = "holds the record of a run that has ended, without its state: choose another --out"
            raise ConfigError("--out", str(self.side.out), advice)
        node.jobs.lane.know_clock(node.clock())
        if node.finished:
            self.side.log.info("this run has ended; for a new run choose another --out", folder=self.side.out)
        elif node.replayed or node.now:
            self.side.log.info("continuing", update=self.update(), replayed=node.replayed)

    @asynccontextmanager
    async def serving(self, address: str, status: Callable[[], dict[str, Any]]) -> AsyncIterator[None]:
        """Log the address, and keep live.json; nothing else is open beside the service."""
        self.side.log.info("listening", address=address, digest=shared_digest(self.shared)[:16])
        if self.record is not None:
            yield
            return
        writing = asyncio.ensure_future(self._live.keep(status))
        try:
            yield
        finally:
            writing.cancel()
            self._live.close()

    def update(self) -> int:
        """The number of updates of the global model."""
        return self.role.progress.k

    def owes(self) -> dict[str, str]:
        """What the parties owe that the next step, or an evaluation, needs."""
        return self.role.owes()

    def ended(self) -> End:
        """Take the timeline before the farewell, which is not part of the training. The parties send theirs in it."""
        self._lanes_until = end = self.node.clock()
        self._lanes = self.node.jobs.lane.shares(end), self.service.attendance.shares(end)
        return end_of(self.node)

    def write(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json and the files that only figures need."""
        if self.record is not None:
            return
        counts = self.role.summary().get("staleness_counts")
        told = {name: bye.lane for name, bye in self.service.byes.items()}
        timeline = picture((SERVER, *self.node.peers), *self._lanes, told, self._lanes_until)
        self.folder.write_figures(timeline, staleness_histogram(counts))
        if summary["status"] == "finished":
            self.side.write_model(tuple(name for name in self.node.peers if name not in self.service.byes))
        self.folder.write_summary(summary)

    def say_end(self, summary: Mapping[str, Any]) -> None:
        """Log the end, with the reasons why the numbers may not be a result."""
        log = self.side.log
        self._tracking.end(summary["status"], None if summary["status"] == "stopped" else summary)
        if self._tracking.note:
            log.warning(self._tracking.note)
        log.info("ended", status=summary["status"], updates=summary["updates"], value=summary["value"])
        for text in summary["warnings"] if summary["status"] != "stopped" else ():
            log.warning(text)

    # For people

    def status(self, pace: Pace) -> dict[str, Any]:
        """The progress of the training."""
        node, progress, last = self.node, self.role.progress, self.rows[-1] if self.rows else {}
        return {
            "protocol": self.side.plan.method.name,
            "state": node.finished or ("waiting" if pace.waited_s > SAY_WAITING_AFTER_S else "training"),
            "updates": progress.k,
            "epochs": round(progress.epochs, 3),
            "fraction": self._fraction(),
            "metric": self.side.plan.training.metric,
            "value": last.get("value"),
            "rows": last.get("rows", ""),  # the rows that the value is of
            "parties": parties_now(node, last.get("staleness") or [], self.remarks),
        }

    def measures(self) -> dict[str, Any]:
        """Nothing beside the status."""
        return {}

    def _fraction(self) -> float:
        """The finished share of the run, from 0 to 1."""
        limit, progress = self.side.plan.training.limit, self.role.progress
        clock_s = self.node.clock() / NANOSECONDS
        done = {"seconds": clock_s, "updates": progress.k, "epochs": progress.epochs}[limit.unit]
        return float(min(1.0, done / limit.amount))

    def _commonest(self) -> Commonest | None:
        """None if the parties have the labels: the zeros on the server are no labels."""
        plan, share = self.side.plan, self.side.share
        if plan.method.capabilities.party_labels:
            return None
        return commonest(share.task, share.y_test, plan.training.validation)

    def summary(self, end: End) -> Mapping[str, Any]:
        """The content of summary.json."""
        if self.record is not None:
            return self.record
        node, plan, byes, principal = self.node, self.side.plan, self.service.byes, self.role.summary()
        digests = [principal["weights"], *(byes[name].weights for name in node.peers if name in byes)]
        told = len(byes) == len(node.peers) and all(digests[1:])
        given_up = sum(peer.conversation.lost for peer in node.peers.values())
        return summarise(
            plan,
            principal,
            driver=self._driver,
            status=end.status,
            note=end.note,
            clock_s=node.now / NANOSECONDS,
            wall_s=node.clock() / NANOSECONDS,
            rows=self.rows,
            held_out=len(self.side.share.y_test),
            commonest=self._commonest(),
            traffic=traffic_fields(node.traffic, given_up),
            utilisation={SERVER: node.utilisation()}
            | {name: byes[name].utilisation for name in node.peers if name in byes},
            spent={name: msgspec.to_builtins(bye.privacy) for name, bye in byes.items() if bye.privacy is not None},
            trace_sha256=node.trace.hexdigest,
            weights_sha256=weights_digest(digests) if told else None,
            before=self.side.before,
        )
