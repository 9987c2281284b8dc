"""A party of AsySQN: Alg. 3–5 on its own block, its part in everybody's aggregations, and evaluation.

It draws a batch, has its margins aggregated (Alg. 2), steps on them, and tells the coordinator that it has. While a
step is computed, the margins of the next batches (`ahead`) are already being aggregated. Others' questions are answered
beside all that, with the newest w_ℓ. What is known of a batch when a party it needs is lost is thrown away, and so is
the batch: asking the same rows of the remaining parties would tell the lost one's term as a difference.

Where other parties take part than in an earlier sum over the same rows, a party moves before it contributes again (see
`fence`): it steps once more on the newest margins it has.
# DEVIATION: Alg. 3–5 know no losses. Such a step is one with delayed margins, as the asynchronous analysis has them.

Work is charged by nonzeros (numbers that a pass over the rows touches). 1 is a first-order step of a mean party on a
whole batch: two passes, margins and gradient. A quasi-Newton step has two more passes (curvature) and the recursion of
Alg. 1, four times m·d_ℓ; an answer is one pass. An initiator's own margins are charged with its step.
"""

import hashlib
from typing import Any

import numpy as np

from colonnade.algorithms.asysqn.aggregation import Total
from colonnade.algorithms.asysqn.block import Block
from colonnade.algorithms.asysqn.config import SAGA, SVRG, LinearOptions
from colonnade.algorithms.asysqn.contributor import BATCH, NO_ROWS, ROUND, SNAPSHOT, TESTS, Contributor
from colonnade.algorithms.asysqn.draws import Draws
from colonnade.algorithms.asysqn.estimator import Estimator, OwnNumbersDiverged
from colonnade.algorithms.asysqn.messages import (
    Abandon,
    Ask,
    Begin,
    Differs,
    Diverged,
    FullPass,
    FullPassed,
    Held,
    Hello,
    Hold,
    Judge,
    Judged,
    JudgeTests,
    Margins,
    MarginsMade,
    Masked,
    Masks,
    Members,
    Release,
    Round,
    Step,
    StepMade,
    Stepped,
    Take,
    Taken,
    Totals,
)
from colonnade.algorithms.batches import Walk
from colonnade.algorithms.method import SERVER, PartySetup
from colonnade.protocol.errors import DataError, LocalProtocolError, RemoteProtocolError, TrainingDiverged
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
from colonnade.protocol.role import RoleSummary

__all__ = ["Party"]

NONE = np.zeros(0)


