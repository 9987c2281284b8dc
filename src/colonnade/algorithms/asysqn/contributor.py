"""A party's half of Alg. 2: terms for others' sums, and sums of its own, whatever they are for.

An own aggregation begins with the own term, a job beside the lane, whose result brings the name of the attempt; then
all others are asked; when both trees are complete, the subclass uses θ. It is abandoned when a party that it takes is
gone, or when it takes longer than the initiator's patience.
"""

from abc import abstractmethod
from functools import lru_cache
from typing import Any

import numpy as np

from colonnade.algorithms.asysqn.aggregation import Aggregations, Total
from colonnade.algorithms.asysqn.config import FEWEST
from colonnade.algorithms.asysqn.draws import Draws
from colonnade.algorithms.asysqn.estimator import Estimator
from colonnade.algorithms.asysqn.holdings import Holdings
from colonnade.algorithms.asysqn.messages import (
    Abandon,
    Ask,
    AskTests,
    Drop,
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
from colonnade.protocol.messages import Message
from colonnade.protocol.role import EVALUATION

__all__ = ["BATCH", "NO_ROWS", "ROUND", "SNAPSHOT", "TESTS", "Contributor"]

BATCH, ROUND, SNAPSHOT, TESTS = "batch", "round", "snapshot", "tests"  # what an own aggregation is for
NO_ROWS = np.zeros(0, np.int32)


class Contributor:
    """What a party needs for sums: its columns, its key, and who takes part."""

    estimator: Estimator
    _walk: Walk | Draws

    def __init__(self, setup: PartySetup) -> None:
        self.name, self._index, self._names = setup.name, setup.index, setup.names
        self._options, self._training = setup.options, setup.training
        self._held = held = Holdings(setup)
        self._block, self._tests = held.train, held.test
        self._key = SecretKey()
        masked, bits = setup.options.masking == "on", setup.options.fraction_bits
        self.sums = Aggregations(setup.index, setup.names, masked, setup.options.fan_out, bits)
        self.members: tuple[int, ...] = ()
        self.unit = 1.0  # nonzeros of a mean party's row
        self.jobs = 0  # so far: the newest one's token
        self.draws = 0  # masks so far
        self.asides: dict[int, tuple[str, int, int, int]] = {}  # token → what for, initiator, nonce, number
        self.own: dict[int, tuple[str, int]] = {}  # own aggregations: nonce → what for, position or number
        self.judges: tuple[int, ...] = ()  # over whom an evaluation goes
        self.abandoned = self.answers = self.dropped = 0

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

    def _aside(self, what: tuple[str, int, int, int], amount: float, rows: Rows, whole: bool, tests: bool) -> Effect:
        """A job beside the lane: the own term of somebody's sum."""
        self.jobs += 1
        self.draws += 1
        self.asides[self.jobs] = what
        kind = EVALUATION if tests else "margins"
        return Work(self.jobs, kind, amount, Margins(self.draws, tests, whole, rows), aside=True)

    def _answer(self, initiator: int, ask: Ask) -> list[Effect]:
        """Somebody asks; the lane goes on."""
        tests, name = isinstance(ask, AskTests), self._names[initiator]
        if fault := _fault_of(tuple(ask.members), initiator, self._index, len(self._names), self._fewest):
            raise RemoteProtocolError(name, f"asks for a sum over parties {ask.members}{fault}")
        if not is_rows(ask.rows, self._block.rows):
            raise RemoteProtocolError(name, f"asks for rows that are not there: {ask!r:.120}")
        known = self.sums.sums.get((initiator, ask.nonce))
        if known is not None and known.members:
            raise RemoteProtocolError(name, "asks twice for the same sum")
        rows = self._tests.rows if tests else self._block.rows if ask.whole else len(ask.rows)
        self.sums.open(initiator, ask, rows)
        self.answers += not tests
        amount = 0.0 if tests else self._amount(1, ask.rows, ask.whole)
        return [self._aside(("answer", initiator, ask.nonce, 0), amount, ask.rows, ask.whole, tests)]

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
        if what == "answer":
            effects = self._sends(self.sums.contribute(initiator, nonce, made))
            return [*effects, *self._complete(nonce)] if initiator == self._index else effects
        return self._open(what, number, made, now)

    def _sends(self, sends: list[tuple[str, Message]]) -> list[Effect]:
        return [Send(to, message) for to, message in sends]

    def _sum(self, sender: int, message: Masked | Masks) -> list[Effect]:
        if message.initiator == self._index and message.nonce not in self.own:
            self.dropped += 1  # abandoned
            return []
        effects = self._sends(self.sums.receive(sender, message))
        return [*effects, *self._complete(message.nonce)] if message.initiator == self._index else effects

    # Own sums.

    def _gather(self, what: str, number: int) -> list[Effect]:
        """Begin one: the own term comes first, and with it the name of the attempt; of a snapshot the name alone."""
        tests = what == TESTS
        rows = self._walk.batch(number) if what in (BATCH, ROUND) else NO_ROWS
        return [self._aside((what, self._index, 0, number), 0.0, rows, False, tests)]  # charged with the step

    def _open(self, what: str, number: int, made: MarginsMade, now: int) -> list[Effect]:
        """Ask all others."""
        if not self._is_wanted(what, number):
            self.dropped += 1
            return self._advance()
        tests, whole = what == TESTS, what == SNAPSHOT
        rows = self._walk.batch(number) if what in (BATCH, ROUND) else NO_ROWS
        members = self.judges if tests else self.members
        ask = (AskTests if tests else Ask)(made.nonce, list(members), whole, rows)
        size = self._block.rows if whole else len(made.masked)
        self.own[made.nonce] = what, number
        self.sums.open(self._index, ask, size)
        effects: list[Effect] = [Send(self._names[m], ask) for m in members if m != self._index]
        if whole:  # while the others pass over all their rows, so does this party
            effects.append(
                self._aside(("answer", self._index, made.nonce, 0), self._amount(1, rows, True), rows, True, False)
            )
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
            kind = Drop if what == TESTS else Abandon
            asked = self.judges if what == TESTS else self.members
            effects += [Send(self._names[m], kind(nonce)) for m in asked if m != self._index]
            effects += [] if what == TESTS else [CancelTimer(str(nonce))]
            self.abandoned += what != TESTS
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
        return {name: getattr(self, name) for name in _STATE} | {"sums": self.sums.save()}

    def load(self, state: dict[str, Any]) -> None:
        """The reverse of `save`."""
        for name in _STATE:
            setattr(self, name, state[name])
        self.sums.load(state["sums"])


@lru_cache(maxsize=1024)
def _fault_of(members: tuple[int, ...], initiator: int, own: int, parties: int, fewest: int) -> str | None:
    """Why there is no sum over these; they are the same for thousands of sums."""
    if sorted(set(members)) != list(members) or not {initiator, own} <= set(members):
        return ", which cannot be"
    if members[-1] >= parties or members[0] < 0 or len(members) < fewest:
        return ", which would tell single terms"
    return None


_STATE = ("members", "unit", "jobs", "draws", "asides", "own", "judges", "abandoned", "answers", "dropped")
