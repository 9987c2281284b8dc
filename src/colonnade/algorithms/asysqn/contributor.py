"""A party's half of Alg. 2: its terms for others' sums, and sums of its own, whatever their purpose.

An own aggregation begins with the party's own term. A job beside the lane makes it, and its result brings the nonce
that names the attempt. Then the party asks all others. When both trees are complete, the party judges θ if it is of
test rows; if not, the subclass uses it. The party abandons an aggregation in two cases: the members change, or it takes
longer than the initiator's patience. In the second case all members tell the coordinator whose parts they miss (see
`disputes`).

Every term, for others' sums and for own ones, must pass `_obstacle`:

- The members are those that the coordinator named to this party, not those that an initiator wishes for. The party
  holds a question over other members, because the two parties may have heard of a change in different order. It
  answers when the lists agree, and forgets the question when its initiator abandons it.
- The `Fence` has no other set of parties for one of the rows. If it has, the party holds a question over training rows
  until it has moved, which it does at once (`Party._move_first`). If terms that are being made are all that is in the
  way, it waits for them, because their rows count for the weights after a move, too. It declines a question over test
  rows, because an evaluation changes nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Generic, Literal, NamedTuple, TypeVar

import numpy as np

from colonnade.algorithms.asysqn.aggregation import WAITING, Aggregations, Key, Total
from colonnade.algorithms.asysqn.config import FEWEST, SAGA, LinearOptions
from colonnade.algorithms.asysqn.draws import Draws
from colonnade.algorithms.asysqn.estimator import Estimator
from colonnade.algorithms.asysqn.fence import Fence, Share
from colonnade.algorithms.asysqn.holdings import Holdings
from colonnade.algorithms.asysqn.messages import (
    Abandon,
    Ask,
    Declined,
    Judge,
    Judged,
    JudgeTests,
    Late,
    Margins,
    MarginsMade,
    Masked,
    Masks,
    Missing,
)
from colonnade.algorithms.asysqn.scale import GIVEN, measured
from colonnade.algorithms.batches import Rows, Walk, are_distinct, is_rows
from colonnade.algorithms.chassis import PARTY, Chassis, RoleState, Sender, done, job, on
from colonnade.algorithms.method import PartySetup
from colonnade.algorithms.sane import STEPS, is_step
from colonnade.models.continued import Continued
from colonnade.privacy import masking
from colonnade.privacy.secret import SecretKey
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError
from colonnade.protocol.events import NANOSECONDS
from colonnade.protocol.messages import Message
from colonnade.protocol.role import EVALUATION, SERVER

__all__ = ["BATCH", "NO_ROWS", "ROUND", "SNAPSHOT", "TESTS", "Contributor", "ContributorState", "Purpose", "Term"]

BATCH: Final = "batch"
ROUND: Final = "round"
SNAPSHOT: Final = "snapshot"
TESTS: Final = "tests"
NO_ROWS = np.zeros(0, np.int32)
# Why a party gives no term: the members differ, its weights have not moved, or terms over others are being made.
OTHERS, UNMOVED, MAKING = "others", "unmoved", "making"


class Purpose(NamedTuple):
    """The purpose of an own aggregation, with its number: a batch's position, or a round, barrier or evaluation."""

    what: Literal["batch", "round", "snapshot", "tests"]
    number: int


class Term(NamedTuple):
    """The aggregation for which a job makes this party's term."""

    initiator: int
    nonce: int  # 0: the job's result brings it
    opens: Purpose | None = None  # an own aggregation that begins with this term


