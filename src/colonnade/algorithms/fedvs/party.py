"""A FedVS party: Alg. 1 lines 2–10 (once), 14–20, 22–24 and 33–35 (every round).

It shares its data once and its model in every exchange, evaluates the sum of all on the shares that it holds, and
steps when the gradient comes. The lane does, in this order, what is newest: a step, sharing, evaluating; an evaluation
is dropped as soon as the round goes on without it, so that a straggler is never behind.
"""

import hashlib
from typing import Any

import msgspec
import numpy as np

from colonnade.algorithms.fedvs.answered import Answered
from colonnade.algorithms.fedvs.batches import SegmentWalk
from colonnade.algorithms.fedvs.coding import Costs, coded_data, coded_sum
from colonnade.algorithms.fedvs.config import FedvsOptions
from colonnade.algorithms.fedvs.holdings import LAST_ROUND
from colonnade.algorithms.fedvs.messages import (
    Answer,
    CodedSum,
    CodedSummed,
    DataRequest,
    DataShare,
    DataShared,
    Declined,
    FetchData,
    Gradient,
    ModelShare,
    ModelShared,
    Prepared,
    ShareData,
    ShareModel,
    ShareModels,
    Stepped,
    Sum,
    Take,
    WhoHolds,
)
from colonnade.algorithms.fedvs.sharer import Sharer, in_chunks
from colonnade.algorithms.fedvs.side import Side
from colonnade.algorithms.method import SERVER, PartySetup
from colonnade.models import Network, party_module
from colonnade.models.polynomial import Polynomial
from colonnade.privacy.secret import SecretKey
from colonnade.privacy.sharing import Segmentation
from colonnade.protocol.errors import LocalProtocolError, ModelError, RemoteProtocolError, TrainingDiverged
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
from colonnade.protocol.finite import all_finite
from colonnade.protocol.messages import Array, Message, Payload
from colonnade.protocol.role import EVALUATION, RoleSummary
from colonnade.protocol.seeds import derive

__all__ = ["Party", "polynomial_module"]

IDLE, STEPPING, SHARING, SUMMING = "", "step", "share", "sum"  # what is on the lane


def polynomial_module(setup: PartySetup[FedvsOptions]) -> Polynomial:
    """The party's network; refused if it cannot be evaluated on shares."""
    seed = derive(setup.training.seed, "init", setup.index)
    module = party_module(setup.model, setup.shape, setup.width, seed, setup.name)
    if not isinstance(module, Polynomial):
        raise ModelError(
            f"model.party of {setup.name} = {setup.model!r}: fedvs evaluates networks on secret shares, which only a "
            "polynomial one allows; use e.g. 'polynomial:2'"
        )
    return module


