"""A FedVS party: Alg. 1 lines 2–10 (once), 14–20, 22–24 and 33–35 (every round).

The party shares its data once and its model in every exchange. It evaluates the sum over all parties on the shares that
it holds, and steps when the gradient comes. The lane does the newest work first, in this order: a step, sharing,
evaluating. The party drops an evaluation as soon as the round continues without it, so a straggler never falls behind.

With `stale = "allow"`, a share lasts until its party shares again (lasting.py). A party then steps only on a gradient
of the weights that it has.
"""

import hashlib
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from colonnade.algorithms.chassis import PARTY, Chassis, RoleState, Sender, done, job, on
from colonnade.algorithms.fedvs.answered import MOST_SUMS, Answered, furthest_position
from colonnade.algorithms.fedvs.batches import SegmentWalk
from colonnade.algorithms.fedvs.coding import Costs, coded_data, coded_sum, coded_terms
from colonnade.algorithms.fedvs.config import FedvsOptions
from colonnade.algorithms.fedvs.held_out import HeldOut
from colonnade.algorithms.fedvs.holdings import LAST_ROUND, CodedData
from colonnade.algorithms.fedvs.lasting import MULTIPLYING, Lasting
from colonnade.algorithms.fedvs.messages import (
    CHUNK_PLACES,
    Answer,
    Blind,
    Blinded,
    CodedSum,
    CodedSummed,
    CodedTerms,
    CodedTermsMade,
    DataRequest,
    DataShare,
    DataShared,
    Declined,
    FetchData,
    Gradient,
    ModelRequest,
    ModelShare,
    ModelShared,
    OfRows,
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
from colonnade.models.continued import Continued
from colonnade.models.polynomial import Polynomial
from colonnade.privacy.secret import SecretKey
from colonnade.protocol.errors import LocalProtocolError, ModelError, RemoteProtocolError, TrainingDiverged
from colonnade.protocol.finite import all_finite
from colonnade.protocol.messages import Array, Payload
from colonnade.protocol.role import EVALUATION, RoleSummary
from colonnade.protocol.seeds import derive

__all__ = ["Party", "State", "polynomial_module"]

IDLE, STEPPING, SHARING, SUMMING = "", "step", "share", "sum"  # kinds of work on the lane


def polynomial_module(setup: PartySetup[FedvsOptions]) -> Polynomial:
    """The party's network; raises if it cannot be evaluated on shares."""
    seed = derive(setup.training.seed, "init", setup.index)
    module = party_module(setup.model, setup.shape, setup.width, seed, setup.name)
    if not isinstance(module, Polynomial):
        raise ModelError(
            f"model.party of {setup.name} = {setup.model!r}: fedvs evaluates networks on secret shares, so they "
            "must be polynomials; use e.g. 'polynomial:2'"
        )
    return module


def _single(value: float) -> float:
    """The largest float32 that does not exceed `value`: a bound that float32 weights can be clipped to."""
    nearest = np.float32(value)
    return float(nearest if float(nearest) <= value else np.nextafter(nearest, np.float32(0)))


@dataclass(slots=True, kw_only=True)
class State(RoleState):
    """The party's own shares, the lane, and counts for the summary."""

    w_max: float  # weights stay within ±W_max
    data_seeds: tuple[bytes, bytes] = (b"", b"")  # of the own data's masks: as secret as the data
    version: int = -1  # of the party's own coded data
    doing: str = IDLE
    job: int = 0  # token of the job on the lane
    to_share: bool = False
    to_sum: Sum | None = None
    to_take: Gradient | None = None
    clipped: int = 0  # clipped weights, in all steps
    dropped: int = 0
    declined: int = 0
    left_out: int = 0
    unfinished: int = 0


class Party(Chassis[State]):
    """Holds W_n, its own columns, and shares of all parties' columns and models."""

    def __init__(self, setup: PartySetup[FedvsOptions]) -> None:
        options, training, index, names = setup.options, setup.training, setup.index, setup.names
        senders: dict[str, Sender] = {name: PARTY for name in names if name != setup.name}
        # W_max grows once the number of columns of all parties is known.
        super().__init__(setup.name, senders | {SERVER: SERVER}, State(w_max=_single(options.least_w_max)))
        self.options, self.names, self.index, self.width = options, names, index, setup.width
        self.numbers = MappingProxyType({name: n for n, name in enumerate(names)})
        self.code, self.least = options.code(setup.parties), options.least(len(names))
        module = polynomial_module(setup)
        if isinstance(setup.model, Continued):  # trained weights may exceed the least W_max; `_fit_weights` sets it
            self.state.w_max = max(self.state.w_max, float(module.weight.detach().abs().max()))
        optimiser, regulariser = training.party_optimisers[index], training.regularisers[index]
        self.network = Network(module.to(setup.device), optimiser, regulariser)
        self.degree, self.terms, self.x = module.degree, len(module.weight), setup.train
        self.rule, self.rate = training.rule, training.party_rates[index]
        self.walk = SegmentWalk(len(setup.train), training, self.code.segments)
        limbs = options.limbs(setup.parties)
        self.costs = Costs(self.code, training.batch_size, setup.width, options.work == "delays", limbs)
        self.key = SecretKey()
        self.sharer = Sharer(setup, module.degree, self.key)
        self._clip()
        self.held_out = HeldOut(len(setup.test), training.validation, self.code.segments)
        lasts = options.stale == "allow"
        self.training = Side(False, options.blinding, CodedData(self.walk.cut.length), lasts, options.T)
        self.testing = Side(True, options.blinding, CodedData(self.held_out.places))
        self.answered = Answered(self.walk, self.least, self.held_out.edge)
        self.lasting = self._lasting() if lasts else None

    def _lasting(self) -> Lasting:
        return Lasting(
            index=self.index, names=self.names, own_terms=self.terms, width=self.width, options=self.options,
            side=self.training, walk=self.walk, costs=self.costs,
        )  # fmt: skip

    def to_predict(self, x: Array) -> tuple[Array, Array, bytes]:
        """For rows to predict: their coded powers, the weights, and the seed of the weights' rounding.

        The seed is always the same for the same weights, and so is the sum. Test rows are coded in the same way.
        """
        clipped = np.clip(x, -self.options.x_max, self.options.x_max)
        weights = self._weights()
        rounding = hashlib.sha256(b"prediction" + weights.tobytes()).digest()
        return coded_data(clipped, self.degree, self.options, self.name), weights, rounding

    def _weights(self) -> Array:
        return self.network.vector().reshape(self.terms, self.width).copy()

    # Start, resume and join.

    def started(self, entropy: bytes) -> None:
        """Alg. 1 l. 2: share the data."""
        self.key.renew(entropy)
        self._work(SHARING, "share data", self.costs.share_data(self.terms, self.walk.cut.length), ShareData(-1))

    def resumed(self, entropy: bytes) -> None:
        """Masks come from a new key from now on."""
        self.key.renew(entropy)

    def joined(self, peer: str, reset: bool) -> None:
        """Tell a server that may have lost its memory what this party holds, and ask for missing data."""
        if not reset or peer != SERVER or not self._has_shared:
            return
        self._tell_prepared()
        held = self.training.data.held()
        for name, n in self.numbers.items():
            if n not in held:
                self.send(name, DataRequest())

    # Coded data: Alg. 1 l. 2–10.

    @on(DataRequest, PARTY)
    def share_again(self, sender: str, message: DataRequest) -> None:
        """Share the same data again with a party that has lost its share."""
        if not self._has_shared:
            return  # all parties will get their shares soon
        amount = self.costs.share_data(self.terms, self.walk.cut.length) / len(self.names)
        job = ShareData(self.numbers[sender], *self.state.data_seeds)
        self.work("share data", amount, job, aside=True)
        self._share_model_again()

    @job(ShareData)
    def share_data(self, job: ShareData) -> DataShared:
        """Alg. 1 l. 3–7."""
        return self.sharer.share_data(job)

    @done(DataShared)
    def data_shared(self, token: int, result: DataShared) -> None:
        """Alg. 1 l. 8."""
        self._ended(token)
        s, everyone = self.state, result.to < 0
        if everyone:
            s.data_seeds, s.version = (result.train_seed, result.test_seed), result.version
        for n, name in enumerate(self.names):
            if n != self.index and (everyone or n == result.to):
                self.do(in_chunks(name, s.version, result.train[n]))
                self.do(in_chunks(name, s.version, result.test[n], testing=True))
        if everyone:
            for side, shares in ((self.training, result.train), (self.testing, result.test)):
                side.data.put(self.index, s.version, np.ascontiguousarray(shares[self.index]))
            self._fit_weights()
            self._tell_prepared()
        self._next()

    @on(DataShare, PARTY)
    def take_data(self, sender: str, message: DataShare) -> None:
        """Alg. 1 l. 9."""
        complete = self._side(message.testing).data.take(sender, self.numbers[sender], message)
        if not complete or message.testing:
            return
        self._fit_weights()
        if self._has_shared:
            self._tell_prepared()

    @on(FetchData, SERVER)
    def fetch_data(self, sender: str, message: FetchData) -> None:
        """The server names the parties whose data seem to be missing here: ask them."""
        if not set(message.of) <= set(range(len(self.names))):
            raise RemoteProtocolError(SERVER, f"{self.name} does not expect a FetchData")
        for n in message.of:
            if n != self.index:
                self.send(self.names[n], DataRequest())

    @property
    def _has_shared(self) -> bool:
        return self.index in self.training.data.version

    def _fit_weights(self) -> None:
        """Once the number of columns of all parties is known, check the bound and set W_max."""
        data = self.training.data
        if len(data.held()) == len(self.names):
            terms = sum(data.terms(n) for n in data.held())
            self.options.check_bound(terms, self.degree)
            self.state.w_max = _single(self.options.largest_w_max(terms, self.degree))
            self._clip()

    def _tell_prepared(self) -> None:
        held, tested = self.training.data.held(), self.testing.exchange.key[0]
        self.send(SERVER, Prepared(held, *self.training.exchange.key, self.answered.position, tested))

    # Sharing the model: Alg. 1 l. 14–20.

    def _side(self, testing: bool) -> Side:
        return self.testing if testing else self.training

    def _tell(self, to: str, message: OfRows) -> None:
        self.send(to, message, evaluation=message.testing)

    @on(ShareModels, SERVER)
    def share_ordered(self, sender: str, message: ShareModels) -> None:
        """An exchange begins; drop work for an older one."""
        s, side = self.state, self._side(message.testing)
        self._check_order(message, side)
        if (message.round, message.attempt) <= side.exchange.key or not self._has_shared:
            s.dropped += 1
            return
        side.begin(message)
        if side.testing:
            return self._evaluate(self._share_job(side))
        s.to_sum = None
        if self.lasting is not None:
            # DEVIATION: the paper's parties share in every round (Alg. 1 l. 14–18); here a share lasts until a step.
            s.to_share |= not self.lasting.shares
            self.do(self.lasting.ask_for_models())
        else:
            self.answered.weights_of(message.round)
            s.to_share = True
            self._stop_summing(LAST_ROUND)
        self._next()

    def _check_order(self, message: ShareModels, side: Side) -> None:
        among = message.among
        numbers = sorted(set(among)) == among and set(among) <= set(range(len(self.names))) and self.index in among
        # `Answered` relies on this length: a longer chunk could overlap with one that this party answered for.
        longest = min(side.data.places, CHUNK_PLACES)
        places = 0 < message.places <= longest if side.testing else message.places == self.walk.places
        times = 0 <= message.round < LAST_ROUND and 0 <= message.attempt < LAST_ROUND
        furthest = furthest_position(message.round, message.attempt)
        position = 0 <= message.position < furthest if side.lasting else message.position == -1
        awaited = message.awaited
        blinders = sorted(set(awaited)) == awaited and set(awaited) <= set(among)
        enough = len(awaited) > self.options.T if side.lasting else not awaited
        first = message.evaluators
        evaluators = sorted(set(first)) == first and set(first) <= set(awaited)
        known = numbers and times and places and position and blinders and evaluators
        if not (known and enough and len(among) >= self.least):
            raise RemoteProtocolError(SERVER, f"starts an impossible exchange: {message!r:.120}")

    def _share_job(self, side: Side) -> ShareModel:
        weights, exchange, lasting = self._weights(), side.exchange, self.lasting
        if lasting is None:
            return ShareModel(*exchange.key, side.testing, weights, exchange.blinded_places)
        rounding = lasting.rounding(self.state.data_seeds[0])
        if side.testing:
            return ShareModel(*exchange.key, True, weights, exchange.blinded_places, lasting.trained, rounding)
        return lasting.share_job(weights, rounding)

    @job(ShareModel)
    def share_model(self, job: ShareModel) -> ModelShared:
        """Alg. 1 l. 15–17."""
        return self.sharer.share_model(job)

    @done(ModelShared)
    def model_shared(self, token: int, result: ModelShared) -> None:
        """Alg. 1 l. 18: send the shares. A result for an exchange that is over is dropped, unless models last."""
        self._ended(token)
        side = self._side(result.testing)
        if self.lasting is not None and not side.testing:
            self.lasting.unsent = result
        elif not side.is_at(result.round, result.attempt):
            self.state.dropped += 1
        elif self.index not in side.exchange.models:  # if it is there, this party shared before it lost its memory
            self._send_model(side, result)
        self._next()

    def _send_model(self, side: Side, result: ModelShared) -> None:
        exchange, trained = side.exchange, result.trained
        own = result.models[self.index], result.blindings[self.index]
        exchange.put(self.index, result.version, trained, *own)
        for n in exchange.among:
            if n != self.index:
                share = result.models[n], result.blindings[n]
                self._tell(
                    self.names[n], ModelShare(*exchange.key, result.version, *share, trained, testing=side.testing)
                )
        self._report_if_complete(side)

    @on(ModelShare, PARTY)
    def take_model(self, sender: str, message: ModelShare) -> None:
        """Alg. 1 l. 19. Without the sender's data, which come first, its model is useless."""
        n, side, data = self.numbers[sender], self._side(message.testing), self.training.data
        if n not in data.held() or not side.take(sender, n, message, (data.terms(n), self.width)):
            self.state.dropped += 1
            return
        self._report_if_complete(side)
        if side.lasting:
            if message.mark and side.exchange.find(n, message.version) is None:
                self.send(sender, ModelRequest())
            self._next()

    def _report_if_complete(self, side: Side) -> None:
        """Tell the server, once, that all shares are here."""
        if not side.exchange.told and side.is_complete():
            side.exchange.told = True
            self._tell_holding(side)

    def _tell_holding(self, side: Side) -> None:
        made = {} if self.lasting is None else self.lasting.made(side.exchange.position)
        self._tell(SERVER, side.holding(self.state.clipped, made))

    @on(WhoHolds, SERVER)
    def report(self, sender: str, message: WhoHolds) -> None:
        """The time for sharing is over: report the shares that are here."""
        side = self._side(message.testing)
        if side.is_at(message.round, message.attempt):
            self._tell_holding(side)

    # Evaluating the sum: Alg. 1 l. 22–24.

    @on(Sum, SERVER)
    def sum_ordered(self, sender: str, message: Sum) -> None:
        """S is agreed: start this party's sum, or decline."""
        side = self._side(message.testing)
        if not side.is_at(message.round, message.attempt):
            self.state.dropped += 1
            return
        self._check_sum(message, side)
        weights = side.weights(message)
        if weights is not None and self.lasting is None:
            weights = dict.fromkeys(weights, self.answered.weights_round)
        if weights is None or self.answered.would_tell_apart(message, weights):
            return self._decline(side)
        if self.answered.is_full(weights):
            raise RemoteProtocolError(SERVER, f"asks for more than {MOST_SUMS} sums with the same weights")
        self.answered.add(message, weights)
        if side.testing:
            return self._evaluate(side.sum_job(message, self._test_places(message)))
        self.state.to_sum = message
        self._next()

    def _decline(self, side: Side) -> None:
        self.state.declined += 1
        self._tell(SERVER, Declined(*side.exchange.key, testing=side.testing))

    def _check_sum(self, message: Sum, side: Side) -> None:
        summed, least = message.summed, self.least
        if len(set(summed)) < max(least, len(summed)) or len(summed) != len(message.versions):
            raise RemoteProtocolError(
                SERVER, f"asks for a sum over {summed}; it must name {least} or more parties, each once"
            )
        furthest = side.data.places if side.testing else furthest_position(message.round, message.attempt)
        if not 0 <= message.position < furthest:
            raise RemoteProtocolError(SERVER, f"asks for a sum at {message.position}, where there are no rows")
        if not set(side.exchange.awaited) <= set(summed):
            raise RemoteProtocolError(
                SERVER, f"asks for a sum over {summed}; it must include the parties that blind, {side.exchange.awaited}"
            )

    def _test_places(self, message: Sum) -> Array:
        return np.arange(message.position, self.held_out.stop(message.position, self.testing.exchange.places))

    @job(CodedSum)
    def coded_sum(self, job: CodedSum) -> CodedSummed:
        """Eq. (5)."""
        values = coded_sum(job.x, job.w, job.blinding)
        return CodedSummed(job.round, job.attempt, job.testing, job.summed, values)

    @done(CodedSummed)
    def summed(self, token: int, result: CodedSummed) -> None:
        """Alg. 1 l. 23."""
        self._ended(token)
        side = self._side(result.testing)
        if side.is_at(result.round, result.attempt):
            self._tell(SERVER, Answer(*side.exchange.key, result.summed, result.values, testing=side.testing))
        else:
            self.state.dropped += 1
        self._next()

    # The local step: Alg. 1 l. 33–35.

    @on(Gradient, SERVER)
    def learn_ordered(self, sender: str, message: Gradient) -> None:
        """The round is over: a party that was summed steps, and one that still evaluates stops."""
        s = self.state
        if message.round != self.training.exchange.key[0] or message.round < self.answered.weights_round:
            s.dropped += 1
            return
        mine = self.index in message.summed
        if mine:
            self._check_gradient(message)
        s.left_out += not mine
        s.to_sum = None
        if self.lasting is not None:
            self._take_if_exact(message, mine, self.lasting)
        else:
            self.answered.weights_of(message.round + 1)
            s.to_share = False
            s.to_take = message if mine else None
        self._stop_summing(message.position)
        self._next()

    def _take_if_exact(self, message: Gradient, mine: bool, lasting: Lasting) -> None:
        """Step if the sum had the current weights; the newest such gradient replaces a waiting one."""
        s = self.state
        self.answered.weights_round = message.round + 1
        exact = mine and lasting.is_of_these_weights(message)
        if exact and s.doing != STEPPING:
            s.to_take = message
            return
        lasting.skipped += mine
        # The sum did not take the share that was sent before its exchange began. The share may be lost, so make it
        # again.
        busy = s.to_take is not None or s.doing in (STEPPING, SHARING) or s.to_share or lasting.unsent is not None
        if not exact and not busy and lasting.sent[0] < message.round:
            self._share_model_again()

    def _check_gradient(self, message: Gradient) -> None:
        furthest = furthest_position(*self.training.exchange.key)
        if not (0 <= message.position < furthest and 0 <= message.update < LAST_ROUND):
            raise RemoteProtocolError(SERVER, f"a gradient of batch {message.position}, update {message.update}")
        rows = self.walk.rows(message.position)
        expected, values = (len(rows), self.width), message.values
        if values.shape != expected or values.dtype != np.float32:
            raise RemoteProtocolError(SERVER, f"gradient of shape {values.shape}, expected {expected} float32")
        if not all_finite(values):
            raise RemoteProtocolError(SERVER, "a gradient that is not finite")
        if len(message.trained) != (0 if self.lasting is None else len(message.summed)):
            raise RemoteProtocolError(SERVER, f"a gradient of {len(message.trained)} models over {message.summed}")

    def _take_job(self, message: Gradient) -> Take:
        rows = self.walk.rows(message.position)
        of_own = message.values / np.float32(len(message.summed))  # ∇_{H_n} = ∇_H/|S|: H is the average over S
        return Take(message.round, message.update, self.x[rows], of_own)

    @job(Take)
    def take(self, job: Take) -> Stepped:
        """∇_W from ∇_{H_n}."""
        return Stepped(job.update, self.network.backward(job.x, -1 - job.update, 0, job.values), [])

    @done(Stepped)
    def stepped(self, token: int, result: Stepped) -> None:
        """Alg. 1 l. 34. W stays within ±W_max, because beyond it sums could leave the field."""
        self._ended(token)
        lasting = self.lasting
        count = 1 if lasting is None else lasting.missed()
        self.network.apply(result.gradient, count * self.rule.rate(self.rate, result.update))
        if not all_finite(self.network.vector()):
            raise TrainingDiverged(f"{self.name}: its weights are not finite; lower train.learning_rate")
        self.state.clipped += self._clip()
        if lasting is not None:
            lasting.stepped()
            self.state.to_share = True
        self._next()

    def _clip(self) -> int:
        theta, w_max = self.network.theta, self.state.w_max
        beyond = int((theta.abs() > w_max).sum())
        if beyond:
            theta.clamp_(-w_max, w_max)
        return beyond

    # The lane.

    def _next(self) -> None:
        """Start the next job, if the lane is free."""
        s = self.state
        if s.doing:
            return
        if s.to_take is not None:
            message, s.to_take = s.to_take, None
            if self.lasting is not None:
                self.lasting.stepping = message.round
            step = self._take_job(message)
            self._work(STEPPING, "step", self.costs.step(len(step.x)), step)
        elif s.to_share:
            s.to_share = False
            blinding = self.options.blinding and self.lasting is None
            amount = self.costs.share_model(self.terms, self.walk.places, blinding)
            self._work(SHARING, "share", amount, self._share_job(self.training))
        elif self.lasting is not None:
            self._blind_or_multiply(self.lasting)
        elif s.to_sum is not None:
            order, s.to_sum = s.to_sum, None
            if self.training.weights(order) is None:
                return self._decline(self.training)
            coded = self.training.sum_job(order, self.walk.batch(order.position))
            self._work(SUMMING, "sum", self.costs.coded_sum(*coded.x.shape), coded)

    def _work(self, doing: str, kind: str, amount: float, job: Payload) -> None:
        self.state.doing, self.state.job = doing, self.work(kind, amount, job)

    def _ended(self, token: int) -> None:
        """Free the lane, if this was the lane's job."""
        if token == self.state.job:
            self.state.doing = IDLE

    def _stop_summing(self, position: int) -> None:
        """Stop multiplying for this batch or an older one."""
        s, lasting = self.state, self.lasting
        multiplies = lasting is not None and s.doing == MULTIPLYING and lasting.multiplying <= position
        if s.doing == SUMMING or multiplies:
            s.doing = IDLE
            s.unfinished += 1
            self.cancel(s.job)

    # Models that last.

    @on(ModelRequest, PARTY)
    def model_requested(self, sender: str, message: ModelRequest) -> None:
        """A party has lost the model that it held: share again."""
        self._share_model_again()

    def _share_model_again(self) -> None:
        """Share again, because a peer or the server does not have the current share."""
        if self.lasting is not None and self.lasting.shares:
            self.state.to_share = True
            self._next()

    def _blind_or_multiply(self, lasting: Lasting) -> None:
        """Blind, send news, answer or work ahead: the lane is free, and weights and share are the newest."""
        s, task = self.state, lasting.blind()
        if task is None:
            if lasting.has_news:
                self.do(lasting.news())
                self._report_if_complete(self.training)
            if s.to_sum is not None and not lasting.can_answer(s.to_sum):
                s.to_sum = None
                self._decline(self.training)
            if s.to_sum is not None:
                task = lasting.multiply(s.to_sum)
                if task is None:
                    self.send(SERVER, lasting.answer(s.to_sum))
                    s.to_sum = None
            task = task or lasting.ahead(self.answered.position)
        if task is not None:
            self._work(*task)

    @job(Blind)
    def blind(self, job: Blind) -> Blinded:
        """A fresh polynomial that vanishes where sums are read."""
        return self.sharer.blind(job)

    @done(Blinded)
    def blinded(self, token: int, result: Blinded) -> None:
        """Keep the blinding, to send with the model or in the next exchange."""
        self._ended(token)
        if self.lasting is not None:
            self.lasting.blinding = result
        self._next()

    @job(CodedTerms)
    def coded_terms(self, job: CodedTerms) -> CodedTermsMade:
        """Terms of Eq. (5)."""
        values = coded_terms(job.x, job.w, job.ends)
        return CodedTermsMade(job.position, job.numbers, job.versions, values, job.sizes)

    @done(CodedTermsMade)
    def multiplied(self, token: int, result: CodedTermsMade) -> None:
        """Keep the terms until the sum is ordered."""
        self._ended(token)
        if self.lasting is not None:
            self.lasting.multiplied(result)
        self._next()

    def _evaluate(self, job: Payload) -> None:
        """Run an evaluation job beside the lane, from the committed state."""
        self.work(EVALUATION, 0.0, job, aside=True)

    # Checks and summary.

    def validate(self) -> None:
        """Raise if a share is of a party that does not share, or a weight cannot be summed."""
        s = self.state
        for side in (self.training, self.testing):
            exchange = side.exchange
            shared = exchange.named if side.lasting else exchange.models
            if not set(shared) <= set(exchange.among) or set(shared) != set(exchange.blindings):
                raise LocalProtocolError(f"{self.name}: shares of a party that does not share")
        if float(self.network.theta.abs().max()) > s.w_max:
            raise LocalProtocolError(f"{self.name}: a weight has left ±{s.w_max:g}")
        if s.to_sum is not None and not self.training.is_at(s.to_sum.round, s.to_sum.attempt):
            raise LocalProtocolError(f"{self.name}: a sum of another exchange waits")

    def trained(self) -> dict[str, dict[str, Array]]:
        """The network's weights. See `protocol.role.Trained`."""
        return {self.name: self.network.trained()}

    def summary(self) -> RoleSummary:
        """Steps taken, and counts of work that was dropped or left out."""
        s = self.state
        return {
            "steps": self.network.steps,
            "clipped": s.clipped,
            "test_clipped": self.sharer.test_clipped,
            "unfinished": s.unfinished,
            "left_out": s.left_out,
            "skipped": 0 if self.lasting is None else self.lasting.skipped,
            "declined": s.declined,
            "dropped": s.dropped,
            "weights": self.network.digest(),
        }
