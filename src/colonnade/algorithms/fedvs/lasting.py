"""A party's models that last (`stale = "allow"`): the newest share, the terms that are ready, and work done ahead.

A party shares its model after each of its steps, at its own pace, and that share is summed until the next one. This
brings three jobs. The party puts them on its lane when it has neither to step nor to share:

    blind       a fresh polynomial for the places of an exchange, if the exchange waits for this party
    multiply    X̃_n W̃_n, the terms of Eq. (5): one by one if a party may share a newer model before the sum is
                ordered, otherwise several in one product
    ahead       both for a sum or an exchange that the server has not ordered yet

Weights are numbered: one more than the round whose gradient led to them, 0 for the first.
"""

import hashlib
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from colonnade.algorithms.fedvs.batches import SegmentWalk
from colonnade.algorithms.fedvs.coding import Costs
from colonnade.algorithms.fedvs.config import FedvsOptions
from colonnade.algorithms.fedvs.holdings import NEVER, Key
from colonnade.algorithms.fedvs.messages import (
    Answer,
    Blind,
    Blinded,
    CodedTermsMade,
    Gradient,
    ModelRequest,
    ModelShare,
    ModelShared,
    Shared,
    ShareModel,
    Sum,
)
from colonnade.algorithms.fedvs.side import Side
from colonnade.algorithms.method import SERVER
from colonnade.privacy.field import add, total
from colonnade.protocol.events import Effect, Send
from colonnade.protocol.messages import Array, Payload
from colonnade.protocol.saved import UNSAVED, Component

__all__ = ["BLINDING", "MULTIPLYING", "Lasting", "Task"]

BLINDING, MULTIPLYING = "blind", "multiply"  # kinds of jobs on the lane
NONE = (-1, -1, np.zeros((0, 0), np.uint32))  # no term


class Task(NamedTuple):
    """A job for the lane."""

    doing: str
    kind: str
    amount: float
    job: Payload


