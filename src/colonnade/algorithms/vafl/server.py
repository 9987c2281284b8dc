"""The VAFL server: Alg. 1 lines 8–13 and Alg. 2, with the bounded delay of Sec. 2.3.

Uploads wait in line. When t distinct parties have one in it (t = 1 for `vafl`, all for `sync`), their batches
are taken, rows older than D are asked for anew, and ONE pass over the table's rows gives both gradients.
θ_0 is stepped after that pass; each uploader gets the gradient of its own block.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from colonnade.algorithms.batches import Rows
from colonnade.algorithms.evaluation import EvaluateAll, Evaluated, Evaluation
from colonnade.algorithms.method import ServerSetup
from colonnade.algorithms.progress import EVALUATE_TIMER, Progress
from colonnade.algorithms.table import EmbeddingTable, Staleness
from colonnade.algorithms.vafl.messages import Batch, Embeddings, FreshRequest, Gradient, Query, Step, Stepped
from colonnade.models import Objective, ServerNetwork, aggregated_width, server_module
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError, TrainingDiverged
from colonnade.protocol.events import (
    Effect,
    Event,
    PeerJoined,
    PeerLost,
    Received,
    Send,
    Started,
    TimerFired,
    Work,
    WorkDone,
)
from colonnade.protocol.messages import Array, EvaluationReply, Message, Payload
from colonnade.protocol.seeds import derive

__all__ = ["Request", "Server"]


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A batch in line: it steps θ_0 (`learn`), its gradient is wanted (`reply`), or both."""

    party: int
    step: int
    rows: Rows
    values: Array | None  # kept only where there is no table
    learn: bool
    reply: bool


