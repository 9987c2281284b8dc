"""A party of AsySQN: Alg. 3–5 on its own block, its part in all parties' aggregations, and evaluation.

The party draws a batch, has its margins aggregated (Alg. 2), steps on them, and tells the coordinator. If sums are
shared, the coordinator announces them (see `sharing`), and the party steps on the totals of all. While it computes a
step, the margins of the next batches (`ahead`) are already being aggregated. Beside all that, it answers other parties'
questions with the newest w_ℓ. If a party that a batch needs is lost, the batch and all that is known of it are dropped.
Asking the remaining parties for the same rows would reveal the lost party's term as a difference.

If the members differ from those of an earlier sum over the same rows, a party moves before it contributes again (see
`fence`): it steps once more on the newest margins it has.
# DEVIATION: Alg. 3–5 never lose parties. Such a step is one with delayed margins, as in the asynchronous analysis.

Work is charged by nonzeros (numbers that a pass over the rows touches). 1 is a first-order step of a mean party on a
whole batch: two passes, margins and gradient. A quasi-Newton step has two more passes (curvature) and the recursion of
Alg. 1, four times m·d_ℓ. An answer is one pass. An initiator's own margins are charged with its step. Extrapolation
from k snapshots is 2·k·n: a product and a sum for each of them.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from colonnade.algorithms.asysqn.aggregation import Total
from colonnade.algorithms.asysqn.block import Block
from colonnade.algorithms.asysqn.config import SVRG, LinearOptions
from colonnade.algorithms.asysqn.contributor import (
    BATCH,
    NO_ROWS,
    ROUND,
    SNAPSHOT,
    TESTS,
    Contributor,
    ContributorState,
    Purpose,
)
from colonnade.algorithms.asysqn.estimator import OwnNumbersDiverged
from colonnade.algorithms.asysqn.messages import (
    BeginTraining,
    Differs,
    Diverged,
    FullPass,
    FullPassed,
    Held,
    Hello,
    Hold,
    Margins,
    Members,
    Missing,
    Release,
    Round,
    Step,
    StepMade,
    Stepped,
    Summed,
    Take,
    Taken,
    Totals,
)
from colonnade.algorithms.chassis import PARTY, done, job, on
from colonnade.algorithms.method import PartySetup
from colonnade.algorithms.sane import STEPS, is_step
from colonnade.protocol.errors import (
    CheckpointError,
    DataError,
    LocalProtocolError,
    RemoteProtocolError,
    TrainingDiverged,
)
from colonnade.protocol.finite import all_finite
from colonnade.protocol.messages import Array, Payload
from colonnade.protocol.role import SERVER, RoleSummary

__all__ = ["Party", "State"]

NONE = np.zeros(0)


class Batch(NamedTuple):
    """The rows and margins of a step."""

    position: int = 0  # position on the walk; in a synchronous round, its number
    theta: Array = NONE
    clock: int = 0  # Σ of the others' steps when they contributed
    members: tuple[int, ...] = ()
    initiator: int = -1  # of a shared sum


NO_BATCH = Batch()
UNKNOWN = -2  # an initiator that a state of release 0.1 does not name


@dataclass(slots=True, kw_only=True)
class State(ContributorState):
    """The party's progress in training."""

    begun: bool = False
    ready: list[Batch] = field(default_factory=list)  # batches whose margins are here
    lane: int = 0  # the token of the job on the lane
    stepping: Batch = NO_BATCH  # the batch on the lane
    moving: bool = False  # whether that step repeats the newest margins
    newest: Batch = NO_BATCH  # the batch of the newest step that changed w_ℓ
    moves: int = 0  # repeated steps so far
    position: int = 0  # position of the next batch
    holding: int = 0  # the barrier at which this party rests
    round: int = 0  # synchronous twins: the newest announced round
    initiator: int = -1  # the party that aggregates for all in that round
    used: int = 0  # the newest round whose margins this party has used; its initiator may send others
    early: dict[int, Batch] = field(default_factory=dict)  # by sender: margins of a round that cannot be used yet
    awaited: dict[int, int] = field(default_factory=dict)  # shared sums without totals, with their initiators
    left: Diverged | None = None  # why this party no longer takes part


