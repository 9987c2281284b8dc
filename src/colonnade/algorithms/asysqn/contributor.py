"""A party's half of Alg. 2: terms for others' sums, and sums of its own, whatever they are for.

An own aggregation begins with the own term, a job beside the lane, whose result brings the name of the attempt; then
all others are asked; when both trees are complete, the subclass uses θ. It is abandoned when other parties take part
than those it is over, or when it takes longer than the initiator's patience.

Every term, for others' sums and for own ones, passes `_obstacle`:

- the members are those that the coordinator named, to this party, not those that an initiator would like to have. A
  question over other members is held: the two may have heard of a change in different order. It is answered when the
  lists agree, and forgotten when its initiator abandons it;
- the `Fence` has no other set of parties for one of its rows. Then a question over training rows is held until this
  party has moved, which it does at once (`Party._move_first`); one over test rows is declined, since an evaluation
  changes nothing.
"""

from abc import abstractmethod
from functools import lru_cache
from typing import Any

import numpy as np

from colonnade.algorithms.asysqn.aggregation import WAITING, Aggregations, Key, Total
from colonnade.algorithms.asysqn.config import FEWEST, LinearOptions
from colonnade.algorithms.asysqn.draws import Draws
from colonnade.algorithms.asysqn.estimator import Estimator
from colonnade.algorithms.asysqn.fence import Fence, Share
from colonnade.algorithms.asysqn.holdings import Holdings
from colonnade.algorithms.asysqn.messages import (
    Abandon,
    Ask,
    Declined,
    JudgeTests,
    Margins,
    MarginsMade,
    Masked,
    Masks,
)
from colonnade.algorithms.batches import Rows, Walk, is_rows
from colonnade.algorithms.method import PartySetup
from colonnade.privacy import masking
from colonnade.privacy.secret import SecretKey
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError
from colonnade.protocol.events import NANOSECONDS, CancelTimer, Effect, Send, SetTimer, Work
from colonnade.protocol.role import EVALUATION, SERVER

__all__ = ["BATCH", "NO_ROWS", "ROUND", "SNAPSHOT", "TESTS", "Contributor"]

BATCH, ROUND, SNAPSHOT, TESTS = "batch", "round", "snapshot", "tests"  # what an own aggregation is for
NO_ROWS = np.zeros(0, np.int32)
OTHERS, UNMOVED = "others", "unmoved"  # why a term is not given: other parties, or unmoved weights