@dataclass(slots=True, kw_only=True)
class ContributorState(RoleState):
    """The parties that take part, and the terms and sums that are under way."""

    members: tuple[int, ...] = ()  # parties in training, as the coordinator named them
    judging: int = 0  # the newest evaluation
    judge: int = 0  # the party that judges it
    judges: tuple[int, ...] = ()  # the parties of that evaluation, as the coordinator named them
    last: bool = False  # whether it covers all held-out rows, not only the validation rows
    unit: float = 1.0  # nonzeros in a row of a mean party
    draws: int = 0  # masks drawn so far
    held: dict[Key, Ask] = field(default_factory=dict)  # questions without an answer so far
    asides: dict[int, Term] = field(default_factory=dict)  # terms that are being made, by token
    own: dict[int, Purpose] = field(default_factory=dict)  # own aggregations, by nonce
    blocked: Purpose | None = None  # an own aggregation that waits until this party has moved
    abandoned: int = 0
    answers: int = 0
    dropped: int = 0
    held_back: int = 0
    rested: int = -1  # this party's steps when it contributed to the newest snapshot


C = TypeVar("C", bound=ContributorState)


class Contributor(Chassis[C], Generic[C]):
    """The part of a party that makes sums: its columns, its weights, its key, and the members."""

    def __init__(self, setup: PartySetup[LinearOptions], state: C) -> None:
        senders: dict[str, Sender] = {name: PARTY for name in setup.names if name != setup.name}
        super().__init__(setup.name, senders | {SERVER: SERVER}, state)
        self.options, self.training, self.index, self.names = setup.options, setup.training, setup.index, setup.names
        self._held = held = Holdings(setup)
        self._block, self._tests = held.train, held.test
        self._key = SecretKey()
        self._masked = setup.options.masking == "on"
        self._fewest = FEWEST if self._masked else 1  # parties of a sum
        options, training, parties = setup.options, setup.training, len(setup.names)
        scale = measured(held, options, training.batch_size, parties) if training.measured else GIVEN
        self.estimator = Estimator(held, options, scale, options.extrapolates(training.measured))
        self._columns = setup.train.shape[1]
        waiting, most = WAITING + options.ahead, max(held.train.rows + self.estimator.extra, held.test.rows)
        self.sums = Aggregations(
            setup.index, setup.names, self._masked, options.fan_out, options.fraction_bits, waiting, most
        )  # fmt: skip
        self.fence = Fence(self._block.rows)
        if isinstance(setup.model, Continued):
            self.estimator.begin_at(setup.model, self._columns, setup.name)
        self.shared = options.shares(training.measured)
        path = ("batches",) if options.synchronous or self.shared else ("batches", setup.index)
        batches = Draws if options.estimator == SAGA or training.sampling == "iid" else Walk
        self._walk = batches(self._block.rows, setup.training.batch_size, setup.training.seed, *path)

    # Training; the subclass implements it.

    def is_wanted(self, purpose: Purpose) -> bool:
        """Whether an own aggregation for training still has a purpose, and enough parties."""
        raise NotImplementedError

    def use(self, purpose: Purpose, total: Total) -> None:
        """Use the result of an own aggregation for training."""
        raise NotImplementedError

    def advance(self) -> None:
        """Do the next steps that are possible now."""
        raise NotImplementedError

    # Terms for sums.

    @job(Margins)
    def margins_of(self, job: Margins) -> MarginsMade:
        """Alg. 2 l. 2: θ^ℓ of the newest w_ℓ, under a mask that is never used again."""
        w, steps = self.estimator.w, self.estimator.steps
        if job.tests:
            rows = None if job.whole or not self._held.validation else np.arange(self._held.validation)
            theta = self._tests.margins(w, rows)
        else:
            theta = self.estimator.snapshot(job.history) if job.whole else self._block.margins(w, job.rows)
        encoded = masking.encode(theta, self.options.fraction_bits, len(self.names))
        drawn = masking.masks(self._key.seed("mask", job.draw), 1 + len(encoded) * self._masked)
        nonce, masks = int(drawn[0]) >> 1, drawn[1:]  # the first one is the nonce of an attempt and masks nothing
        return MarginsMade(nonce, steps, masking.add(encoded, masks) if self._masked else encoded, masks)

    def _make(
        self, term: Term, amount: float, share: Share, name_only: bool = False, history: Iterable[int] = ()
    ) -> None:
        """Ask for a job beside the lane that makes this party's term of a sum."""
        self.state.draws += 1
        kind, whole = EVALUATION if share.tests else "margins", share.whole and (share.tests or not name_only)
        margins = Margins(self.state.draws, share.tests, whole, share.rows, list(history))
        token = self.work(kind, amount, margins, aside=True)
        self.state.asides[token] = term
        self.fence.note(token, share)

    @done(MarginsMade)
    def term_made(self, token: int, made: MarginsMade) -> None:
        """Open an own aggregation with the term, or add the term to an open one."""
        term = self.state.asides.pop(token)
        share = self.fence.settle(token)
        members = share.members
        if share.whole and not share.tests:
            self.state.rested = made.steps
        if term.opens is not None:
            self._open(term.opens, members, made)
        else:
            self.do(self.sums.contribute(term.initiator, term.nonce, made))
            if term.initiator == self.index:
                self._complete(term.nonce)
        if self.state.held or self.state.blocked:  # this job may have been the obstacle
            self.advance()

    @on(Ask, PARTY)
    def asked(self, sender: str, ask: Ask) -> None:
        """Answer, hold or decline another party's question; the lane continues."""
        state, initiator = self.state, self.names.index(sender)
        key = initiator, ask.nonce
        if fault := _fault_of(tuple(ask.members), initiator, self.index, len(self.names), self._fewest):
            raise RemoteProtocolError(sender, f"asks for a sum over parties {ask.members}{fault}")
        if not is_rows(ask.rows, self._block.rows):
            raise RemoteProtocolError(sender, f"asks for rows that do not exist: {ask!r:.120}")
        if not self._is_batch(ask) or not self._is_history(ask):
            raise RemoteProtocolError(sender, f"asks for rows that are not a batch: {ask!r:.120}")
        known = self.sums.sums.get(key)
        if key in state.held or (known is not None and known.members):
            raise RemoteProtocolError(sender, "asks twice for the same sum")
        share = self._share_of(ask)
        obstacle = self._obstacle(initiator, share)
        if not obstacle:
            return self._contribute(initiator, ask, share)
        state.held_back += 1
        if obstacle != OTHERS and ask.tests:
            return self._decline()
        theirs = [key for key in state.held if key[0] == initiator]
        if len(theirs) >= self.sums.waiting:
            del state.held[theirs[0]]
        state.held[key] = ask
        self.advance()

    def _is_batch(self, ask: Ask) -> bool:
        """Whether the question names a batch or a shared sum, or all rows; never two of these."""
        if ask.whole or ask.tests or ask.round:
            alone = not ask.round or (self.shared and is_step(ask.round) and not (ask.whole or ask.tests))
            return alone and not len(ask.rows)
        return 0 < len(ask.rows) <= self.training.batch_size and are_distinct(ask.rows)

    def _is_history(self, ask: Ask) -> bool:
        fits = len(ask.history) <= self.estimator.extra and all(map(is_step, ask.history))
        return not ask.history or (fits and ask.whole and not ask.tests)

    def _share_of(self, ask: Ask) -> Share:
        rows = self._walk.batch(ask.round) if ask.round else ask.rows
        return Share(ask.tests, ask.whole, rows, tuple(ask.members))

    def _obstacle(self, initiator: int, share: Share) -> str:
        """Why this party does not give its term for this share; "" if it does."""
        state = self.state
        named = (state.judge, state.judges) if share.tests else (initiator, state.members)
        if (initiator, share.members) != named or (share.tests and share.whole != state.last):
            return OTHERS
        if not self.fence.forbids(share, self.estimator.w):
            return ""
        return MAKING if self.fence.awaits(share) else UNMOVED

    def _contribute(self, initiator: int, ask: Ask, share: Share) -> None:
        held_out = self._held.judged(ask.whole)
        rows = held_out if share.tests else self._snapshot_size if ask.whole else len(share.rows)
        self._limit_terms(initiator)
        self.sums.open(initiator, ask, rows)
        self.state.answers += not share.tests
        amount = 0.0 if share.tests else self.amount(1, share.rows, ask.whole)
        self._make(Term(initiator, ask.nonce), amount, share, history=ask.history)

    @property
    def _snapshot_size(self) -> int:
        return int(self._block.rows + self.estimator.extra)

    def _limit_terms(self, initiator: int) -> None:
        """Cancel the oldest term for this initiator if too many are being made: it has abandoned that sum long ago.

        The fence still counts the rows of that term as contributed.
        """
        theirs = [token for token, term in self.state.asides.items() if term.initiator == initiator]
        if len(theirs) >= self.sums.waiting:
            self.cancel(theirs[0])
            self.fence.settle(theirs[0])
            self.sums.drop(initiator, self.state.asides.pop(theirs[0]).nonce)

    def answer_held(self) -> None:
        """Answer the held questions that have no obstacle any more."""
        for (initiator, nonce), ask in list(self.state.held.items()):
            share = self._share_of(ask)
            obstacle = self._obstacle(initiator, share)
            if not obstacle or (obstacle != OTHERS and ask.tests):
                del self.state.held[initiator, nonce]
                if obstacle:
                    self._decline()
                else:
                    self._contribute(initiator, ask, share)

    def _decline(self) -> None:
        self.send(SERVER, Declined(self.state.judging), evaluation=True)

    def must_move(self) -> bool:
        """Whether an own sum, or another party, waits for this one to move, and a move would help."""
        own = self.state.blocked
        if own is not None and self._obstacle(self.index, self.own_share(own)) == UNMOVED:
            return True
        return any(self._obstacle(key[0], self._share_of(ask)) == UNMOVED for key, ask in self.state.held.items())

    def amount(self, passes: float, rows: Rows, whole: bool = False) -> float:
        """An amount of work, in units of two passes over a mean party's batch."""
        touched = self._block.nonzeros if whole else self._block.cost(rows)
        return passes * touched / self.batch_cost

    @property
    def batch_cost(self) -> float:
        """Nonzeros in one unit of work."""
        return 2.0 * self.state.unit * self.training.batch_size

    @on(Masked, PARTY)
    def masked(self, sender: str, message: Masked) -> None:
        """A child's sum on T1."""
        self._sum(sender, message)

    @on(Masks, PARTY)
    def masks(self, sender: str, message: Masks) -> None:
        """A child's sum on T2."""
        self._sum(sender, message)

    def _sum(self, sender: str, message: Masked | Masks) -> None:
        own = message.initiator == self.index
        if own and message.nonce not in self.state.own:
            self.state.dropped += 1  # of an abandoned aggregation
            return
        self.do(self.sums.receive(self.names.index(sender), message))
        if own:
            self._complete(message.nonce)

    @on(Abandon, PARTY)
    def abandoned(self, sender: str, message: Abandon) -> None:
        """The initiator no longer wants its sum."""
        key = self.names.index(sender), message.nonce
        self.sums.drop(*key)
        self.state.held.pop(key, None)

    @on(Late, PARTY)
    def late(self, sender: str, message: Late) -> None:
        """Another party's sum is late: tell the coordinator which children owe this party their part."""
        self._complain(self.names.index(sender), message.nonce)

    def _complain(self, initiator: int, nonce: int, given_up: bool = False) -> bool:
        """Tell the coordinator which children owe this party their part; False if there is nothing to tell."""
        missing = self.sums.late(initiator, nonce, given_up)
        if missing:  # not part of the method, so outside clock and bytes
            self.send(SERVER, Missing(initiator, nonce, missing, given_up), evaluation=True)
        return bool(missing)

    # Own sums.

    def own_share(self, purpose: Purpose) -> Share:
        """This party's share in an own sum."""
        what, number = purpose
        rows = self._walk.batch(number) if what in (BATCH, ROUND) else NO_ROWS
        if what == TESTS:
            return Share(True, self.state.last, rows, self.state.judges)
        return Share(False, what == SNAPSHOT, rows, self.state.members)

    def has_to_wait(self, purpose: Purpose) -> bool:
        """Whether an own aggregation has to wait until this party has moved."""
        return bool(self._obstacle(self.index, self.own_share(purpose)))

    def gather(self, purpose: Purpose) -> None:
        """Begin an own aggregation with the own term, which brings the nonce; for a snapshot, with the nonce alone."""
        share = self.own_share(purpose)
        if not self._obstacle(self.index, share):
            self._make(Term(self.index, 0, purpose), 0.0, share, name_only=True)  # its work is charged with the step
        elif purpose.what == TESTS:
            self._decline()
        else:
            self.state.blocked = purpose
            self.advance()

    def still_wanted(self, purpose: Purpose) -> bool:
        """Whether an own aggregation still has a purpose, and enough parties."""
        return purpose.number == self.state.judging if purpose.what == TESTS else self.is_wanted(purpose)

    def _open(self, purpose: Purpose, members: tuple[int, ...], made: MarginsMade) -> None:
        """Ask all other members."""
        state, share, nonce = self.state, self.own_share(purpose), made.nonce
        if not self.still_wanted(purpose) or members != share.members:
            state.dropped += 1
            return self.advance()
        tests, whole, rows, _ = share
        if self.shared and purpose.what == BATCH:
            ask = Ask(nonce, list(members), False, NO_ROWS, round=purpose.number)
        else:
            history = self.estimator.state.snapshots.barriers if whole and not tests else []
            ask = Ask(nonce, list(members), whole, rows, tests, history=history)
        size = self._snapshot_size if whole and not tests else len(made.masked)
        state.own[nonce] = purpose
        self.sums.open(self.index, ask, size)
        self.tell(members, ask, evaluation=tests)
        if whole and not tests:  # this party passes over all its rows while the others do
            self._make(Term(self.index, nonce), self.amount(1, rows, True), share, history=ask.history)
        else:
            self.sums.contribute(self.index, nonce, made)
        if not tests and len(members) > 1:
            self.wake(str(nonce), self.now + self._patience(1.0))
        self._complete(nonce)

    def _patience(self, batches: float) -> int:
        return round(batches * self.options.patience_s * NANOSECONDS)

    def tell(self, members: Iterable[int], message: Message, *, evaluation: bool = False) -> None:
        """Send this to each of the members except this party."""
        for member in members:
            if member != self.index:
                self.send(self.names[member], message, evaluation=evaluation)

    def _complete(self, nonce: int) -> None:
        """Use θ of an own aggregation, if all of it is here."""
        total = self.sums.take_total(nonce)
        if total is None:
            return
        purpose = self.state.own.pop(nonce)
        if purpose.what == TESTS:
            self.work(EVALUATION, 0.0, JudgeTests(purpose.number, total.theta), aside=True)
        else:
            self.forget_timer(str(nonce))
            self.use(purpose, total)

    def abandon(self, nonces: Iterable[int], redo: tuple[str, ...] = ()) -> None:
        """End own aggregations that will not complete. A batch is dropped, and the next batch has other rows."""
        state = self.state
        for nonce in nonces:
            purpose = state.own.pop(nonce)
            self.sums.drop(self.index, nonce)
            if purpose.what == TESTS:
                self.tell(state.judges, Abandon(nonce), evaluation=True)
            else:
                self.tell(state.members, Abandon(nonce))
                self.forget_timer(str(nonce))
                state.abandoned += 1
            if purpose.what in redo and self.still_wanted(purpose):
                self.gather(purpose)

    @property
    def lasting(self) -> tuple[str, ...]:
        """The purposes of own sums that others wait for, too: the party tries again if one is abandoned."""
        return (ROUND, SNAPSHOT, BATCH) if self.shared else (ROUND, SNAPSHOT)

    def abandon_training(self) -> None:
        """End all own aggregations except those over test rows: the coordinator decides on those."""
        self.abandon([nonce for nonce, purpose in self.state.own.items() if purpose.what != TESTS])

    def rang(self, timer: str, due: int) -> None:
        """An own aggregation takes too long; the timer is named after its nonce. A snapshot has a batch's time for each
        batch in it, but the coordinator hears of the delay after the time of one batch.
        """
        nonce = int(timer)
        if nonce not in self.state.own:
            return
        entry = self.sums.sums[self.index, nonce]
        rest = entry.rows / self.training.batch_size - 1.0
        given_up = entry.late or rest <= 0.0
        entry.late = True
        complained = self._complain(self.index, nonce, given_up)
        self.tell(entry.members, Late(nonce))
        if given_up:
            # The coordinator announces another shared sum if it hears of it. With a second attempt, the complaints of
            # the first one would be about another sum, and no longer excuse the parties that wait, too.
            self.abandon([nonce], redo=(ROUND, SNAPSHOT) if complained else self.lasting)
            self.advance()
        else:
            self.wake(timer, due + self._patience(rest))

    # Evaluation.

    @on(Judge, SERVER)
    def judge(self, sender: str, message: Judge) -> None:
        """One party aggregates the margins of held-out rows, over the members that the coordinator names to all."""
        state, members = self.state, message.members
        self.check_members(members)
        taking_part = {self.index, message.judge} <= set(members) and len(members) >= self._fewest
        if not taking_part or not 0 < message.number < STEPS:
            raise RemoteProtocolError(
                SERVER, f"asks for an impossible evaluation by parties {members}: {message!r:.80}"
            )
        self.abandon([nonce for nonce, purpose in state.own.items() if purpose.what == TESTS])
        state.judging, state.judge, state.judges = message.number, message.judge, tuple(members)
        state.last = message.last and self._held.validation > 0
        if message.judge == self.index:
            self.gather(Purpose(TESTS, message.number))
        self.answer_held()

    def check_members(self, members: list[int]) -> None:
        """Raise RemoteProtocolError if this list of members is impossible."""
        if members != sorted(set(members)) or not all(0 <= member < len(self.names) for member in members):
            raise RemoteProtocolError(SERVER, f"says that parties {members} take part")

    @job(JudgeTests)
    def judge_tests(self, job: JudgeTests) -> Judged:
        """The loss and the metric of the held-out rows."""
        scores, tested = self._held.judge(job.theta, (self.training.metric, *self.training.also))
        return Judged(job.number, scores.loss, scores.values, tested)

    @done(Judged)
    def judged(self, token: int, result: Judged) -> None:
        """Tell the coordinator, if the evaluation is still the newest."""
        if result.number == self.state.judging:
            self.send(SERVER, result, evaluation=True)

    def validate(self) -> None:
        """Raise if an own aggregation is unknown, or a sum has no aggregation that waits for it."""
        own = self.state.own
        for nonce in own:
            if (self.index, nonce) not in self.sums.sums:
                raise LocalProtocolError(f"{self.name}: an aggregation of its own is unknown")
        roots = {nonce for initiator, nonce in self.sums.sums if initiator == self.index}
        if roots - set(own):
            raise LocalProtocolError(f"{self.name}: a sum that no party waits for")


@lru_cache(maxsize=1024)
def _fault_of(members: tuple[int, ...], initiator: int, own: int, parties: int, fewest: int) -> str | None:
    """Why a sum over these parties is refused; None if it is not. Cached: thousands of sums have the same members."""
    if sorted(set(members)) != list(members) or not {initiator, own} <= set(members):
        return ", which is not a valid list of parties"
    if members[-1] >= parties or members[0] < 0 or len(members) < fewest:
        return ", which would reveal the terms of single parties"
    return None