class Server:
    """Holds θ_0, the labels and the table."""

    def __init__(self, setup: ServerSetup) -> None:
        self.name = "server"
        self._options, self._training, self._parties = setup.options, setup.training, setup.parties
        self._index = {name: index for index, name in enumerate(setup.parties)}
        self._t: int = setup.options.threshold(len(setup.parties))
        self._rows = len(setup.y_train)
        self._seed = derive(setup.training.seed, "layers", self.name)
        objective = Objective(setup.task, setup.y_train)
        inputs = aggregated_width(setup.aggregate, setup.widths)
        module = server_module(setup.model, inputs, setup.task.outputs, derive(setup.training.seed, "init", self.name))
        self.network = ServerNetwork(
            module, setup.training.server_optimiser, objective, setup.aggregate, len(setup.parties)
        )
        self._targets = objective.targets(setup.y_train)
        self._widths = setup.widths
        # Coordinated batches bring all blocks with them: no table is needed.
        self.table = EmbeddingTable(0 if setup.options.coordinated else self._rows, setup.widths)
        self.staleness = Staleness(len(setup.parties))
        self.evaluation = Evaluation(setup.parties, setup.widths, setup.y_test, setup.training.metric)
        self.progress = Progress(setup.training)

        self.present: dict[str, bool] = {}  # parties within reach, in the order of joining
        self.line: list[Request] = []
        self.taken: list[Request] = []  # those that the running step is about
        self.last: dict[int, Request] = {}  # each party's last upload, for queries (†)
        self.asked: dict[str, int] = {}  # parties asked for fresh rows, by request number
        self.requests = 0
        self.working = False
        self.due = "evaluate"  # an evaluation or the end, to come when the parties have applied the step
        self.fresh_rows = 0  # rows asked for anew because of D

    @property
    def k(self) -> int:
        """Updates of θ_0 so far."""
        return self.progress.k

    def handle(self, event: Event, now: int) -> list[Effect]:
        """One event."""
        match event:
            case Received(sender=sender, message=Embeddings() as message):
                return self._embeddings(sender, message)
            case WorkDone(result=Stepped() as result):
                return self._stepped(result)
            case Received(sender=sender, message=Query(step=step)):
                return self._query(sender, step)
            case Received(sender=sender, message=EvaluationReply() as reply):
                return self.evaluation.receive(sender, reply)
            case WorkDone(result=Evaluated() as result):
                return self._evaluated(result)
            case TimerFired(name=name) if name == EVALUATE_TIMER:
                return [*self._evaluate(), *self.progress.evaluation_timer_fired(event)]
            case TimerFired():
                return self._end("time is up")
            case Started():
                return self.progress.timers()
            case PeerJoined(peer=peer):
                self.present[peer] = True
                return self._advance()
            case PeerLost(peer=peer):
                return self._lost(peer)
        raise LocalProtocolError(f"server: no rule for {type(event).__name__}")

    def compute(self, job: Payload) -> Payload:
        """A job, without changing any state."""
        match job:
            case Step(seed=seed, batches=batches):
                passes = [self.network.gradients(batch.h, batch.targets, seed) for batch in batches]
                theta_0 = _mean_over_uploads([p.theta_0 for p in passes], [batch.uploads for batch in batches])
                buffers = self.network.buffers_after_forward()
                return Stepped([p.loss for p in passes], theta_0, [p.h for p in passes], buffers)
            case EvaluateAll():
                return self.evaluation.judge(self.network)
        raise LocalProtocolError(f"server: no job {type(job).__name__}")

    def _embeddings(self, sender: str, message: Embeddings) -> list[Effect]:
        """Alg. 1 l. 8: keep the rows; a batch among them waits in line for its step."""
        party = self._index[sender]
        self._check(sender, message)
        if len(self.table.values):
            self.table.write(party, message.rows, message.values, self.k)
        if message.request:
            if self.asked.get(sender) != message.request:
                return []  # it was given up for lost meanwhile, and the step went on without it
            del self.asked[sender]
            return [] if self.asked else self._start()
        if message.batch:
            kept = None if len(self.table.values) else message.values
            request = Request(party, message.step, message.rows[: message.batch], kept, True, message.reply)
            self.line.append(request)
            self.last[party] = request
        return self._advance()

    def _check(self, sender: str, message: Embeddings) -> None:
        party, rows = self._index[sender], message.rows
        if message.values.shape != (len(rows), self._widths[party]) or message.values.dtype != np.float32:
            raise RemoteProtocolError(
                sender,
                f"embeddings of shape {message.values.shape}, expected ({len(rows)}, {self._widths[party]}) float32",
            )
        numbers = rows.ndim == 1 and rows.dtype == np.int32
        if not numbers or (len(rows) and rows.view(np.uint32).max() >= self._rows):  # negative: huge
            raise RemoteProtocolError(sender, f"row numbers outside 0..{self._rows - 1}")
        if not 0 <= message.batch <= len(rows):
            raise RemoteProtocolError(sender, f"a batch of {message.batch} among {len(rows)} rows")

    def _query(self, sender: str, step: int) -> list[Effect]:
        """Alg. 1 l. 11–13 by themselves (†)."""
        last = self.last.get(self._index[sender])
        if last is None or last.step != step:
            raise RemoteProtocolError(sender, f"queries step {step}, which it has not uploaded")
        self.line.append(Request(last.party, step, last.rows, None, learn=False, reply=True))
        return self._advance()

    def _needed(self) -> int:
        """How many distinct parties a step takes now."""
        if self._options.on_lost == "wait":
            return self._t
        return max(1, min(self._t, len(self.present)))

    def _advance(self) -> list[Effect]:
        """Take the first t distinct parties' requests from the line, if they are there."""
        if self.working or self.taken or self.progress.ending or not self.line or self._judging():
            return []
        first: dict[int, Request] = {}
        for request in self.line:
            first.setdefault(request.party, request)
        needed = self._needed()
        if len(first) < needed:
            return []
        if self.due:
            judging = self._settle()
            return judging if self._judging() else [*judging, *self._advance()]
        self.taken = list(first.values())[:needed]
        self.line = [request for request in self.line if request not in self.taken]
        return self._ask_for_fresh_rows() or self._start()

    def _ask_for_fresh_rows(self) -> list[Effect]:
        """Sec. 2.3: nothing older than D is used; the update process waits for the answers."""
        if self._options.max_delay is None:
            return []
        sends: list[Effect] = []
        rows = np.unique(np.concatenate([request.rows for request in self.taken]))
        old = self.table.ages(rows, self.k) > self._options.max_delay
        for name in self._waited_for():
            party = self._index[name]
            # An uploader's own batch is current: its θ_m has not moved since.
            current = [request.rows for request in self.taken if request.party == party]
            stale = np.setdiff1d(rows[old[:, party]], np.concatenate(current)) if current else rows[old[:, party]]
            if len(stale):
                self.requests += 1
                self.asked[name] = self.requests
                self.fresh_rows += len(stale)
                sends.append(Send(name, FreshRequest(self.requests, stale)))
        return sends

    def _waited_for(self) -> list[str]:
        everyone = self._options.on_lost == "wait"
        return [name for name in self._parties if everyone or name in self.present]

    def _start(self) -> list[Effect]:
        """Gather the batches of the taken requests and run the pass."""
        self.working = True
        if not len(self.table.values):
            batches = [self._coordinated_batch()]
        else:
            batches = [self._table_batch(group) for group in self._groups()]
        rows = sum(len(batch.h) for batch in batches)
        job = Step((self._seed + self.k) % 2**63, batches)
        return [Work(self.k, "step", rows / self._training.batch_size, job)]

    def _coordinated_batch(self) -> Batch:
        requests = sorted(self.taken, key=lambda request: request.party)
        rows = requests[0].rows
        expected = rows.tobytes()
        for request in requests[1:]:
            if request.rows.tobytes() != expected:
                raise RemoteProtocolError(self._parties[request.party], "sent other rows than the round's")
        return Batch(np.concatenate([request.values for request in requests], axis=1), self._targets[rows])

    def _groups(self) -> list[list[Request]]:
        """Taken requests that are about the same rows share one pass."""
        groups: dict[bytes, list[Request]] = {}
        for request in self.taken:
            groups.setdefault(request.rows.tobytes(), []).append(request)
        return list(groups.values())

    def _table_batch(self, group: list[Request]) -> Batch:
        rows = group[0].rows
        for request in group:
            self.table.renewed[rows, request.party] = self.k  # still current: θ_m waits for this very step
        uploaders = [request.party for request in group]
        others = [party for party in range(len(self._parties)) if party not in uploaders]
        self.staleness.add(self.table.ages(rows, self.k), others)
        return Batch(self.table.values[rows], self._targets[rows], len(group))

    def _stepped(self, result: Stepped) -> list[Effect]:
        """Alg. 1 l. 9–10 and 12–13: step θ_0 with the mean gradient (App. D), answer each uploader."""
        self.working = False
        if not all(map(isfinite, result.losses)):
            raise TrainingDiverged(self._divergence())
        groups = [self.taken] if not len(self.table.values) else self._groups()
        replies: list[Effect] = []
        k = self.k  # both sides take the rate η_k of this update
        if any(request.learn for request in self.taken):
            rate = self._training.rule.rate(self._training.server_rate, k)
            self.network.apply(result.theta_0, rate, result.buffers)
            self.progress.count(sum(len(request.rows) for request in self.taken), result.losses)
        for group, h in zip(groups, result.h, strict=True):
            for request in group:
                if request.reply:
                    values = np.ascontiguousarray(h[:, self.table.blocks[request.party]])
                    replies.append(Send(self._parties[request.party], self.answer(request, k, values)))
        self.taken = []
        return [*replies, *self._check_progress(), *self._advance()]

    def answer(self, request: Request, k: int, values: Array) -> Message:
        """Alg. 1 l. 13: what the uploader gets; a method of one's own may answer differently."""
        return Gradient(request.step, k, values)

    def _judging(self) -> bool:
        """A coordinated round waits for a running evaluation, so that all its rows are of one step."""
        return self._options.coordinated and self.evaluation.running

    def _settle(self) -> list[Effect]:
        """Coordinated rounds are judged between two steps, when everyone has applied the last one."""
        reason, self.due = self.due, ""
        return self._end(reason) if reason != "evaluate" else self._evaluate()

    def _divergence(self) -> str:
        who = ", ".join(self._parties[request.party] for request in self.taken)
        return f"server: the loss is not finite at update {self.k} (batch of {who}); lower train.learning_rate"

    def _check_progress(self) -> list[Effect]:
        if self.progress.at_limit():
            self.due = "done"
        elif self.progress.evaluation_due():
            self.due = "evaluate"
        return self._settle() if self.due and not self._options.coordinated else []

    def _evaluate(self) -> list[Effect]:
        return [] if self.evaluation.running or self.progress.ending else self.evaluation.begin(self.present)

    def _end(self, reason: str) -> list[Effect]:
        """One last evaluation, then the end."""
        if self.progress.ending:
            return []
        self.progress.ending = reason
        return [] if self.evaluation.running else self.evaluation.begin(self.present)

    def _evaluated(self, result: Evaluated) -> list[Effect]:
        self.evaluation.running = False
        report = self.progress.report(result, self.staleness.take_means(), self.evaluation.missing)
        return [*report, *self._advance()]

    def _lost(self, peer: str) -> list[Effect]:
        """Go on without it: its rows stay as last seen, and D does not hold for them."""
        self.present.pop(peer, None)
        effects = self.evaluation.lose(peer)
        if self.due:
            return [*effects, *self._settle()]
        if self._options.on_lost == "continue" and self.asked.pop(peer, None) is not None and not self.asked:
            return [*effects, *self._start()]
        return [*effects, *self._advance()]

    def waits_for(self) -> list[str]:
        """Whom the next step still needs: for people."""
        if self.asked:
            return list(self.asked)
        have = {request.party for request in self.line}
        everyone = self._waited_for() or self._parties  # with nobody here, anybody would do
        return [name for name in everyone if self._index[name] not in have]

    def validate(self) -> None:
        """What must hold between any two events."""
        if self.working and not self.taken:
            raise LocalProtocolError("server: a step is running about nothing")
        if self.asked and self.working:
            raise LocalProtocolError("server: a step is running although fresh rows are outstanding")
        parties = [request.party for request in self.taken]
        if len(set(parties)) != len(parties):
            raise LocalProtocolError("server: a party was taken twice for one step")
        if len(self.line) > 2 * len(self._parties):
            raise LocalProtocolError("server: more requests in line than parties can have sent")
        if self.k < int(self.table.renewed.max(initial=0)):
            raise LocalProtocolError("server: a row was renewed in the future")

    def save(self) -> dict[str, Any]:
        """Everything but the labels."""
        return {name: getattr(self, name) for name in _STATE} | {
            "line": [_fields(request) for request in self.line],
            "taken": [_fields(request) for request in self.taken],
            "last": {party: _fields(request) for party, request in self.last.items()},
            "table": self.table.save(),
            "staleness": self.staleness.save(),
            "evaluation": self.evaluation.save(),
            "progress": self.progress.save(),
            "network": self.network.save(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """The reverse of `save`."""
        for name in _STATE:
            setattr(self, name, state[name])
        self.line = [Request(*fields) for fields in state["line"]]
        self.taken = [Request(*fields) for fields in state["taken"]]
        self.last = {party: Request(*fields) for party, fields in state["last"].items()}
        self.table.load(state["table"])
        self.staleness.load(state["staleness"])
        self.evaluation.load(state["evaluation"])
        self.progress.load(state["progress"])
        self.network.load(state["network"])

    def summary(self) -> dict[str, Any]:
        """What the run's summary takes from the server."""
        return {
            "updates": self.k,
            "epochs": self.progress.epochs,
            "staleness": self.staleness.summary(),
            "staleness_counts": self.staleness.counts.tolist(),
            "fresh_rows": self.fresh_rows,
            "waits_for": self.waits_for(),
            "weights": self.network.digest(),
        }


_STATE = ("due", "present", "asked", "requests", "working", "fresh_rows")


def _mean_over_uploads(gradients: list[Array], uploads: list[int]) -> Array:
    """App. D: the sum over the t uploads, divided by t."""
    if len(gradients) == 1:
        return gradients[0]
    mean: Array = np.average(gradients, axis=0, weights=uploads).astype(np.float32)
    return mean


def _fields(request: Request) -> tuple[Any, ...]:
    return (request.party, request.step, request.rows, request.values, request.learn, request.reply)
