"""A party of `wait`, `ignore` and `wait-dp`: embed, upload, step; and on to the newest round, wherever it is.

`wait-dp` is the Gaussian mechanism on every row that leaves, to train, to evaluate and to predict: the guard shrinks
the embedding to norm C, adds noise, and enters the release into the ledger before it can leave.
"""

from typing import Any

import numpy as np

from colonnade.algorithms.encoding import Encoding
from colonnade.algorithms.evaluation import EvaluateRows, Reading, RowsRead
from colonnade.algorithms.fedvs.batches import SegmentWalk
from colonnade.algorithms.fedvs.config import PlainOptions
from colonnade.algorithms.fedvs.holdings import LAST_ROUND
from colonnade.algorithms.fedvs.messages import Gradient, Stepped
from colonnade.algorithms.fedvs.plain_messages import Begin, Embed, Embedded, Learn, Upload
from colonnade.algorithms.leaving import Guarded
from colonnade.algorithms.method import SERVER, PartySetup
from colonnade.algorithms.sane import LARGEST, are_sane
from colonnade.models import Network, party_module
from colonnade.privacy.accountant import STEP
from colonnade.privacy.guard import Release
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError, TrainingDiverged
from colonnade.protocol.events import (
    CancelWork,
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
from colonnade.protocol.messages import EvaluationRequest, Message, Payload
from colonnade.protocol.role import RoleSummary
from colonnade.protocol.seeds import derive

__all__ = ["PlainParty"]

EMBEDDING, WAITING, STEPPING = "embedding", "waiting", "stepping"


class PlainParty(Encoding, Guarded):
    """Holds θ_m and its own columns."""

    def __init__(self, setup: PartySetup[PlainOptions]) -> None:
        self.name, self._index, self._width = setup.name, setup.index, setup.width
        self._training = setup.training
        self._x, self._x_test = setup.train, setup.test
        self.guard, self.withdrawn = setup.guard(), ""
        training, seed = setup.training, setup.training.seed
        module = party_module(setup.model, setup.shape, setup.width, derive(seed, "init", setup.index), setup.name)
        optimiser, regulariser = training.party_optimisers[setup.index], training.regularisers[setup.index]
        self.network = Network(self.guard.wrap(module).to(setup.device), optimiser, regulariser)
        self._walk = SegmentWalk(len(self._x), training, setup.options.K)
        self._seed, self._rate = derive(seed, "layers", setup.index), training.party_rates[setup.index]

        self.round, self.following = 0, 0  # the one that is embedded or waited for; the newest one
        self.doing = EMBEDDING
        self.jobs = 0
        self.draw_of_round = 0  # which noise its upload has
        self.reading = Reading(len(self._x_test), self.guard)
        self.dropped = self.left_out = 0

    def handle(self, event: Event, now: int) -> list[Effect]:
        """One event."""
        if self.guard.on and (done := self.guarded(event)) is not None:
            return done
        match event:
            case Received(sender=sender, message=message):
                return self.received(sender, message)
            case WorkDone(result=Embedded() as result):
                return self._embedded(result)
            case WorkDone(result=Stepped() as result):
                return self._stepped(result)
            case WorkDone(token=token, result=RowsRead() as result):
                return self.reading.done(token, result, self.network.steps)
            case Started():
                return self._embed()
            case PeerJoined(peer=peer, anew=True) if peer == SERVER:
                cancelled = self.reading.cancel()
                return [*cancelled, *self._embed()] if self.doing == WAITING else cancelled
            case PeerJoined() | PeerLost() | TimerFired() | Resumed():
                return []
        raise LocalProtocolError(f"{self.name}: no rule for {type(event).__name__}")

    def received(self, sender: str, message: Message) -> list[Effect]:
        """One message."""
        if sender == SERVER:
            match message:
                case Gradient():
                    return self._learn(message)
                case Begin(round=round):
                    return self._go_on(round)
                case EvaluationRequest():
                    return self.reading.begin(message)
        raise RemoteProtocolError(sender, f"{self.name} does not expect a {type(message).__name__}")

    def compute(self, job: Payload) -> Payload:
        """A job, without changing any state."""
        match job:
            case Embed():
                return self.guard.released(job.release, self._embed_rows, job)
            case Learn(release=Release() as release):
                with self.guard.drawing(release):  # the forward pass may have to be made again
                    return self._gradient(job)
            case Learn():
                return self._gradient(job)
            case EvaluateRows():
                return self.guard.released(job.release, self._read, job)
        raise LocalProtocolError(f"{self.name}: no job {type(job).__name__}")

    def _embed_rows(self, job: Embed) -> Embedded:
        values = self.network.forward(job.x, job.round, self._layer_seed(job.round))
        return Embedded(job.round, self.encode(values))

    def _gradient(self, job: Learn) -> Stepped:
        gradient = self.network.backward(job.x, job.round, self._layer_seed(job.round), job.values)
        return Stepped(job.update, gradient, self.network.buffers_after_forward())

    def _read(self, job: EvaluateRows) -> RowsRead:
        values = self.network.read(self._x_test[job.start : job.stop])
        return RowsRead(job.number, job.start, self.encode_tests(values))

    def _layer_seed(self, round: int) -> int:
        return (self._seed + round) % 2**63

    def _embed(self) -> list[Effect]:
        """A whole local step's time is charged here, as in the other methods."""
        self.doing, self.round = EMBEDDING, self.following
        rows = self._walk.rows(self.round)
        release = self.guard.plan("batch", rows)
        self.draw_of_round = self.guard.draws
        return [self._work("step", len(rows) / self._training.batch_size, Embed(self.round, self._x[rows], release))]

    def _work(self, kind: str, amount: float, job: Payload) -> Work:
        self.jobs += 1
        return Work(self.jobs, kind, amount, job)

    def _embedded(self, result: Embedded) -> list[Effect]:
        if not are_sane(self.decode(result.values)):
            raise TrainingDiverged(f"{self.name}: its embeddings have left ±{LARGEST:g}; lower train.learning_rate")
        self.doing = WAITING
        return [Send(SERVER, Upload(self.round, result.values))]

    def _learn(self, message: Gradient) -> list[Effect]:
        """The round is over: a step, if this party was part of it, and on."""
        if message.round != self.round or self.doing == STEPPING:
            return self._go_on(message.round + 1)
        if self._index not in message.summed or self.doing != WAITING:
            self.left_out += 1
            return self._go_on(message.round + 1)
        rows, values = self._walk.rows(self.round), message.values
        if values.shape != (len(rows), self._width) or values.dtype != np.float32:
            expected = (len(rows), self._width)
            raise RemoteProtocolError(SERVER, f"gradient of shape {values.shape}, expected {expected} float32")
        self.doing, self.following = STEPPING, message.round + 1
        of_own = values / np.float32(len(message.summed))  # ∇_{H_n} = ∇_H/|S|
        release = self.guard.again(self.draw_of_round, STEP, rows)
        return [self._work("refine", 0.0, Learn(self.round, message.update, self._x[rows], of_own, release))]

    def _stepped(self, result: Stepped) -> list[Effect]:
        rate = self._training.rule.rate(self._rate, result.update)
        self.network.apply(result.gradient, rate, result.buffers)
        return self._embed()

    def _go_on(self, round: int) -> list[Effect]:
        """On to the newest round; what was begun for an older one is dropped."""
        if not self.round < round < LAST_ROUND or round <= self.following:
            self.dropped += 1
            return []
        self.following = round
        if self.doing == STEPPING:
            return []
        cancelled: list[Effect] = [CancelWork(self.jobs)] if self.doing == EMBEDDING else []
        return [*cancelled, *self._embed()]

    def validate(self) -> None:
        """The newest round is not behind."""
        if self.following < self.round:
            raise LocalProtocolError(f"{self.name}: in round {self.round}, and the newest is {self.following}")

    def save(self) -> dict[str, Any]:
        """Everything but the columns themselves."""
        own = {name: getattr(self, name) for name in _STATE}
        return own | {"reading": self.reading.save(), "network": self.network.save(), "guard": self.guard.save()}

    def load(self, state: dict[str, Any]) -> None:
        """The reverse of `save`."""
        for name in _STATE:
            setattr(self, name, state[name])
        self.reading.load(state["reading"])
        self.network.load(state["network"])
        self.guard.load(state["guard"])

    def summary(self) -> RoleSummary:
        """Steps taken, and what went past it."""
        return {
            "steps": self.network.steps,
            "left_out": self.left_out,
            "dropped": self.dropped,
            "weights": self.network.digest(),
            "privacy": self.guard.summary(),
        }


_STATE = ("round", "following", "doing", "jobs", "draw_of_round", "dropped", "left_out", "withdrawn")
