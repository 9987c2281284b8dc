"""The VAFL server: Alg. 1 lines 8–13 and Alg. 2, with the bounded delay of Sec. 2.3.

Uploads wait in line. When t distinct parties have one in it (t = 1 for `vafl`, all for `sync`), their batches
are taken, rows older than D are asked for anew, and ONE pass over the table's rows gives both gradients.
θ_0 is stepped after that pass; each uploader gets the gradient of its own block.
"""

from math import isfinite
from typing import Any

import numpy as np

from colonnade.algorithms.batches import Rows
from colonnade.algorithms.encoding import Encoding
from colonnade.algorithms.evaluation import EvaluateAll, Evaluated, Evaluation
from colonnade.algorithms.leaving import Withdrawing, Withdrawn
from colonnade.algorithms.method import ServerSetup
from colonnade.algorithms.progress import EVALUATE_TIMER, Progress
from colonnade.algorithms.table import Staleness, blank
from colonnade.algorithms.table_file import Tabled
from colonnade.algorithms.vafl.line import Line, Request, check_upload, fields
from colonnade.algorithms.vafl.messages import Batch, Embeddings, FreshRequest, Gradient, Query, Skip, Step, Stepped
from colonnade.data.suggest import listing
from colonnade.models import Objective, ServerNetwork, aggregated_width, block_of, server_module, with_party_dropout
from colonnade.models.on_device import on_device
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError, TrainingDiverged
from colonnade.protocol.events import (
    Effect,
    Event,
    PeerJoined,
    PeerLost,
    Received,
    Resumed,
    Send,
    Started,
    TimerFired,
    Work,
    WorkDone,
)
from colonnade.protocol.messages import Array, EvaluationReply, Message, Payload
from colonnade.protocol.role import RoleSummary
from colonnade.protocol.seeds import derive

__all__ = ["Request", "Server", "mean_over_uploads", "seed_of"]