class Contributor:
    """What a party needs for sums: its columns, its key, and who takes part."""

    estimator: Estimator
    _walk: Walk | Draws

    def __init__(self, setup: PartySetup[LinearOptions]) -> None:
        self.name, self._index, self._names = setup.name, setup.index, setup.names
        self._options, self._training = setup.options, setup.training
        self._held = held = Holdings(setup)
        self._block, self._tests = held.train, held.test
        self._key = SecretKey()
        masked, bits = setup.options.masking == "on", setup.options.fraction_bits
        waiting = WAITING + setup.options.ahead
        self.sums = Aggregations(setup.index, setup.names, masked, setup.options.fan_out, bits, waiting)
        self.fence = Fence(self._block.rows)
        self.held: dict[Key, Ask] = {}  # questions that are not answered yet
        self.members: tuple[int, ...] = ()  # of training, as the coordinator said
        self.unit = 1.0  # nonzeros of a mean party's row
        self.jobs = 0  # so far: the newest one's token
        self.draws = 0  # masks so far
        self.asides: dict[int, tuple[str, int, int, int]] = {}  # token → what for, initiator, nonce, number
        self.own: dict[int, tuple[str, int]] = {}  # own aggregations: nonce → what for, position or number
        self.judging = 0  # the newest evaluation
        self.judge = 0  # which party judges it
        self.judges: tuple[int, ...] = ()  # the parties of that evaluation, as the coordinator said
        self.blocked: tuple[str, int] = ("", 0)  # an own aggregation that waits until this party has moved
        self.abandoned = self.answers = self.dropped = self.held_back = 0

    @abstractmethod
    def _is_wanted(self, what: str, number: int) -> bool:
        """Whether an own aggregation still has a purpose, and the parties that it takes."""

    @abstractmethod
    def _use(self, what: str, number: int, total: Total) -> list[Effect]:
        """An own aggregation is complete."""

    @abstractmethod
    def _advance(self) -> list[Effect]:
        """What can be done next."""

    # Terms for sums.

    def _margins(self, job: Margins) -> MarginsMade:
        """Alg. 2 l. 2: θ^ℓ of the newest w_ℓ, under a mask that is never used again."""
        w, steps = self.estimator.w, self.estimator.steps
        block = self._tests if job.tests else self._block
        theta = block.margins(w, None if job.whole or job.tests else job.rows)
        encoded = masking.encode(theta, self._options.fraction_bits, len(self._names))
        masked = self._options.masking == "on"
        drawn = masking.masks(self._key.seed("mask", job.draw), 1 + len(encoded) * masked)
        nonce, masks = int(drawn[0]) >> 1, drawn[1:]  # the first one names an attempt and masks nothing
        return MarginsMade(nonce, steps, masking.add(encoded, masks) if masked else encoded, masks)

    def _aside(self, what: tuple[str, int, int, int], amount: float, share: Share, name_only: bool = False) -> Effect:
        """A job beside the lane: the own term of a sum."""
        self.jobs += 1
        self.draws += 1
        self.asides[self.jobs] = what
        self.fence.note(self.jobs, share)
        kind, whole = EVALUATION if share.tests else "margins", share.whole and not name_only
        return Work(self.jobs, kind, amount, Margins(self.draws, share.tests, whole, share.rows), aside=True)

    def _answer(self, initiator: int, ask: Ask) -> list[Effect]:
        """Another party asks; the lane goes on."""
        name, key = self._names[initiator], (initiator, ask.nonce)
        if fault := _fault_of(tuple(ask.members), initiator, self._index, len(self._names), self._fewest):
            raise RemoteProtocolError(name, f"asks for a sum over parties {ask.members}{fault}")
        if not is_rows(ask.rows, self._block.rows):
            raise RemoteProtocolError(name, f"asks for rows that are not there: {ask!r:.120}")
        known = self.sums.sums.get(key)
        if key in self.held or (known is not None and known.members):
            raise RemoteProtocolError(name, "asks twice for the same sum")
        obstacle = self._obstacle(initiator, _share_of(ask))
        if not obstacle:
            return [self._contribute(initiator, ask)]
        self.held_back += 1
        if obstacle == UNMOVED and ask.tests:
            return [self._decline()]
        theirs = [key for key in self.held if key[0] == initiator]
        if len(theirs) >= self.sums.waiting:
            del self.held[theirs[0]]
        self.held[key] = ask
        return self._advance()

    def _obstacle(self, initiator: int, share: Share) -> str:
        """Why this party does not give its term for this share; "": it does."""
        named = (self.judge, self.judges) if share.tests else (initiator, self.members)
        if (initiator, share.members) != named:
            return OTHERS
        return UNMOVED if self.fence.forbids(share, self.estimator.w) else ""

    def _contribute(self, initiator: int, ask: Ask) -> Effect:
        share = _share_of(ask)
        rows = self._tests.rows if share.tests else self._block.rows if ask.whole else len(ask.rows)
        self.sums.open(initiator, ask, rows)
        self.answers += not share.tests
        amount = 0.0 if share.tests else self._amount(1, ask.rows, ask.whole)
        return self._aside(("answer", initiator, ask.nonce, 0), amount, share)

    def _answer_held(self) -> list[Effect]:
        """Questions that nothing is in the way of any more."""
        effects: list[Effect] = []
        for (initiator, nonce), ask in list(self.held.items()):
            obstacle = self._obstacle(initiator, _share_of(ask))
            if not obstacle or (obstacle == UNMOVED and ask.tests):
                del self.held[initiator, nonce]
                effects.append(self._contribute(initiator, ask) if not obstacle else self._decline())
        return effects

    def _decline(self) -> Effect:
        return Send(SERVER, Declined(self.judging), evaluation=True)

    @property
    def _must_move(self) -> bool:
        """Whether another party waits until this one has moved."""
        return any(self._obstacle(key[0], _share_of(ask)) == UNMOVED for key, ask in self.held.items())

    @property
    def _fewest(self) -> int:
        return FEWEST if self._options.masking == "on" else 1

    def _amount(self, passes: float, rows: Rows, whole: bool = False) -> float:
        """The unit: two passes over a mean party's batch."""
        touched = self._block.nonzeros if whole else self._block.cost(rows)
        return passes * touched / self._batch_cost

    @property
    def _batch_cost(self) -> float:
        return 2.0 * self.unit * self._training.batch_size

    def _contributed(self, token: int, made: MarginsMade, now: int) -> list[Effect]:
        """The own term is there: an own aggregation is opened with it, somebody else's gets it."""
        what, initiator, nonce, number = self.asides.pop(token)
        members = self.fence.settle(token).members
        if what != "answer":
            return self._open(what, number, members, made, now)
        effects: list[Effect] = [*self.sums.contribute(initiator, nonce, made)]
        if initiator == self._index:
            effects += self._complete(nonce)
        return [*effects, *self._advance()] if self.held else effects

    def _sum(self, sender: int, message: Masked | Masks) -> list[Effect]:
        if message.initiator == self._index and message.nonce not in self.own:
            self.dropped += 1  # abandoned
            return []
        effects: list[Effect] = [*self.sums.receive(sender, message)]
        return [*effects, *self._complete(message.nonce)] if message.initiator == self._index else effects

    # Own sums.

    def _own_share(self, what: str, number: int) -> Share:
        """What this party contributes to an own sum."""
        rows = self._walk.batch(number) if what in (BATCH, ROUND) else NO_ROWS
        return Share(what == TESTS, what == SNAPSHOT, rows, self.judges if what == TESTS else self.members)

    def _gather(self, what: str, number: int) -> list[Effect]:
        """Begin one: the own term comes first, and with it the name of the attempt; of a snapshot the name alone."""
        share = self._own_share(what, number)
        if self._obstacle(self._index, share):
            if what == TESTS:
                return [self._decline()]
            self.blocked = what, number
            return self._advance()
        aside = self._aside((what, self._index, 0, number), 0.0, share, name_only=True)  # charged with the step
        return [aside]

    def _open(self, what: str, number: int, members: tuple[int, ...], made: MarginsMade, now: int) -> list[Effect]:
        """Ask all others."""
        share = self._own_share(what, number)
        if not self._is_wanted(what, number) or members != share.members:
            self.dropped += 1
            return self._advance()
        tests, whole, rows, _ = share
        ask = Ask(made.nonce, list(members), whole, rows, tests)
        size = self._block.rows if whole else len(made.masked)
        self.own[made.nonce] = what, number
        self.sums.open(self._index, ask, size)
        effects: list[Effect] = [Send(self._names[m], ask, tests) for m in members if m != self._index]
        if whole:  # while the others pass over all their rows, so does this party
            effects.append(self._aside(("answer", self._index, made.nonce, 0), self._amount(1, rows, True), share))
        else:
            self.sums.contribute(self._index, made.nonce, made)
        if not tests and len(members) > 1:
            batches = max(1.0, size / self._training.batch_size)  # of SVRG's snapshot many
            effects.append(SetTimer(str(made.nonce), now + round(batches * self._options.patience_s * NANOSECONDS)))
        return [*effects, *self._complete(made.nonce)]

    def _complete(self, nonce: int) -> list[Effect]:
        """θ of an own aggregation, if all of it is there."""
        total = self.sums.take_total(nonce)
        if total is None:
            return []
        what, number = self.own.pop(nonce)
        if what == TESTS:
            self.jobs += 1
            return [Work(self.jobs, EVALUATION, 0.0, JudgeTests(number, total.theta), aside=True)]
        cancel: list[Effect] = [CancelTimer(str(nonce))]
        return [*cancel, *self._use(what, number, total)]

    def _abandon(self, nonces: list[int], redo: tuple[str, ...] = ()) -> list[Effect]:
        """Own aggregations that will not be; of a batch nothing is used, and the next one has other rows."""
        effects: list[Effect] = []
        for nonce in nonces:
            what, number = self.own.pop(nonce)
            self.sums.drop(self._index, nonce)
            tests = what == TESTS
            asked = self.judges if tests else self.members
            effects += [Send(self._names[m], Abandon(nonce), tests) for m in asked if m != self._index]
            effects += [] if tests else [CancelTimer(str(nonce))]
            self.abandoned += not tests
            if what in redo and self._is_wanted(what, number):
                effects += self._gather(what, number)
        return effects

    def _lose_patience(self, name: str) -> list[Effect]:
        nonce = int(name)
        return [*self._abandon([nonce], redo=(ROUND, SNAPSHOT)), *self._advance()] if nonce in self.own else []

    def validate(self) -> None:
        """Every own aggregation is known, and waited for."""
        for nonce in self.own:
            if (self._index, nonce) not in self.sums.sums:
                raise LocalProtocolError(f"{self.name}: an aggregation of its own is unknown")
        roots = {nonce for initiator, nonce in self.sums.sums if initiator == self._index}
        if roots - set(self.own):
            raise LocalProtocolError(f"{self.name}: a sum that nobody waits for")

    def save(self) -> dict[str, Any]:
        """Everything but columns and key."""
        held = [(key, ask.tests, ask.members, ask.whole, ask.rows) for key, ask in self.held.items()]
        state = {name: getattr(self, name) for name in _STATE}
        return state | {"sums": self.sums.save(), "fence": self.fence.save(), "held": held}

    def load(self, state: dict[str, Any]) -> None:
        """The reverse of `save`."""
        for name in _STATE:
            setattr(self, name, state[name])
        self.sums.load(state["sums"])
        self.fence.load(state["fence"])
        self.held = {
            key: Ask(key[1], members, whole, rows, tests) for key, tests, members, whole, rows in state["held"]
        }


def _share_of(ask: Ask) -> Share:
    return Share(ask.tests, ask.whole, ask.rows, tuple(ask.members))


@lru_cache(maxsize=1024)
def _fault_of(members: tuple[int, ...], initiator: int, own: int, parties: int, fewest: int) -> str | None:
    """Why there is no sum over these; they are the same for thousands of sums."""
    if sorted(set(members)) != list(members) or not {initiator, own} <= set(members):
        return ", which cannot be"
    if members[-1] >= parties or members[0] < 0 or len(members) < fewest:
        return ", which would tell single terms"
    return None


_STATE = (
    *("members", "unit", "jobs", "draws", "asides", "own", "judging", "judge", "judges", "blocked"),
    *("abandoned", "answers", "dropped", "held_back"),
)