class Party(Contributor[State]):
    """Holds w_ℓ, its own columns and the labels."""

    def __init__(self, setup: PartySetup[LinearOptions]) -> None:
        super().__init__(setup, State())
        self._trains = setup.options.fewest(len(setup.names))  # parties of an aggregation for training

    # Start, resume and join.

    def started(self, entropy: bytes) -> None:
        """Take the key, and say hello."""
        self._key.renew(entropy)
        self._hello()

    def resumed(self, entropy: bytes) -> None:
        """Take the new key."""
        self._key.renew(entropy)

    def joined(self, peer: str, reset: bool) -> None:
        """A conversation restarts, and everything under way in it is gone. The coordinator reports lost parties."""
        if not reset:
            return
        if peer in self.names:
            other = self.names.index(peer)
            self._regroup(list(self.state.members), {other})
            if (self.options.synchronous and self.state.round) or self.state.holding:
                self.send(SERVER, Missing(other, 0, [other], given_up=True), evaluation=True)
        elif peer == SERVER:
            self._drop_everything()
            if self.state.left:
                self.send(SERVER, self.state.left, evaluation=True)
            else:
                self._hello()

    def _hello(self) -> None:
        self.send(SERVER, Hello(self._held.digest, self._block.rows, self._tests.rows, self._block.nonzeros))

    @on(Differs, SERVER)
    def differs(self, sender: str, message: Differs) -> None:
        """The coordinator refuses these labels. Raise DataError, or say hello again if they have changed since."""
        if self.state.begun:
            raise self.unexpected(sender, message)
        if message.labels_sha256 == self._held.digest:
            raise DataError(f"{message.cause}; then start this party again")
        self._hello()

    def compute(self, job: Payload) -> Payload:
        """Run a job without changing state; returns `Diverged` if the numbers diverge."""
        try:
            return super().compute(job)
        except TrainingDiverged as error:
            own = isinstance(job, Margins) or isinstance(error, OwnNumbersDiverged)  # margins out of range
            return Diverged(str(error), own)

    @done(Diverged)
    def leave(self, token: int, result: Diverged) -> None:
        """Tell the coordinator: it ends the run, or continues without this party if its own numbers diverged."""
        if result.own:
            self._drop_everything()
            self.state.left = result
        self.send(SERVER, result, evaluation=True)  # not part of the method, so outside clock and bytes

    def _drop_everything(self) -> None:
        """Drop everything under way with all peers; keep the weights, and the fence's record of them."""
        state = self.state
        self.abandon(list(state.own))
        self._cancel_lane()
        for token in state.asides:
            self.cancel(token)
        state.asides, self.fence.running = {}, {}
        self.sums.sums, state.held = {}, {}
        state.ready, state.blocked, state.judging = [], None, 0
        state.holding, state.round, state.used = 0, 0, 0
        state.early, state.begun, state.members, state.judges = {}, False, (), ()
        state.awaited = {}

    @on(BeginTraining, SERVER)
    def begin(self, sender: str, message: BeginTraining) -> None:
        """Train; a party that already trains only takes over the list of members."""
        self.check_members(message.members)
        if not 1 / self._block.rows <= message.unit < STEPS:  # a party has at least one nonzero
            raise RemoteProtocolError(SERVER, f"sends an invalid unit of {message.unit} nonzeros")
        self.state.unit, self.state.begun = message.unit, True
        self._regroup(message.members, set())
        if self.estimator.wants_reference and not self.state.lane:
            self._full_pass(NONE)

    @on(Members, SERVER)
    def others_take_part(self, sender: str, message: Members) -> None:
        """Parties came or went."""
        self.check_members(message.members)
        self._regroup(message.members, set())

    def _regroup(self, members: list[int], renewed: set[int]) -> None:
        """Take over the new members; abandon sums over the former ones, which would never be complete."""
        state = self.state
        gone = (set(state.members) - set(members)) | renewed
        same = state.members == tuple(members)
        state.members = tuple(members)
        if not same:
            state.awaited = {}
            self.estimator.forget_snapshots()
        self.sums.drop_of(gone - {self.index})
        state.held = {key: ask for key, ask in state.held.items() if key[0] not in gone or ask.tests}
        hit = []
        for nonce, purpose in state.own.items():
            over = self.sums.sums[self.index, nonce].members
            if purpose.what != TESTS and (over != state.members or renewed & set(over)):
                hit.append(nonce)  # the coordinator decides on those over test rows
        self.abandon(hit, redo=self.lasting if same else ())
        self.advance()

    # Own sums for training.

    def is_wanted(self, purpose: Purpose) -> bool:
        """Whether an own aggregation still has a purpose, and enough parties."""
        state, what, number = self.state, *purpose
        if what == SNAPSHOT:
            return number == state.holding and self._can_train
        if what == ROUND:
            return number == state.round and self._can_train
        if self.shared and number not in state.awaited:
            return False
        return state.begun and not state.holding and self._can_train

    @property
    def _can_train(self) -> bool:
        return len(self.state.members) >= self._trains and self.index in self.state.members

    def use(self, purpose: Purpose, total: Total) -> None:
        """Queue the margins of an own batch for their step; send margins of other sums to all parties."""
        what, number = purpose
        if what == BATCH and self.shared:
            # At most what a receiver takes: this party is not to blame for the absurd number of another.
            shared = Totals(0, number, total.theta, min(total.clock + total.steps, STEPS - 1))
            self.tell(self.state.members, shared)
            self.send(SERVER, Summed(number))
            return self._take_shared(self.index, shared)
        if what == BATCH:
            self.state.ready.append(Batch(number, total.theta, total.clock, total.members))
            return self.advance()
        totals = Totals(number if what == SNAPSHOT else 0, number if what == ROUND else 0, total.theta)
        self.tell(self.state.members, totals)
        self._start(self.index, totals)

    def advance(self) -> None:
        """Do all that is possible now: held answers, the blocked own sum, a step, the next batches."""
        if self.state.held:
            self.answer_held()
        self._unblock()
        self._next_batches()
        if self.must_move():
            self._move_first()

    def _unblock(self) -> None:
        """Begin the own aggregation that had to wait, unless it still has to."""
        purpose = self.state.blocked
        if purpose is None:
            return
        wanted = self.is_wanted(purpose)
        if wanted and self.has_to_wait(purpose):
            return
        self.state.blocked = None
        if wanted and (purpose.what != BATCH or self.shared):
            self.gather(purpose)

    def _next_batches(self) -> None:
        """Start the next step if its margins are here, and aggregate the margins of the next batches."""
        state = self.state
        if self.options.synchronous or not state.begun or state.holding or self.estimator.wants_reference:
            return
        if state.ready and not state.lane:
            self._step(state.ready.pop(0))
        if self._can_train and not self.shared:
            for _ in range(1 + self.options.ahead - self._under_way()):
                batch = Purpose(BATCH, state.position)
                if self.has_to_wait(batch):
                    state.blocked = batch
                    break
                self.gather(batch)
                state.position += 1

    def _under_way(self) -> int:
        """Batches between their first margin and the end of their step."""
        state = self.state
        asked = sum(purpose.what == BATCH for purpose in state.own.values())
        begun = sum(term.opens is not None and term.opens.what == BATCH for term in state.asides.values())
        return asked + begun + len(state.ready) + bool(state.lane and not state.moving)

    # Steps: Alg. 3 l. 2–6, Alg. 4 l. 5–9, Alg. 5 l. 3–8.

    def _move_first(self) -> None:
        """Step once more on the newest margins. This needs no aggregation, so it cannot wait for another party.

        It also happens at a barrier: w^s of Alg. 4 l. 3 is each party's weights when it contributes to the snapshot.
        """
        state = self.state
        if state.lane or state.ready or not state.begun or self.estimator.wants_reference:
            return  # it moves anyway, or when it may
        if len(state.newest.theta):  # w_ℓ = 0 reveals nothing, and has nothing to wait for
            state.moving, state.moves = True, state.moves + 1
            self._step(state.newest)

    def _step(self, batch: Batch) -> None:
        rows = self._walk.batch(batch.position)
        self.state.stepping = batch
        if self.shared:
            initiates = batch.initiator == self.index
        else:
            initiates = not self.options.synchronous or self.state.initiator == self.index
        passes = 2.0 if initiates else 1.0  # 1.0: the margins were an answer
        if self.options.memory and self.options.curvature == "batch":
            passes += 2.0
        recursion = 4.0 * len(self.estimator.memory) * self._block.columns / self.batch_cost
        self.state.lane = self.work("step", self.amount(passes, rows) + recursion, Step(rows, batch.theta))

    def _cancel_lane(self) -> None:
        if self.state.lane:
            self.cancel(self.state.lane)
            self.state.lane, self.state.moving = 0, False

    @job(Step)
    def step(self, job: Step) -> StepMade:
        """The direction d_ℓ, and the values that the estimator remembers."""
        rate, parties = self.training.party_rates[self.index] * self.estimator.scale.rate, len(self.names)
        k = self.estimator.steps * (parties // self.options.threshold(parties))  # as if all parties were as fast
        return self.estimator.step(job, self.training.rule.rate(rate, k))

    @done(StepMade)
    def stepped(self, token: int, made: StepMade) -> None:
        """w_ℓ ← w_ℓ − γd_ℓ."""
        state, batch = self.state, self.state.stepping
        rows, before = self._walk.batch(batch.position), self.estimator.w
        self.estimator.learn(rows, made)
        if not np.array_equal(before, self.estimator.w):  # a step of a tiny rate may be lost in rounding
            self.fence.moved()
            state.newest = Batch(batch.position, batch.theta)
        elif state.moving:
            state.newest = NO_BATCH  # these margins do not move it; others may
        if not state.moving:  # a repeated step on margins that were already counted is not an update
            self._report(batch, len(rows))
        if state.holding:
            self.send(SERVER, Held(state.holding))
        moving, state.lane, state.moving = state.moving, 0, False
        if moving:  # margins of the round may have come meanwhile
            self._take_early()
        self.advance()

    def _report(self, batch: Batch, rows: int) -> None:
        steps, clock, number = self.estimator.steps, batch.clock, 0
        if self.shared:  # all parties' steps before this one count since the sum, this party's own among them
            clock, number = max(0, clock - steps + 1), batch.position
        elif self.options.synchronous:
            number = self.state.round
        self.send(SERVER, Stepped(number, rows, steps, clock, list(batch.members)))

    # SVRG's barrier: Alg. 4 l. 3, 10.

    @on(Hold, SERVER)
    def hold(self, sender: str, message: Hold) -> None:
        """Rest after the running step; drop the batches that wait for their step."""
        if self.options.estimator != SVRG:
            raise self.unexpected(sender, message)
        if not 0 < message.barrier < STEPS:
            raise RemoteProtocolError(SERVER, f"barrier {message.barrier}")
        state = self.state
        if state.holding or self.estimator.wants_reference:  # an earlier full pass
            self._cancel_lane()
        state.holding, state.ready, state.blocked, state.awaited = message.barrier, [], None, {}
        self.abandon_training()
        if not state.lane:
            self.send(SERVER, Held(message.barrier))

    @on(Take, SERVER)
    def take(self, sender: str, message: Take) -> None:
        """Aggregate θ(w^s) for all parties."""
        if self.options.estimator != SVRG:
            raise self.unexpected(sender, message)
        if message.barrier == self.state.holding:
            self.gather(Purpose(SNAPSHOT, message.barrier))

    @on(Release, SERVER)
    def release(self, sender: str, message: Release) -> None:
        """There is no snapshot this time: continue with the previous one."""
        if self.options.estimator != SVRG:
            raise self.unexpected(sender, message)
        if message.barrier != self.state.holding:
            return  # it already has the snapshot
        self.abandon_training()
        self._cancel_lane()
        self.state.holding, self.state.blocked = 0, None
        self.advance()

    @on(Totals, PARTY)
    def totals(self, sender: str, message: Totals) -> None:
        """Margins θ that another party aggregated for all."""
        if not (is_step(message.barrier) and is_step(message.round)):
            raise RemoteProtocolError(sender, f"margins of barrier {message.barrier}, round {message.round}")
        rows = self._snapshot_size if message.barrier else len(self._walk.batch(message.round))
        values = message.values
        if values.shape != (rows,) or values.dtype != np.float64 or not all_finite(values):
            raise RemoteProtocolError(sender, f"margins of shape {values.shape}, expected ({rows},) finite numbers")
        if not is_step(message.clock):
            raise RemoteProtocolError(sender, f"margins of {message.clock} steps")
        if not message.barrier and self.shared:
            return self._take_shared(self.names.index(sender), message)
        if not message.barrier and not self.options.synchronous:
            raise RemoteProtocolError(sender, "sends margins of a round, but this method has no rounds")
        self._start(self.names.index(sender), message)

    def _start(self, sender: int, totals: Totals) -> None:
        """Start the lane's job on margins that all parties use."""
        state = self.state
        if not totals.barrier:
            # The coordinator's announcement, which names the sender, may still be on the way.
            state.early[UNKNOWN if state.initiator == UNKNOWN else sender] = Batch(totals.round, totals.values)
            self._take_early()
        elif totals.barrier == state.holding and not state.lane:
            self._full_pass(totals.values, totals.barrier)
        else:
            state.dropped += 1

    def _full_pass(self, theta: Array, barrier: int = 0) -> None:
        """The full gradient; extrapolate if the weights are still those of the snapshot."""
        amount, job = self.amount(1, NO_ROWS, whole=True), FullPass(theta)
        if barrier and self.estimator.extra and self.state.rested == self.estimator.steps:
            job = FullPass(theta, barrier, len(self.state.members))
            amount += 2.0 * self._block.rows * len(self.estimator.state.snapshots.barriers) / self.batch_cost
        self.state.lane = self.work("gradient", amount, job)

    @job(FullPass)
    def full_pass(self, job: FullPass) -> FullPassed:
        """The data part of the full gradient."""
        return self.estimator.full_pass(job)

    @done(FullPassed)
    def referred(self, token: int, passed: FullPassed) -> None:
        """Take over the reference, and continue with the batches."""
        state = self.state
        state.lane, before = 0, self.estimator.w
        self.estimator.refer(passed)
        if self.estimator.w is not before:
            self.fence.moved()
        barrier, state.holding = state.holding, 0
        if barrier:
            self.send(SERVER, Taken(barrier))
        self._take_early()
        self.advance()

    # Shared sums: see `sharing`.

    def _announced(self, message: Round) -> None:
        """Await the totals of a shared sum, or aggregate them. The oldest of too many sums will not come any more."""
        state, number = self.state, message.number
        if not state.begun or state.holding:
            return
        if number <= state.round:
            raise RemoteProtocolError(SERVER, f"announces the shared sum {number} after {state.round}")
        state.round = number
        state.awaited[number] = message.initiator
        if len(state.awaited) > self.sums.waiting:
            del state.awaited[min(state.awaited)]
        if message.initiator == self.index:
            return self.gather(Purpose(BATCH, number))
        early = state.early.get(message.initiator, NO_BATCH)
        if early.position == number:
            self._queue(state.early.pop(message.initiator))

    def _take_shared(self, sender: int, totals: Totals) -> None:
        """Queue totals of the party that was to aggregate them, once; they may come before their announcement."""
        state = self.state
        batch = Batch(totals.round, totals.values, totals.clock, state.members, sender)
        if state.awaited.get(batch.position) == sender:
            self._queue(batch)
        elif batch.position > state.round:
            state.early[sender] = batch
        else:
            state.dropped += 1

    def _queue(self, batch: Batch) -> None:
        """Step on these totals soon. A party that is too far behind leaves the oldest out; earlier sums are over."""
        state = self.state
        state.awaited = {number: one for number, one in state.awaited.items() if number > batch.position}
        state.ready.append(batch)
        if len(state.ready) > 1 + self.options.ahead:
            del state.ready[0]
            state.dropped += 1
        self.advance()

    # Synchronous twins.

    @on(Round, SERVER)
    def next_round(self, sender: str, message: Round) -> None:
        """Start the next round, and drop the rest of an earlier one; or note the next shared sum."""
        if not (self.options.synchronous or self.shared):
            raise self.unexpected(sender, message)
        if not 0 < message.number < STEPS or not 0 <= message.initiator < len(self.names):
            raise RemoteProtocolError(SERVER, f"starts an impossible round: {message!r}")
        if self.shared:
            return self._announced(message)
        state = self.state
        self.abandon_training()
        if not self.estimator.wants_reference:
            self._cancel_lane()
        state.blocked = None
        state.round, state.holding, state.initiator = message.number, 0, message.initiator
        if state.initiator == self.index:
            self.gather(Purpose(ROUND, message.number))
        else:
            self._take_early()

    def _take_early(self) -> None:
        """Step on the initiator's margins, also if they came before their round, or before this party's reference."""
        state, batch = self.state, self.state.early.get(self.state.initiator, NO_BATCH)
        if not batch.position or batch.position != state.round or state.lane or self.estimator.wants_reference:
            return
        del state.early[state.initiator]
        if state.used == state.round:
            state.dropped += 1  # a second step of a round could fall into a barrier, which would wait for ever
            return
        state.used = state.round
        self._step(batch)

    # Predictions, checks and summary.

    def margins(self, x: Any) -> Array:
        """θ^ℓ of additional rows, for predictions."""
        return Block(x, self._block.intercept).margins(self.estimator.w)

    def validate(self) -> None:
        """Raise if an invariant between two events does not hold."""
        super().validate()
        if not (self.options.synchronous or self.shared) and self._under_way() > 1 + self.options.ahead:
            raise LocalProtocolError(f"{self.name}: {self._under_way()} batches under way")
        if self.shared and len(self.state.ready) > 1 + self.options.ahead:
            raise LocalProtocolError(f"{self.name}: {len(self.state.ready)} totals wait for its step")

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `save` returned. Release 0.1 did not save which party initiates a round, and shared no sums."""
        own = dict(state["state"])
        if self.shared and "awaited" not in own:
            raise CheckpointError(
                f"the checkpoint of {self.name} is of an earlier release, whose parties shared no sums. Continue with "
                "the release that wrote it, or start a new run with another --out"
            )
        if "initiates" in own:
            own["initiator"] = self.index if own.pop("initiates") else UNKNOWN
            own["early"] = {own["initiator"]: own["early"]}
        super().load(state | {"state": own})

    def trained(self) -> dict[str, dict[str, Array]]:
        """The weights of the columns, and the intercept if this party holds it. See `protocol.role.Trained`."""
        return {self.name: self.estimator.trained(self._columns)}

    def summary(self) -> RoleSummary:
        """Steps, answers, and sums that were not completed."""
        state = self.state
        return {
            "steps": self.estimator.steps,
            "answers": state.answers,
            "abandoned": state.abandoned,
            "dropped": state.dropped,
            "held_back": state.held_back,
            "moves": state.moves,
            "left": "" if state.left is None else state.left.cause,
            "weights": hashlib.sha256(np.ascontiguousarray(self.estimator.w).tobytes()).hexdigest(),
        }
