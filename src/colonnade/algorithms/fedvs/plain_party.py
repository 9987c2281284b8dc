"""A party of `wait`, `ignore` and `wait-dp`: embed, upload, step; and on to the newest round, wherever it is.

`wait-dp` is the Gaussian mechanism on every row that leaves: its embedding is shrunk to norm C at most, so that
another row in its place would change it by 2C at most (the sensitivity), and noise of deviation σ = 2C/μ is added to
each coordinate; μ is the largest with which one release is (ε′, δ) differentially private.
"""

from typing import Any

import numpy as np

from colonnade.algorithms.encoding import Encoding
from colonnade.algorithms.evaluation import EvaluateRows, Reading, RowsRead
from colonnade.algorithms.fedvs.batches import SegmentWalk
from colonnade.algorithms.fedvs.config import PlainOptions
from colonnade.algorithms.fedvs.holdings import LAST_ROUND
from colonnade.algorithms.fedvs.messages import Gradient, Stepped, Take
from colonnade.algorithms.fedvs.plain_messages import Begin, Embed, Embedded, Upload
from colonnade.algorithms.method import SERVER, PartySetup
from colonnade.algorithms.vafl.messages import LARGEST, are_sane
from colonnade.models import Network, party_module
from colonnade.privacy.gaussian import mu_for
from colonnade.privacy.secret import SecretKey, normal
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
from colonnade.protocol.messages import Array, EvaluationRequest, Message, Payload
from colonnade.protocol.seeds import derive

__all__ = ["PlainParty", "deviation", "shrink"]

EMBEDDING, WAITING, STEPPING = "embedding", "waiting", "stepping"


def deviation(options: PlainOptions) -> float:
    """σ; 0 where nothing is added."""
    return 0.0 if options.epsilon is None else 2 * options.clip / mu_for(options.epsilon, options.delta)


def shrink(values: Array, clip: float) -> Array:
    """By how much each row must shrink to norm `clip` at most: (rows, 1)."""
    norms = np.sqrt(np.square(values, dtype=np.float64).sum(1, keepdims=True))
    factors: Array = np.minimum(1.0, clip / np.maximum(norms, 1e-12)).astype(np.float32)
    return factors


class PlainParty(Encoding):
    """Holds θ_m and its own columns."""

    def __init__(self, setup: PartySetup) -> None:
        self.name, self._index, self._width = setup.name, setup.index, setup.width
        self._options, self._training = setup.options, setup.training
        self._x, self._x_test = setup.train, setup.test
        training, seed = setup.training, setup.training.seed
        module = party_module(setup.model, setup.shape, setup.width, derive(seed, "init", setup.index), setup.name)
        optimiser, regulariser = training.party_optimisers[setup.index], training.regularisers[setup.index]
        self.network = Network(module.to(setup.device), optimiser, regulariser)
        self._walk = SegmentWalk(len(self._x), training, setup.options.K)
        self._seed, self._rate = derive(seed, "layers", setup.index), training.party_rates[setup.index]
        self._sigma = np.float32(deviation(setup.options))
        self._key = SecretKey()

        self.round, self.following = 0, 0  # the one that is embedded or waited for; the newest one
        self.doing = EMBEDDING
        self.jobs = 0
        self.shrunk = np.ones((0, 1), np.float32)
        self.reading = Reading(len(self._x_test))
        self.dropped = self.left_out = 0

    def handle(self, event: Event, now: int) -> list[Effect]:
        """One event."""
        match event:
            case Received(sender=sender, message=message):
                return self.received(sender, message)
            case WorkDone(result=Embedded() as result):
                return self._embedded(result)
            case WorkDone(result=Stepped() as result):
                return self._stepped(result)
            case WorkDone(token=token, result=RowsRead() as result):
                return self.reading.done(token, result, self.network.steps)
            case Started(entropy=entropy):
                self._key.renew(entropy)
                return self._embed()
            case Resumed(entropy=entropy):
                self._key.renew(entropy)
                return []
            case PeerJoined(peer=peer, anew=True) if peer == SERVER:
                cancelled = self.reading.cancel()
                return [*cancelled, *self._embed()] if self.doing == WAITING else cancelled
            case PeerJoined() | PeerLost() | TimerFired():
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
            case Embed(round=round, x=x, noise=noise):
                values = self.network.forward(x, round, self._layer_seed(round))
                if not noise:
                    return Embedded(round, self.encode(values), np.ones((len(values), 1), np.float32))
                factors = shrink(values, self._options.clip)
                seed = self._key.seed("noise", round, noise)
                return Embedded(round, self.encode(self._perturbed(values * factors, seed)), factors)
            case Take(round=round, update=update, x=x, values=values):
                gradient = self.network.backward(x, round, self._layer_seed(round), values)
                return Stepped(update, gradient, self.network.buffers_after_forward())
            case EvaluateRows(number=number, start=start, stop=stop, draw=draw):
                values = self.network.read(self._x_test[start:stop])
                if self._sigma:
                    seed = self._key.seed("test noise", number, start, draw)
                    values = self._perturbed(values * shrink(values, self._options.clip), seed)
                return RowsRead(number, start, self.encode_tests(values))
        raise LocalProtocolError(f"{self.name}: no job {type(job).__name__}")

    def _perturbed(self, values: Array, seed: bytes) -> Array:
        noisy: Array = values + self._sigma * normal(seed, values.size).reshape(values.shape)
        return noisy

    def _layer_seed(self, round: int) -> int:
        return (self._seed + round) % 2**63

    def _embed(self) -> list[Effect]:
        """A whole local step's time is charged here, as in the other methods."""
        self.doing, self.round = EMBEDDING, self.following
        rows = self._walk.rows(self.round)
        noise = self.jobs + 1 if self._sigma else 0
        return [self._work("step", len(rows) / self._training.batch_size, Embed(self.round, self._x[rows], noise))]

    def _work(self, kind: str, amount: float, job: Payload) -> Work:
        self.jobs += 1
        return Work(self.jobs, kind, amount, job)

    def _embedded(self, result: Embedded) -> list[Effect]:
        if not are_sane(self.decode(result.values)):
            raise TrainingDiverged(f"{self.name}: its embeddings have left ±{LARGEST:g}; lower train.learning_rate")
        self.doing, self.shrunk = WAITING, result.shrunk
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
        # DEVIATION: through the clipping, the gradient is that of a fixed factor for each row.
        of_own = values * self.shrunk / np.float32(len(message.summed))  # ∇_{H_n} = ∇_H/|S|
        return [self._work("refine", 0.0, Take(self.round, message.update, self._x[rows], of_own))]

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
        return own | {"reading": self.reading.save(), "network": self.network.save()}

    def load(self, state: dict[str, Any]) -> None:
        """The reverse of `save`."""
        for name in _STATE:
            setattr(self, name, state[name])
        self.reading.load(state["reading"])
        self.network.load(state["network"])

    def summary(self) -> dict[str, Any]:
        """Steps taken, and what went past it."""
        return {
            "steps": self.network.steps,
            "left_out": self.left_out,
            "dropped": self.dropped,
            "weights": self.network.digest(),
        }


_STATE = ("round", "following", "doing", "jobs", "shrunk", "dropped", "left_out")