class Server(Encoding, Tabled, Withdrawing):
    """Holds θ_0, the labels and the table."""

    network_type = ServerNetwork

    def __init__(self, setup: ServerSetup[Any]) -> None:
        self.name = "server"
        self._options, self._training, self._parties = setup.options, setup.training, setup.parties
        self._index = {name: index for index, name in enumerate(setup.parties)}
        self._t: int = setup.options.threshold(len(setup.parties))
        self._rows = len(setup.y_train)
        self._seed = derive(setup.training.seed, "layers", self.name)
        objective = Objective(setup.task, setup.y_train)
        inputs = aggregated_width(setup.aggregate, setup.widths)
        module = server_module(setup.model, inputs, setup.task.outputs, derive(setup.training.seed, "init", self.name))
        self._absent = None if setup.absent is None else setup.absent[0]
        module, how = with_party_dropout(
            module, setup.training.party_dropout, setup.widths, setup.aggregate, setup.absent is not None
        )
        self.network = self.network_type(
            module.to(setup.device), setup.training.server_optimiser, objective, how, len(setup.parties)
        )
        on_gpu = setup.device != "cpu"
        self._targets = (
            on_device(objective.targets(setup.y_train), setup.device) if on_gpu else objective.targets_in(setup.y_train)
        )
        self._widths = setup.widths
        # Coordinated batches bring all blocks with them: no table is needed.
        self.table = setup.tables.to_train(0 if setup.options.coordinated else self._rows, setup.widths)
        self.staleness = Staleness(len(setup.parties))
        tests = setup.tables.to_judge(len(setup.y_test), setup.widths)
        self.evaluation = Evaluation(setup.parties, setup.widths, setup.y_test, setup.training.metric, tests)
        self.progress = Progress(setup.training)
        if setup.absent is not None:
            self.evaluation.lack(setup.absent[1])
            if len(self.table):
                self.table.lack(setup.absent[0])

        self.present: dict[str, bool] = {}  # parties within reach, in the order of joining
        self.withdrawn: dict[str, str] = {}
        self.line = Line()
        self.taken: list[Request] = []  # those that the running step is about
        self.last: dict[int, Request] = {}  # each party's last upload, for queries (†)
        self.asked: dict[str, int] = {}  # parties asked for fresh rows, by request number
        self.requests = 0
        self.working = False
        self.due = "evaluate"  # an evaluation or the end, to come when the parties have applied the step
        self.fresh_rows = 0  # rows asked for anew because of D
        self.round = 0  # of coordinated rounds: the first that is not done

    @property
    def k(self) -> int:
        """Updates of θ_0 so far."""
        return self.progress.k

    def handle(self, event: Event, now: int) -> list[Effect]:
        """One event."""
        match event:
            case Received(sender=sender, message=message):
                return self.received(sender, message)
            case WorkDone(result=Stepped() as result):
                return self.stepped(result)
            case WorkDone(result=Evaluated() as result):
                return self._evaluated(result)
            case TimerFired(name=name) if name == EVALUATE_TIMER:
                return [*self._evaluate(), *self.progress.evaluation_timer_fired(event)]
            case TimerFired():
                return self._end("time is up")
            case Started():
                return self.progress.timers()
            case PeerJoined(peer=peer, anew=anew):
                self.join(peer)
                return self._anew(peer) if anew else self._advance()
            case PeerLost(peer=peer):
                return self._lost(peer)
            case Resumed():
                return []
        raise LocalProtocolError(f"server: no rule for {type(event).__name__}")

    def received(self, sender: str, message: Message) -> list[Effect]:
        """One message."""
        if sender in self._index:
            match message:
                case Embeddings():
                    return self._embeddings(sender, self.decoded(sender, message))
                case Query():
                    return self._query(sender, message.step)
                case EvaluationReply():
                    return self.evaluation.receive(sender, self.decoded(sender, message))
                case Withdrawn(why=why):
                    return self.withdraw(sender, why)
        raise RemoteProtocolError(sender, f"server does not expect a {type(message).__name__}")

    def compute(self, job: Payload) -> Payload:
        """A job, without changing any state."""
        match job:
            case Step(seed=seed, batches=batches):
                # BatchNorm's averages take the batches one after the other, as in a loop that accumulates gradients.
                passes = [
                    self.network.gradients(batch.h, batch.targets, seed_of(seed, place), onward=place > 0)
                    for place, batch in enumerate(batches)
                ]
                theta_0 = mean_over_uploads([p.theta_0 for p in passes], [batch.uploads for batch in batches])
                buffers = self.network.buffers_after_forward()
                return Stepped([p.loss for p in passes], theta_0, [p.h for p in passes], buffers)
            case EvaluateAll():
                return self.evaluation.judge(self.network)
        raise LocalProtocolError(f"server: no job {type(job).__name__}")

    def _embeddings(self, sender: str, message: Embeddings) -> list[Effect]:
        """Alg. 1 l. 8: keep the rows; a batch among them waits in line for its step."""
        party = self._index[sender]
        self.check_upload(sender, message)
        if len(self.table):
            self.table.write(party, message.rows, message.values, self.k)
        if message.request:
            if self.asked.get(sender) != message.request:
                return []  # it was given up for lost meanwhile, and the step went on without it
            del self.asked[sender]
            return [] if self.asked else self._start()
        return [*self._line_up(party, message), *self._advance()] if message.batch else self._advance()

    def check_upload(self, sender: str, message: Embeddings) -> None:
        """Refuse what cannot be an upload of this party, before anything is changed."""
        party = self._index[sender]
        check_upload(sender, message, self._rows, self._widths[party])
        if message.batch and self._options.coordinated:
            self._check_round(party, message)

    def _line_up(self, party: int, message: Embeddings) -> list[Effect]:
        """A party's newest batch; what it sent before it no longer waits for."""
        request = self.request_of(party, message)
        self.line.add(request)
        if self._options.coordinated:
            return self._leave_behind()
        self.last[party] = request
        return []

    def request_of(self, party: int, message: Embeddings) -> Request:
        """An upload as it waits in line."""
        rows = message.rows[: message.batch]
        kept = message.values[: message.batch] if self._options.coordinated else None
        return Request(party, message.step, rows, kept, True, message.reply)

    def _leave_behind(self) -> list[Effect]:
        """Coordinated rounds go on at the newest step that anybody is at; who is behind it skips to it.

        Only after somebody lost its memory are steps different.
        """
        newest, behind = self.line.leave_behind(self.round)
        return [Send(self._parties[request.party], Skip(newest)) for request in behind]

    def _check_round(self, party: int, message: Embeddings) -> None:
        """The parties of a coordinated round send the same rows."""
        other = self.line.beside(party)  # all in line wait for one step, with the same rows
        if other is None or other.step != message.step:
            return
        if not np.array_equal(other.rows, message.rows[: message.batch]):
            raise RemoteProtocolError(self._parties[party], f"sent other rows for step {other.step} than the others")

    def _query(self, sender: str, step: int) -> list[Effect]:
        """Alg. 1 l. 11–13 by themselves (†)."""
        last = self.last.get(self._index[sender])
        if last is None or last.step != step:
            raise RemoteProtocolError(sender, f"queries step {step}, which it has not uploaded")
        self.line.add(Request(last.party, step, last.rows, None, learn=False, reply=True))
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
        needed = self._needed()
        if not self.line.has(needed):
            return []
        if self.due:
            judging = self._settle()
            return judging if self._judging() else [*judging, *self._advance()]
        self.taken = self.line.take(needed)
        return self._ask_for_fresh_rows() or self._start()

    def _ask_for_fresh_rows(self) -> list[Effect]:
        """Sec. 2.3: nothing older than D is used; the update process waits for the answers."""
        if self._options.max_delay is None:
            return []
        rows = np.unique(np.concatenate([request.rows for request in self.taken]))
        stale = (self.table.ages(rows, self.k) > self._options.max_delay).any(0)
        names = [name for name in self._waited_for() if stale[self._index[name]]]
        return [effect for name in names for effect in self._ask(name, rows)]

    def _ask(self, name: str, rows: Rows) -> list[Effect]:
        party = self._index[name]
        stale = rows[self.table.ages_of(party, rows, self.k) > self._options.max_delay]
        # An uploader's own batch is current: its θ_m has not moved since.
        current = [request.rows for request in self.taken if request.party == party]
        if current:
            stale = np.setdiff1d(stale, np.concatenate(current))
        if not len(stale):
            return []
        self.requests += 1
        self.asked[name] = self.requests
        self.fresh_rows += len(stale)
        return [Send(name, FreshRequest(self.requests, stale))]

    def _waited_for(self) -> list[str]:
        everyone = self._options.on_lost == "wait"
        return [name for name in self._parties if everyone or name in self.present]

    def _start(self) -> list[Effect]:
        """Gather the batches of the taken requests and run the pass."""
        self.working = True
        groups = self._groups()
        if self._options.coordinated:
            batches = [self._coordinated_batch()]
        else:
            batches = [self._table_batch(group) for group in groups]
        return [self.step_work((self._seed + self.k) % 2**63, batches, groups)]

    def step_work(self, seed: int, batches: list[Batch], groups: list[list[Request]]) -> Work:
        """The job of one update."""
        rows = sum(len(batch.h) for batch in batches)
        return Work(self.k, "step", rows / self._training.batch_size, Step(seed, batches))

    def _coordinated_batch(self) -> Batch:
        requests = sorted(self.taken, key=lambda request: request.party)
        h = np.concatenate([request.values for request in requests], axis=1)
        if self._absent is not None:
            blank(h, self._absent[requests[0].rows], self.table.blocks)
        return Batch(h, self._targets[requests[0].rows])

    def _groups(self) -> list[list[Request]]:
        """Taken requests that are about the same rows share one pass."""
        groups: dict[bytes, list[Request]] = {}
        for request in self.taken:
            groups.setdefault(request.rows.tobytes(), []).append(request)
        return list(groups.values())

    def _table_batch(self, group: list[Request]) -> Batch:
        rows = group[0].rows
        for request in group:
            self.table.renew([request.party], rows, self.k)  # still current: θ_m waits for this very step
        uploaders = [request.party for request in group]
        if self.k % self.staleness.every(len(rows)) == 0:
            self.staleness.add_others(self.table.ages(rows, self.k), uploaders)
        return Batch(self.table.gather(rows), self._targets[rows], len(group))

    def stepped(self, result: Any) -> list[Effect]:
        """Alg. 1 l. 9–10 and 12–13: step θ_0 with the mean gradient (App. D), answer each uploader."""
        self.working = False
        if not all(map(isfinite, result.losses)):
            raise TrainingDiverged(self.divergence())
        k = self.k  # both sides take the rate η_k of this update
        if any(request.learn for request in self.taken):
            rate = self._training.rule.rate(self._training.server_rate, k)
            self.network.apply(result.theta_0, rate, result.buffers)
            self.progress.count(sum(len(request.rows) for request in self.taken), result.losses)
        replies = self.replies(result, self._groups(), k)
        if self._options.coordinated:
            self.round = max(self.round, self.taken[0].step + 1)
            replies += self._leave_behind()
        self.taken = []
        return [*replies, *self._check_progress(), *self._advance()]

    def replies(self, result: Any, groups: list[list[Request]], k: int) -> list[Effect]:
        """What the uploaders of a step are told."""
        return [
            Send(self._parties[request.party], self.answer(request, k, block_of(h, self.table.blocks[request.party])))
            for group, h in zip(groups, result.h, strict=True)
            for request in group
            if request.reply
        ]

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

    def divergence(self) -> str:
        """What is said of a loss that is not finite."""
        who = listing(self._parties[request.party] for request in self.taken)
        return f"server: the loss is not finite at update {self.k} (batch of {who}); lower train.learning_rate"

    def _check_progress(self) -> list[Effect]:
        if self.progress.at_limit():
            self.due = "done"
        elif self.progress.evaluation_due():
            self.due = "evaluate"
        return self._settle() if self.due and not self._options.coordinated else []

    def _lost(self, peer: str) -> list[Effect]:
        """Go on without it: its rows stay as last seen, and D does not hold for them."""
        self.present.pop(peer, None)
        effects = self.evaluation.lose(peer)
        if self.due:
            return [*effects, *self._settle()]
        if self._options.on_lost == "continue" and self.asked.pop(peer, None) is not None and not self.asked:
            return [*effects, *self._start()]
        return [*effects, *self._advance()]

    def _anew(self, peer: str) -> list[Effect]:
        """Nothing of before is still to come from it; a step that has already begun goes on with what it sent."""
        # DEVIATION: the paper's parties never forget. Nobody is sent back: who did goes on from what it has.
        party = self._index[peer]
        self.line.drop(party)
        self.last.pop(party, None)
        effects = self.evaluation.lose(peer)
        if self.asked.pop(peer, None) is not None:
            rows = np.unique(np.concatenate([request.rows for request in self.taken]))
            effects += self._ask(peer, rows) or ([] if self.asked else self._start())
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
        rounds = {request.step for request in self.line} if self._options.coordinated else set()
        if len(rounds) > 1 or any(step < self.round for step in rounds):
            raise LocalProtocolError(f"server: steps {sorted(rounds)} in line for round {self.round}")
        if self.k < self.table.newest():
            raise LocalProtocolError("server: a row was renewed in the future")

    def save(self) -> dict[str, Any]:
        """Everything but the labels."""
        return {name: getattr(self, name) for name in _STATE} | {
            "line": [fields(request) for request in self.line],
            "taken": [fields(request) for request in self.taken],
            "last": {party: fields(request) for party, request in self.last.items()},
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
        self.line = Line(Request(*saved) for saved in state["line"])
        self.taken = [Request(*saved) for saved in state["taken"]]
        self.last = {party: Request(*saved) for party, saved in state["last"].items()}
        self.table.load(state["table"])
        self.staleness.load(state["staleness"])
        self.evaluation.load(state["evaluation"])
        self.progress.load(state["progress"])
        self.network.load(state["network"])

    def summary(self) -> RoleSummary:
        """What the run's summary takes from the server."""
        return {
            "updates": self.k,
            "epochs": self.progress.epochs,
            "staleness": self.staleness.summary(),
            "staleness_counts": self.staleness.histogram(),
            "fresh_rows": self.fresh_rows,
            "waits_for": self.waits_for(),
            "withdrawn": self.withdrawn,
            "weights": self.network.digest(),
            "note": self.table.note(),
        }


_STATE = ("due", "present", "withdrawn", "asked", "requests", "working", "fresh_rows", "round")


def seed_of(seed: int, place: int) -> int:
    """For the random layers: every batch of a step has draws of its own."""
    return derive(seed, place) if place else seed


def mean_over_uploads(gradients: list[Array], uploads: list[int]) -> Array:
    """App. D: the sum over the t uploads, divided by t."""
    if len(gradients) == 1:
        return gradients[0]
    mean: Array = np.average(gradients, axis=0, weights=uploads).astype(np.float32)
    return mean