class Party(Contributor):
    """Holds w_ℓ, its own columns and the labels."""

    def __init__(self, setup: PartySetup[LinearOptions]) -> None:
        super().__init__(setup)
        options, training = setup.options, setup.training
        self.estimator = Estimator(self._held, options)
        path = ("batches",) if options.synchronous else ("batches", setup.index)
        batches = Draws if options.estimator == SAGA else Walk
        self._walk = batches(self._block.rows, training.batch_size, training.seed, *path)

        self.begun = False
        self.ready: list[tuple[int, Array, int, tuple[int, ...]]] = []  # position, θ, clock, members
        self.lane = 0  # the token of the job on the lane
        self.stepping: tuple[int, Array, int, tuple[int, ...]] = (0, NONE, 0, ())  # on the lane, as in `ready`
        self.moving = False  # that step is one more on the newest margins
        self.newest: tuple[int, Array] = (0, NONE)  # position and θ of the newest step that changed w_ℓ
        self.moves = 0  # such steps
        self.position = 0  # of the next batch
        self.holding = 0  # the barrier that this party rests at
        self.round = 0  # synchronous twins: the newest that was announced
        self.initiates = False  # it aggregates for all
        self.left: Diverged | None = None  # why this party takes part no more
        self.early: tuple[int, Array] = (0, NONE)  # margins of a round that was not yet announced

    # Events.

    def handle(self, event: Event, now: int) -> list[Effect]:
        """One event."""
        match event:
            case Received(sender=sender, message=message):
                return self._told(message) if sender == SERVER else self._heard(sender, message)
            case WorkDone(token=token, result=MarginsMade() as result):
                return self._contributed(token, result, now)
            case WorkDone(result=StepMade() as result):
                return self._stepped(result)
            case WorkDone(result=FullPassed() as result):
                return self._referred(result)
            case WorkDone(result=Judged() as result):
                return self._judged(result)
            case WorkDone(result=Diverged() as result):
                return self._leave(result)
            case TimerFired(name=name):
                return self._lose_patience(name)
            case Started(entropy=entropy):
                self._key.renew(entropy)
                return [self._hello()]
            case Resumed(entropy=entropy):
                self._key.renew(entropy)
                return []
            case PeerJoined(peer=peer, anew=anew):
                return self._joined(peer) if anew else []
            case PeerLost():
                return []  # the coordinator says who takes part
        raise LocalProtocolError(f"{self.name}: no rule for {type(event).__name__}")

    def _told(self, message: Message) -> list[Effect]:
        """What the coordinator says."""
        match message:
            case Differs(labels_sha256=digest, cause=cause):
                return self._differs(digest, cause)
            case Begin(unit=unit, members=members):
                return self._begin(unit, members)
            case Members(members=members):
                self._check_members(members)
                return self._regroup(members, set())
            case Hold(barrier=barrier) if self._options.estimator == SVRG:
                return self._hold(barrier)
            case Take(barrier=barrier) if self._options.estimator == SVRG:
                return self._gather(SNAPSHOT, barrier) if barrier == self.holding else []
            case Release(barrier=barrier) if self._options.estimator == SVRG:
                return self._release(barrier)
            case Round() if self._options.synchronous:
                return self._round(message)
            case Judge():
                return self._judge(message)
        raise RemoteProtocolError(SERVER, f"{self.name} does not expect a {type(message).__name__}")

    def _heard(self, sender: str, message: Message) -> list[Effect]:
        """What another party says."""
        if sender in self._names and sender != self.name:
            other = self._names.index(sender)
            match message:
                case Ask():
                    return self._answer(other, message)
                case Masked() | Masks():
                    return self._sum(other, message)
                case Abandon(nonce=nonce):
                    self.sums.drop(other, nonce)
                    self.held.pop((other, nonce), None)
                    return []
                case Totals():
                    return self._totals(sender, message)
        raise RemoteProtocolError(sender, f"{self.name} does not expect a {type(message).__name__}")

    def compute(self, job: Payload) -> Payload:
        """A job, without changing any state; that it leads nowhere is a result, too."""
        try:
            return self._compute(job)
        except TrainingDiverged as error:
            own = isinstance(job, Margins) or isinstance(error, OwnNumbersDiverged)  # margins that do not fit
            return Diverged(str(error), own)

    def _compute(self, job: Payload) -> Payload:
        match job:
            case Margins():
                return self._margins(job)
            case Step():
                rate = self._training.rule.rate(self._rate, self.estimator.steps * len(self._names))
                return self.estimator.step(job, rate)
            case FullPass(theta=theta):
                return self.estimator.full_pass(theta)
            case JudgeTests(number=number, theta=theta):
                return Judged(number, *self._held.judge(theta, self._training.metric))
        raise LocalProtocolError(f"{self.name}: no job {type(job).__name__}")

    @property
    def _rate(self) -> float:
        return self._training.party_rates[self._index]

    def _hello(self) -> Effect:
        tests = self._tests.rows
        return Send(SERVER, Hello(self._held.digest, self._block.rows, tests, self._block.nonzeros))

    def _differs(self, digest: str, cause: str) -> list[Effect]:
        """The coordinator refuses labels; if they were mended meanwhile, say hello again."""
        if digest == self._held.digest:
            raise DataError(f"{cause}; then start this party again")
        return [self._hello()]

    def _is_wanted(self, what: str, number: int) -> bool:
        """Whether an own aggregation still has a purpose, and the parties that it takes."""
        match what:
            case "tests":
                return number == self.judging
            case "snapshot":
                return number == self.holding and self._can_train
            case "round":
                return number == self.round and self._can_train
        return self.begun and not self.holding and self._can_train

    @property
    def _can_train(self) -> bool:
        return len(self.members) >= self._options.fewest(len(self._names)) and self._index in self.members

    def _use(self, what: str, number: int, total: Total) -> list[Effect]:
        if what == BATCH:
            self.ready = [*self.ready, (number, total.theta, total.clock, total.members)]
            return self._advance()
        totals = Totals(number if what == SNAPSHOT else 0, number if what == ROUND else 0, total.theta)
        sends: list[Effect] = [Send(self._names[m], totals) for m in self.members if m != self._index]
        return [*sends, *self._start(totals)]

    # Steps: Alg. 3 l. 2–6, Alg. 4 l. 5–9, Alg. 5 l. 3–8.

    def _begin(self, unit: float, members: list[int]) -> list[Effect]:
        """Train; a party that trains already only hears who else does."""
        self._check_members(members)
        if not unit > 0:
            raise RemoteProtocolError(SERVER, f"a unit of {unit} nonzeros")
        self.unit, self.begun = unit, True
        effects = self._regroup(members, set())
        if self.estimator.wants_reference and not self.lane:
            return [*effects, self._full_pass(np.zeros(0))]
        return effects

    def _check_members(self, members: list[int]) -> None:
        if members != sorted(set(members)) or not all(0 <= member < len(self._names) for member in members):
            raise RemoteProtocolError(SERVER, f"says that parties {members} take part")

    def _regroup(self, members: list[int], renewed: set[int]) -> list[Effect]:
        """Other parties take part from now on: abandon sums over the former ones, which would never be complete."""
        gone = (set(self.members) - set(members)) | renewed
        same = self.members == tuple(members)
        self.members = tuple(members)
        self.sums.drop_of(gone - {self._index})
        self.held = {key: ask for key, ask in self.held.items() if key[0] not in gone or ask.tests}
        hit = []
        for nonce, (what, _) in self.own.items():
            over = self.sums.sums[self._index, nonce].members
            if what != TESTS and (over != self.members or renewed & set(over)):  # of tests the coordinator decides
                hit.append(nonce)
        return [*self._abandon(hit, redo=(SNAPSHOT,) if same else ()), *self._advance()]

    def _advance(self) -> list[Effect]:
        """Whatever can be done next: answers that were held, an own sum that was, a step, the next batches."""
        effects = self._answer_held() if self.held else []
        effects += [*self._unblock(), *self._next_batches()]
        if self.blocked[0] or self._must_move:
            effects += self._move_first()
        return effects

    def _unblock(self) -> list[Effect]:
        """Begin the own aggregation that had to wait, unless it still has to."""
        what, number = self.blocked
        wanted = bool(what) and self._is_wanted(what, number)
        if wanted and self._obstacle(self._index, self._own_share(what, number)):
            return []
        self.blocked = "", 0
        return self._gather(what, number) if wanted and what != BATCH else []

    def _next_batches(self) -> list[Effect]:
        """The next step, if its margins are there; and the margins of the next batches."""
        if self._options.synchronous or not self.begun or self.holding or self.estimator.wants_reference:
            return []
        effects: list[Effect] = []
        if self.ready and not self.lane:
            batch, *self.ready = self.ready
            effects.append(self._step(*batch))
        if self._can_train:
            for _ in range(1 + self._options.ahead - self._under_way()):
                if self._obstacle(self._index, self._own_share(BATCH, self.position)):
                    self.blocked = BATCH, self.position
                    break
                effects += self._gather(BATCH, self.position)
                self.position += 1
        return effects

    def _move_first(self) -> list[Effect]:
        """One more step on the newest margins: it needs no aggregation, so it cannot wait for another party.

        At a barrier, too: w^s of Alg. 4 l. 3 is where each party is when it contributes to the snapshot.
        """
        position, theta = self.newest
        if self.lane or self.ready or not self.begun or self.estimator.wants_reference or not len(theta):
            return []  # it moves anyway, or when it may; w_ℓ = 0 tells nothing, and has nothing to wait for
        self.moving, self.moves = True, self.moves + 1
        return [self._step(position, theta)]

    def _under_way(self) -> int:
        """Batches between their first margin and their step's end."""
        asked = sum(what == BATCH for what, _ in self.own.values())
        begun = sum(what == BATCH for what, *_ in self.asides.values())
        return asked + begun + len(self.ready) + bool(self.lane and not self.moving)

    def _step(self, position: int, theta: Array, clock: int = 0, members: tuple[int, ...] = ()) -> Effect:
        rows = self._walk.batch(position)
        self.stepping = position, theta, clock, members
        passes = 2.0 if self.initiates or not self._options.synchronous else 1.0  # the margins were an answer
        if self._options.memory and self._options.curvature == "batch":
            passes += 2.0
        recursion = 4.0 * len(self.estimator.memory) * self._block.columns / self._batch_cost
        return self._work("step", self._amount(passes, rows) + recursion, Step(rows, theta))

    def _work(self, kind: str, amount: float, job: Payload) -> Effect:
        self.jobs += 1
        self.lane = self.jobs
        return Work(self.jobs, kind, amount, job)

    def _cancel_lane(self) -> list[Effect]:
        if not self.lane:
            return []
        cancelled, self.lane, self.moving = self.lane, 0, False
        return [CancelWork(cancelled)]

    def _stepped(self, made: StepMade) -> list[Effect]:
        """w_ℓ ← w_ℓ − γd_ℓ."""
        position, theta, clock, members = self.stepping
        rows = self._walk.batch(position)
        self.estimator.learn(rows, made)
        if made.s.any():
            self.fence.moved()
            self.newest = position, theta
        elif self.moving:
            self.newest = 0, NONE  # these margins do not move it; other ones may
        told: list[Effect] = []
        if not self.moving:  # one more step on margins that were counted is no update
            number = self.round if self._options.synchronous else 0
            told.append(Send(SERVER, Stepped(number, len(rows), self.estimator.steps, clock, list(members))))
        if self.holding:
            told.append(Send(SERVER, Held(self.holding)))
        moving, self.lane, self.moving = self.moving, 0, False
        early = self._take_early() if moving else []  # margins of the round may have come meanwhile
        return [*told, *early, *self._advance()]

    # SVRG's barrier: Alg. 4 l. 3, 10.

    def _hold(self, barrier: int) -> list[Effect]:
        """Rest after the running step; batches that wait for theirs are thrown away."""
        if barrier < 1:
            raise RemoteProtocolError(SERVER, f"barrier {barrier}")
        effects: list[Effect] = []
        if self.holding or self.estimator.wants_reference:  # an earlier full pass
            effects = self._cancel_lane()
        self.holding, self.ready, self.blocked = barrier, [], ("", 0)
        effects += self._abandon([nonce for nonce, (what, _) in self.own.items() if what != TESTS])
        return effects if self.lane else [*effects, Send(SERVER, Held(barrier))]

    def _release(self, barrier: int) -> list[Effect]:
        """No snapshot this time: go on with the one before."""
        if barrier != self.holding:
            return []  # it has the snapshot already
        effects = self._abandon([nonce for nonce, (what, _) in self.own.items() if what != TESTS])
        effects += self._cancel_lane()
        self.holding, self.blocked = 0, ("", 0)
        return [*effects, *self._advance()]

    def _totals(self, sender: str, message: Totals) -> list[Effect]:
        """θ that another party aggregated for all."""
        rows = self._block.rows if message.barrier else len(self._walk.batch(max(message.round, 0)))
        values = message.values
        if values.shape != (rows,) or values.dtype != np.float64 or not all_finite(values):
            raise RemoteProtocolError(sender, f"margins of shape {values.shape}, expected ({rows},) finite numbers")
        if not message.barrier and not self._options.synchronous:
            raise RemoteProtocolError(sender, "margins of a round, in a method without rounds")
        return self._start(message)

    def _start(self, totals: Totals) -> list[Effect]:
        """The lane's job on margins that all use."""
        if totals.barrier:
            if totals.barrier != self.holding or self.lane:
                self.dropped += 1
                return []
            return [self._full_pass(totals.values)]
        self.early = totals.round, totals.values  # the coordinator's word for it may be still to come
        return self._take_early()

    def _full_pass(self, theta: Array) -> Effect:
        return self._work("gradient", self._amount(1, NO_ROWS, whole=True), FullPass(theta))

    def _referred(self, passed: FullPassed) -> list[Effect]:
        """The reference is there: on with the batches."""
        self.lane = 0
        self.estimator.refer(passed)
        barrier, self.holding = self.holding, 0
        told: list[Effect] = [Send(SERVER, Taken(barrier))] if barrier else []
        return [*told, *self._take_early(), *self._advance()]

    # Synchronous twins.

    def _round(self, message: Round) -> list[Effect]:
        """The next round: whatever is left of an earlier one is dropped."""
        if message.number < 1 or not 0 <= message.initiator < len(self._names):
            raise RemoteProtocolError(SERVER, f"a round that cannot be: {message!r}")
        effects = self._abandon([nonce for nonce, (what, _) in self.own.items() if what != TESTS])
        if not self.estimator.wants_reference:
            effects += self._cancel_lane()
        self.blocked = "", 0
        self.round, self.holding, self.initiates = message.number, 0, message.initiator == self._index
        if message.initiator == self._index:
            return [*effects, *self._gather(ROUND, message.number)]
        return [*effects, *self._take_early()]

    def _take_early(self) -> list[Effect]:
        """Margins that came before their round, or before this party had its reference."""
        number, theta = self.early
        if not number or number != self.round or self.lane or self.estimator.wants_reference:
            return []
        self.early = 0, NONE
        return [self._step(number, theta)]

    # Evaluation.

    def _judge(self, message: Judge) -> list[Effect]:
        """One party aggregates the margins of the test rows, over those that the coordinator names to all."""
        self._check_members(message.members)
        members = message.members
        if not {self._index, message.judge} <= set(members) or len(members) < self._fewest or message.number < 1:
            raise RemoteProtocolError(SERVER, f"wants an evaluation by parties {members}: {message!r:.80}")
        effects = self._abandon([nonce for nonce, (what, _) in self.own.items() if what == TESTS])
        self.judging, self.judge, self.judges = message.number, message.judge, tuple(members)
        if message.judge == self._index:
            effects += self._gather(TESTS, message.number)
        return [*effects, *self._answer_held()]

    def _judged(self, result: Judged) -> list[Effect]:
        return [Send(SERVER, result, evaluation=True)] if result.number == self.judging else []

    # Coming and going.

    def _joined(self, peer: str) -> list[Effect]:
        """A conversation begins anew: what was under way in it is gone."""
        if peer != SERVER:
            return self._regroup(list(self.members), {self._names.index(peer)}) if peer in self._names else []
        effects = self._drop_everything()
        return [*effects, Send(SERVER, self.left, evaluation=True) if self.left else self._hello()]

    def _leave(self, result: Diverged) -> list[Effect]:
        """Tell the coordinator: it ends the run, or goes on without this party if its own numbers are the cause."""
        effects: list[Effect] = []
        if result.own:
            effects, self.left = self._drop_everything(), result
        return [*effects, Send(SERVER, result, evaluation=True)]  # outside clock and bytes: it is not of the method

    def _drop_everything(self) -> list[Effect]:
        """What is under way, with everyone; the weights stay, and what the fence knows of them."""
        effects = [*self._abandon(list(self.own)), *self._cancel_lane()]
        effects += [CancelWork(token) for token in self.asides]
        self.asides, self.fence.running = {}, {}
        self.sums.sums, self.held = {}, {}
        self.ready, self.blocked, self.holding, self.round, self.judging = [], ("", 0), 0, 0, 0
        self.early, self.begun, self.members, self.judges = (0, NONE), False, (), ()
        return effects

    def margins(self, x: Any) -> Array:
        """θ^ℓ of further rows."""
        return Block(x, self._block.intercept).margins(self.estimator.w)

    def validate(self) -> None:
        """What must hold between any two events."""
        super().validate()
        if not self._options.synchronous and self._under_way() > 1 + self._options.ahead:
            raise LocalProtocolError(f"{self.name}: {self._under_way()} batches under way")

    def save(self) -> dict[str, Any]:
        """Everything but columns, labels and key."""
        state = {name: getattr(self, name) for name in _STATE}
        left = None if self.left is None else (self.left.cause, self.left.own)
        return super().save() | state | {"estimator": self.estimator.save(), "left": left}

    def load(self, state: dict[str, Any]) -> None:
        """The reverse of `save`."""
        super().load(state)
        for name in _STATE:
            setattr(self, name, state[name])
        self.estimator.load(state["estimator"])
        self.left = None if state["left"] is None else Diverged(*state["left"])

    def summary(self) -> RoleSummary:
        """Steps, answers, and what came to nothing."""
        return {
            "steps": self.estimator.steps,
            "answers": self.answers,
            "abandoned": self.abandoned,
            "dropped": self.dropped,
            "held_back": self.held_back,
            "moves": self.moves,
            "left": "" if self.left is None else self.left.cause,
            "weights": hashlib.sha256(np.ascontiguousarray(self.estimator.w).tobytes()).hexdigest(),
        }


_STATE = (
    *("begun", "ready", "lane", "stepping", "moving", "newest", "moves", "position"),
    *("holding", "round", "initiates", "early"),
)