@dataclass(slots=True, eq=False, kw_only=True)
class Lasting(Component):
    """The lasting models of one party, over its training rows."""

    index: int = field(metadata=UNSAVED)
    names: tuple[str, ...] = field(metadata=UNSAVED)
    own_terms: int = field(metadata=UNSAVED)  # D(d+1) of the party's own model
    width: int = field(metadata=UNSAVED)
    options: FedvsOptions = field(metadata=UNSAVED)
    side: Side = field(metadata=UNSAVED)
    walk: SegmentWalk = field(metadata=UNSAVED)
    costs: Costs = field(metadata=UNSAVED)
    trained: int = 0  # number of the current weights
    stepping: int = 0  # the round of the gradient that is on the lane, or was last
    skipped: int = 0  # gradients for weights that this party no longer has
    shares: int = 0  # shares made so far
    unsent: ModelShared | None = None
    sent: Key = NEVER  # the exchange that this party has blinded, or the newest in which it has shared its model
    blinding: Blinded | None = None  # for this exchange or the next
    terms: dict[int, tuple[int, int, Array]] = field(default_factory=dict)  # X̃_n W̃_n: position, version, values
    together: list[list[int]] = field(default_factory=list)  # parties with one product; it is at the first of them
    multiplying: int = -1  # the position of the terms that are on the lane, or were last

    # Stepping.

    def is_of_these_weights(self, message: Gradient) -> bool:
        """Whether the sum had this party's current weights; the sum must include the party."""
        return message.trained[message.summed.index(self.index)] == self.trained

    def missed(self) -> int:
        """How many steps the one on the lane stands for: rounds since the last step, limited by `catch_up`."""
        # DEVIATION: in the paper no party misses a round; here a party that does would learn more slowly by as much.
        return max(1, min(self.stepping + 1 - self.trained, self.options.catch_up))

    def stepped(self) -> None:
        """Number the new weights after a step."""
        self.trained = self.stepping + 1

    # Sharing.

    def rounding(self, secret: bytes) -> bytes:
        """The seed of the rounding: the same weights are rounded the same way, even with another key.

        `secret` outlasts the key: it is saved with the party's state.
        """
        return hashlib.sha256(b"rounding %d" % self.trained + secret).digest()

    def share_job(self, weights: Array, rounding: bytes) -> ShareModel:
        """Share the current weights, for all sums until the next step."""
        self.shares += 1
        return ShareModel(self.trained, self.shares, False, weights, 0, self.trained, rounding)

    def ask_for_models(self) -> list[Effect]:
        """Request the last models of parties that the exchange does not wait for, if they are not here."""
        exchange = self.side.exchange
        others = [n for n in exchange.among if n != self.index and n not in exchange.awaited]
        lacking = [n for n in others if n not in exchange.models]
        return [Send(self.names[n], ModelRequest()) for n in lacking]

    @property
    def has_news(self) -> bool:
        """Whether a model, or the blinding that the exchange waits for, has not been sent yet."""
        return self.unsent is not None or self._blinds()

    def news(self) -> list[Effect]:
        """Send the newest model, if it is unsent, and the blinding of the exchange, if this party has to blind."""
        exchange, made = self.side.exchange, self.unsent
        blinding = self.blinding if self._is_blinded(exchange.key) and self.index in exchange.awaited else None
        if made is not None:
            exchange.renew(self.index, made.version, made.trained, made.models[self.index])
        version, trained = exchange.versions[self.index], exchange.trained[self.index]
        mark, none = 0, np.zeros((0, self.width), np.uint32)
        if blinding is not None:
            mark, self.blinding = blinding.mark, None
            exchange.blind(self.index, version, mark, blinding.values[self.index])
        effects: list[Effect] = []
        for n in exchange.among:
            if n != self.index:
                model = none if made is None else made.models[n]
                values = none if blinding is None else blinding.values[n]
                share = ModelShare(*exchange.key, version, model, values, trained, mark)
                effects.append(Send(self.names[n], share))
        self.sent, self.unsent = exchange.key, None
        return effects if made is None else [*effects, Send(SERVER, Shared(trained))]

    # Blinding.

    def _blinds(self) -> bool:
        """Whether the exchange waits for this party's blinding."""
        exchange = self.side.exchange
        return self.index in exchange.awaited and self.sent != exchange.key

    def _is_blinded(self, key: Key) -> bool:
        made, exchange = self.blinding, self.side.exchange
        if made is None:
            return False
        wanted = key, exchange.awaited, exchange.blinded_places
        return ((made.round, made.attempt), made.awaited, made.places) == wanted

    def blind(self) -> Task | None:
        """The job for the blinding that the exchange waits for; None if it is made, or not needed."""
        key = self.side.exchange.key
        return self._blind(key) if self._blinds() and not self._is_blinded(key) else None

    def _blind(self, key: Key) -> Task:
        exchange, rows = self.side.exchange, self.side.rows_to_blind(self.index)
        job = Blind(*key, exchange.awaited, exchange.blinded_places, rows)
        return Task(BLINDING, "blind", self.costs.blind(self.own_terms, rows), job)

    # Multiplying.

    def multiply(self, order: Sum) -> Task | None:
        """The job for the terms of an ordered sum that are still missing; None if all are here."""
        return self._multiply(order.position, self.side.agreed(order), ordered=True)

    def can_answer(self, order: Sum) -> bool:
        """Whether all shares of an ordered sum, or their terms, are still here. A party may have shared again since."""
        if not set(order.summed) <= set(self.side.data.version):
            return False
        lacking = self._lacking(order.position, self.side.agreed(order))
        return all(self.side.exchange.find(n, version) is not None for n, version in lacking.items())

    def _lacking(self, position: int, wanted: dict[int, int]) -> dict[int, int]:
        """The models without a term for this batch. A product of several parties counts if all of them are wanted."""
        known = self.terms
        lacking = {n for n, version in wanted.items() if known.get(n, NONE)[:2] != (position, version)}
        for group in self.together:
            if any(n in lacking or n not in wanted for n in group):
                lacking.update(group)
        return {n: version for n, version in wanted.items() if n in lacking}

    def _multiply(self, position: int, wanted: dict[int, int], *, ordered: bool = False) -> Task | None:
        """The job for terms that are missing. Parties whose model cannot change until the sum get one product."""
        lacking = self._lacking(position, wanted)
        if not lacking:
            return None
        exchange = self.side.exchange
        named = exchange.named if position == exchange.position else {}
        fixed = [n for n in lacking if ordered or n in named]
        groups = [*([fixed] if fixed else []), *([n] for n in lacking if n not in fixed)]
        job = self.side.terms_job(position, self.walk.batch(position), lacking, groups)
        data = self.side.data
        of_all = sum(data.terms(n) for n in data.held())
        self.multiplying = position
        return Task(MULTIPLYING, "sum", self.costs.coded_terms(len(job.x), len(job.w), of_all), job)

    def multiplied(self, result: CodedTermsMade) -> None:
        """Keep the terms until the sum is ordered. A product that has one of these parties is of no use any more."""
        new = set(result.numbers)
        for n in [n for group in self.together if new.intersection(group) for n in group]:
            self.terms.pop(n, None)
        self.together = [group for group in self.together if not new.intersection(group)]
        models, end = list(zip(result.numbers, result.versions, strict=True)), 0
        for values, size in zip(result.values, result.sizes or [1] * len(models), strict=True):
            product, end = models[end : end + size], end + size
            for i, (n, version) in enumerate(product):
                self.terms[n] = result.position, version, NONE[2] if i else values
            if size > 1:
                self.together.append([n for n, _ in product])

    def made(self, position: int) -> dict[int, int]:
        """The models whose terms for this batch are ready: party → version."""
        return {n: version for n, (made_for, version, _) in self.terms.items() if made_for == position}

    def answer(self, order: Sum) -> Answer:
        """Eq. (5): the sum of all terms, which must be here, and the blinding."""
        products = [self.terms[n][2] for n in order.summed]
        values = total([product for product in products if product.size])
        blinding = self.side.blinding(len(values), self.width)
        answer = add(values, blinding) if len(blinding) else values
        return Answer(order.round, order.attempt, order.summed, answer)

    def ahead(self, answered: int) -> Task | None:
        """A job for the terms of the sum that comes next, most likely; then for what the next exchange needs.

        `answered` is the newest batch that this party has answered for. A slow party does nothing ahead. Neither does
        any party if the simulator charges delays alone. A party that is not asked first does not multiply ahead.
        """
        exchange = self.side.exchange
        if self.options.work != "arithmetic" or self.index not in exchange.awaited:
            return None
        asked = not exchange.evaluators or self.index in exchange.evaluators
        if answered < exchange.position and asked:
            return self._multiply(exchange.position, self.side.expected(self.made(exchange.position)))
        following = exchange.key[0] + 1, 1
        if not self._is_blinded(following):
            return self._blind(following)
        if exchange.evaluators:
            return None  # others may be asked for the next sum
        last = {n: version for n, version in self.side.expected().items() if n not in exchange.awaited}
        return self._multiply(exchange.position + 1, last)