class Party:
    """Holds W_n, its own columns, and shares of everybody's."""

    def __init__(self, setup: PartySetup[FedvsOptions]) -> None:
        self.name, self._index, self._width = setup.name, setup.index, setup.width
        options: FedvsOptions = setup.options
        self._options, self._training, self._code = options, setup.training, options.code(setup.parties)
        self._names = setup.names
        self._number = {name: n for n, name in enumerate(setup.names)}
        module = polynomial_module(setup)
        training = setup.training
        optimiser, regulariser = training.party_optimisers[setup.index], training.regularisers[setup.index]
        self.network = Network(module.to(setup.device), optimiser, regulariser)
        self._terms, self._x = len(module.weight), setup.train
        self._degree, self._rate = module.degree, training.party_rates[setup.index]
        self._walk = SegmentWalk(len(setup.train), training, options.K)
        self._costs = Costs(self._code, training.batch_size, setup.width, options.work == "delays")
        self._key = SecretKey()
        self._sharer = Sharer(setup, module.degree, self._key)
        self.w_max = _single(options.least_w_max)  # more, once everybody's number of columns is known
        self._clip()
        self.clipped = 0  # weights, in all steps

        self.training = Side(False, self._walk.cut.length, options.blinding)
        self.testing = Side(True, Segmentation(len(setup.test), options.K).length, options.blinding)
        self.data_seeds = (b"", b"")  # of the own data's masks: as secret as the data that lie beside them
        self.version = -1  # of the own coded data
        self.answered = Answered(self._walk)
        self.doing, self.job, self.jobs = IDLE, 0, 0
        self.to_share = False
        self.to_sum: Sum | None = None
        self.to_take: Gradient | None = None
        self.dropped = self.declined = self.left_out = self.unfinished = 0
        self.aside: list[int] = []  # jobs beside the lane

    @property
    def degree(self) -> int:
        """Of its polynomials."""
        return self._degree

    @property
    def width(self) -> int:
        """h: of its embeddings."""
        return self._width

    def to_predict(self, x: Array) -> tuple[Array, Array, bytes]:
        """Of rows to predict: their coded powers, the weights, and the seed of the weights' rounding.

        The seed is always the same for the same weights, and so is the sum. Test rows are coded in the same way.
        """
        clipped = np.clip(x, -self._options.x_max, self._options.x_max)
        weights = self.network.vector().reshape(-1, self._width).copy()
        rounding = hashlib.sha256(b"prediction" + weights.tobytes()).digest()
        return coded_data(clipped, self._degree, self._options, self.name), weights, rounding

    # Events.

    def handle(self, event: Event, now: int) -> list[Effect]:
        """One event."""
        match event:
            case Received(sender=sender, message=message):
                return self.received(sender, message)
            case WorkDone(token=token, result=result):
                return self._done(token, result)
            case Started(entropy=entropy):
                return self._start(entropy)
            case PeerJoined(peer=peer, anew=True) if peer == SERVER:
                return self._anew()
            case PeerJoined() | PeerLost() | TimerFired():
                return []
            case Resumed(entropy=entropy):
                self._key.renew(entropy)
                return []
        raise LocalProtocolError(f"{self.name}: no rule for {type(event).__name__}")

    def received(self, sender: str, message: Message) -> list[Effect]:
        """One message."""
        if sender == SERVER:
            return self._ordered(message)
        n = self._number.get(sender)
        if n is not None:
            match message:
                case ModelShare():
                    return self._take_model(sender, n, message)
                case DataShare():
                    return self._take_data(sender, n, message)
                case DataRequest():
                    return self._share_again(n)
        raise RemoteProtocolError(sender, f"{self.name} does not expect a {type(message).__name__}")

    def _ordered(self, message: Message) -> list[Effect]:
        match message:
            case ShareModels():
                return self._share_ordered(message)
            case Sum():
                return self._sum_ordered(message)
            case Gradient():
                return self._learn_ordered(message)
            case WhoHolds(round=round, attempt=attempt):
                side = self._side(message.testing)
                return [side.holding(self.clipped)] if side.is_at(round, attempt) else []
            case FetchData(of=of) if set(of) <= set(range(len(self._names))):
                return [Send(self._names[n], DataRequest()) for n in of if n != self._index]
        raise RemoteProtocolError(SERVER, f"{self.name} does not expect a {type(message).__name__}")

    def _done(self, token: int, result: Payload) -> list[Effect]:
        """A job has ended."""
        if token == self.job:
            self.doing = IDLE
        if token in self.aside:
            self.aside = [other for other in self.aside if other != token]
        match result:
            case DataShared():
                return [*self._data_shared(result), *self._next()]
            case ModelShared():
                return [*self._model_shared(result), *self._next()]
            case CodedSummed():
                return [*self._summed(result), *self._next()]
            case Stepped():
                return self._stepped(result)
        raise LocalProtocolError(f"{self.name}: no rule for the result {type(result).__name__}")

    def compute(self, job: Payload) -> Payload:
        """A job, without changing any state."""
        match job:
            case ShareData():
                return self._sharer.share_data(job)
            case ShareModel():
                return self._sharer.share_model(job)
            case CodedSum():
                values = coded_sum(job.x, job.w, job.blinding)
                return CodedSummed(job.round, job.attempt, job.testing, job.summed, values)
            case Take(update=update, x=x, values=values):
                return Stepped(update, self.network.backward(x, -1 - update, 0, values), [])
        raise LocalProtocolError(f"{self.name}: no job {type(job).__name__}")

    # Coded data: Alg. 1 l. 2–10.

    def _start(self, entropy: bytes) -> list[Effect]:
        self._key.renew(entropy)
        self.doing = SHARING
        amount = self._costs.share_data(self._terms, self._walk.cut.length)
        return [self._work("share data", amount, ShareData(-1))]

    def _share_again(self, n: int) -> list[Effect]:
        """Somebody has lost what it held: the same shares once more."""
        if not self._has_shared:
            return []  # all will get them shortly
        amount = self._costs.share_data(self._terms, self._walk.cut.length) / len(self._names)
        return [self._aside("share data", amount, ShareData(n, *self.data_seeds))]

    def _data_shared(self, result: DataShared) -> list[Effect]:
        """Alg. 1 l. 8."""
        if result.to < 0:
            self.data_seeds, self.version = (result.train_seed, result.test_seed), result.version
        effects: list[Effect] = []
        for n, name in enumerate(self._names):
            if n != self._index and result.to in (-1, n):
                effects += in_chunks(name, self.version, result.train[n])
                effects += in_chunks(name, self.version, result.test[n], testing=True)
        if result.to >= 0:
            return effects
        self.training.data.put(self._index, self.version, np.ascontiguousarray(result.train[self._index]))
        self.testing.data.put(self._index, self.version, np.ascontiguousarray(result.test[self._index]))
        self._fit_weights()
        return [*effects, self._prepared()]

    def _take_data(self, sender: str, n: int, message: DataShare) -> list[Effect]:
        """Alg. 1 l. 9."""
        complete = self._side(message.testing).data.take(sender, n, message)
        if not complete or message.testing:
            return []
        self._fit_weights()
        return [self._prepared()] if self._has_shared else []

    @property
    def _has_shared(self) -> bool:
        return self._index in self.training.data.version

    def _fit_weights(self) -> None:
        """Once everybody's number of columns is known: the bound, and what it leaves to the weights."""
        data = self.training.data
        if len(data.held()) == len(self._names):
            terms = sum(data.terms(n) for n in data.held())
            self._options.check_bound(terms, self._degree)
            self.w_max = _single(self._options.largest_w_max(terms, self._degree))

    def _prepared(self) -> Send:
        held, tested = self.training.data.held(), self.testing.exchange.key[0]
        return Send(SERVER, Prepared(held, *self.training.exchange.key, self.answered.position, tested))

    # Sharing the model: Alg. 1 l. 14–20.

    def _side(self, testing: bool) -> Side:
        return self.testing if testing else self.training

    def _share_ordered(self, message: ShareModels) -> list[Effect]:
        """An exchange begins; what was under way for an older one is dropped."""
        side = self._side(message.testing)
        self._check_order(message, side)
        if (message.round, message.attempt) <= side.exchange.key or not self._has_shared:
            self.dropped += 1
            return []
        side.exchange.begin(message)
        if side.testing:
            return [self._evaluation(self._share_job(side))]
        self.answered.weights_of(message.round)
        self.to_share, self.to_sum = True, None
        return [*self._stop_summing(), *self._next()]

    def _check_order(self, message: ShareModels, side: Side) -> None:
        among = message.among
        numbers = sorted(set(among)) == among and set(among) <= set(range(len(self._names))) and self._index in among
        places = 0 < message.places <= side.data.places if side.testing else message.places == self._walk.places
        times = 0 <= message.round < LAST_ROUND and message.attempt >= 0
        if not (numbers and times and places and len(among) >= self._options.least(len(self._names))):
            raise RemoteProtocolError(SERVER, f"an exchange that cannot be: {message!r:.120}")

    def _share_job(self, side: Side) -> ShareModel:
        weights = self.network.vector().reshape(self._terms, self._width).copy()
        return ShareModel(*side.exchange.key, side.testing, weights, side.exchange.blinded_places)

    def _model_shared(self, result: ModelShared) -> list[Effect]:
        """Alg. 1 l. 18; a result for an exchange that is over goes nowhere."""
        side = self._side(result.testing)
        if not side.is_at(result.round, result.attempt):
            self.dropped += 1
            return []
        exchange = side.exchange
        if self._index in exchange.models:
            return []  # shared before this party lost its memory
        exchange.put(self._index, result.version, result.models[self._index], result.blindings[self._index])
        shares = {n: (result.models[n], result.blindings[n]) for n in exchange.among if n != self._index}
        sends: list[Effect] = [
            side.send(self._names[n], ModelShare(*exchange.key, result.version, *share, testing=side.testing))
            for n, share in shares.items()
        ]
        return [*sends, *side.tell_if_complete(self.clipped)]

    def _take_model(self, sender: str, n: int, message: ModelShare) -> list[Effect]:
        """Alg. 1 l. 19; without the sender's data, which come first, its model is of no use."""
        side, data = self._side(message.testing), self.training.data
        if n not in data.held() or not side.exchange.take(sender, n, message, (data.terms(n), self._width)):
            self.dropped += 1
            return []
        return side.tell_if_complete(self.clipped)

    # Evaluating the sum: Alg. 1 l. 22–24.

    def _sum_ordered(self, message: Sum) -> list[Effect]:
        """S is agreed."""
        side = self._side(message.testing)
        if not side.is_at(message.round, message.attempt):
            self.dropped += 1
            return []
        self._check_sum(message, side)
        if self.answered.would_tell_one_apart(side.testing, message) or not side.holds(message):
            return [self._decline(side)]
        self.answered.add(side.testing, message)
        if side.testing:
            return [self._evaluation(side.sum_job(message, self._test_places(message)))]
        self.to_sum = message
        return self._next()

    def _decline(self, side: Side) -> Send:
        self.declined += 1
        return side.send(SERVER, Declined(*side.exchange.key, testing=side.testing))

    def _check_sum(self, message: Sum, side: Side) -> None:
        summed, least = message.summed, self._options.least(len(self._names))
        if len(set(summed)) < max(least, len(summed)) or len(summed) != len(message.versions):
            raise RemoteProtocolError(SERVER, f"a sum over {summed}: {least} parties, each once, are the fewest")
        if not 0 <= message.position < (side.data.places if side.testing else LAST_ROUND):
            raise RemoteProtocolError(SERVER, f"a sum at {message.position}, where there are no rows")

    def _test_places(self, message: Sum) -> Array:
        stop = min(message.position + self.testing.exchange.places, self.testing.data.places)
        return np.arange(message.position, stop)

    def _summed(self, result: CodedSummed) -> list[Effect]:
        side = self._side(result.testing)
        if not side.is_at(result.round, result.attempt):
            self.dropped += 1
            return []
        return [side.send(SERVER, Answer(*side.exchange.key, result.summed, result.values, testing=side.testing))]

    # The local step: Alg. 1 l. 33–35.

    def _learn_ordered(self, message: Gradient) -> list[Effect]:
        """The round is over; whoever was summed steps, whoever still evaluates stops."""
        if message.round != self.training.exchange.key[0] or message.round < self.answered.weights_round:
            self.dropped += 1
            return []
        mine = self._index in message.summed
        if mine:
            self._check_gradient(message)
        self.answered.weights_of(message.round + 1)
        self.to_share, self.to_sum = False, None
        self.to_take = message if mine else None
        self.left_out += not mine
        return [*self._stop_summing(), *self._next()]

    def _check_gradient(self, message: Gradient) -> None:
        rows = self._walk.rows(message.position) if 0 <= message.position < LAST_ROUND else ()
        expected, values = (len(rows), self._width), message.values
        if values.shape != expected or values.dtype != np.float32:
            raise RemoteProtocolError(SERVER, f"gradient of shape {values.shape}, expected {expected} float32")
        if not all_finite(values):
            raise RemoteProtocolError(SERVER, "a gradient that is not finite")

    def _take_job(self, message: Gradient) -> Take:
        rows = self._walk.rows(message.position)
        of_own = message.values / np.float32(len(message.summed))  # ∇_{H_n} = ∇_H/|S|: H is the average over S
        return Take(message.round, message.update, self._x[rows], of_own)

    def _stepped(self, result: Stepped) -> list[Effect]:
        """Alg. 1 l. 34, and W stays within ±W_max: beyond it, sums could leave the field."""
        self.network.apply(result.gradient, self._training.rule.rate(self._rate, result.update))
        if not all_finite(self.network.vector()):
            raise TrainingDiverged(f"{self.name}: its weights are not finite; lower train.learning_rate")
        self.clipped += self._clip()
        return self._next()

    def _clip(self) -> int:
        theta, w_max = self.network.theta, self.w_max
        beyond = int((theta.abs() > w_max).sum())
        if beyond:
            theta.clamp_(-w_max, w_max)
        return beyond

    # The lane.

    def _next(self) -> list[Effect]:
        """What is to be done next, if the lane is free."""
        if self.doing:
            return []
        if self.to_take is not None:
            message, self.to_take, self.doing = self.to_take, None, STEPPING
            job = self._take_job(message)
            return [self._work("step", self._costs.step(len(job.x)), job)]
        if self.to_share:
            self.to_share, self.doing = False, SHARING
            amount = self._costs.share_model(self._terms, self._walk.places, self._options.blinding)
            return [self._work("share", amount, self._share_job(self.training))]
        if self.to_sum is not None:
            order, self.to_sum = self.to_sum, None
            if not self.training.holds(order):
                return [self._decline(self.training)]
            self.doing, coded = SUMMING, self.training.sum_job(order, self._walk.batch(order.position))
            return [self._work("sum", self._costs.coded_sum(*coded.x.shape), coded)]
        return []

    def _stop_summing(self) -> list[Effect]:
        if self.doing != SUMMING:
            return []
        self.doing = IDLE
        self.unfinished += 1
        return [CancelWork(self.job)]

    def _work(self, kind: str, amount: float, job: Payload) -> Work:
        self.jobs += 1
        self.job = self.jobs
        return Work(self.jobs, kind, amount, job)

    def _aside(self, kind: str, amount: float, job: Payload) -> Work:
        self.jobs += 1
        self.aside = [*self.aside, self.jobs]
        return Work(self.jobs, kind, amount, job, aside=True)

    def _evaluation(self, job: Payload) -> Work:
        """Beside the lane, from the committed state."""
        return self._aside(EVALUATION, 0.0, job)

    def _anew(self) -> list[Effect]:
        """The conversation with the server begins anew: it is told what is here, and what is lacking is asked for."""
        if not self._has_shared:
            return []  # still to come
        held = self.training.data.held()
        lacking = [name for name, n in self._number.items() if n not in held]
        return [self._prepared(), *(Send(name, DataRequest()) for name in lacking)]

    def validate(self) -> None:
        """Shares are of those who take part; the weights can be summed."""
        for exchange in (self.training.exchange, self.testing.exchange):
            if not set(exchange.models) <= set(exchange.among) or set(exchange.models) != set(exchange.blindings):
                raise LocalProtocolError(f"{self.name}: shares of somebody who does not share")
        if float(self.network.theta.abs().max()) > self.w_max:
            raise LocalProtocolError(f"{self.name}: a weight has left ±{self.w_max:g}")
        if self.to_sum is not None and not self.training.is_at(self.to_sum.round, self.to_sum.attempt):
            raise LocalProtocolError(f"{self.name}: a sum of another exchange waits")

    def save(self) -> dict[str, Any]:
        """Everything but the columns themselves."""
        return {name: getattr(self, name) for name in _STATE} | {
            "training": self.training.save(),
            "testing": self.testing.save(),
            "answered": self.answered.save(),
            "network": self.network.save(),
            "to_sum": _fields(self.to_sum),
            "to_take": _fields(self.to_take),
        }

    def load(self, state: dict[str, Any]) -> None:
        """The reverse of `save`."""
        for name in _STATE:
            setattr(self, name, state[name])
        self.training.load(state["training"])
        self.testing.load(state["testing"])
        self.answered.load(state["answered"])
        self.network.load(state["network"])
        self.to_sum = None if state["to_sum"] is None else Sum(**state["to_sum"])
        self.to_take = None if state["to_take"] is None else Gradient(**state["to_take"])

    def summary(self) -> RoleSummary:
        """Steps taken, and what went past it."""
        return {
            "steps": self.network.steps,
            "clipped": self.clipped,
            "test_clipped": self._sharer.test_clipped,
            "unfinished": self.unfinished,
            "left_out": self.left_out,
            "declined": self.declined,
            "dropped": self.dropped,
            "weights": self.network.digest(),
        }


def _single(value: float) -> float:
    """The largest float32 that is not above: what a weight can be clipped to."""
    nearest = np.float32(value)
    return float(nearest if float(nearest) <= value else np.nextafter(nearest, np.float32(0)))


def _fields(message: Sum | Gradient | None) -> dict[str, Any] | None:
    return None if message is None else msgspec.structs.asdict(message)


_STATE = (
    *("data_seeds", "version", "doing", "job", "jobs", "to_share", "dropped"),
    *("declined", "left_out", "unfinished", "aside", "clipped", "w_max"),
)
