"""Predictions whose server learns, for each id, a sum over all parties and nothing about a single party.

A request has two halves. First every party says which ids it has. Then every party contributes to a sum for the ids
that all parties have; the method defines how. Nothing replaces a party: sums over different sets of parties would
reveal a single party's value by subtraction. So the server refuses an id if a party lacks it or is away.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from colonnade.algorithms.chassis import PARTY, job
from colonnade.algorithms.prediction.messages import MALFORMED, Computed, Find, Looked, Question
from colonnade.algorithms.prediction.party import MAX_ASKED, AnsweringParty, AnsweringState
from colonnade.algorithms.prediction.predictor import RowsById
from colonnade.algorithms.prediction.server import AskingServer, AskingState, PredictionRequest
from colonnade.algorithms.prediction.standing_in import AWAY, SENT
from colonnade.privacy.secret import SecretKey
from colonnade.protocol.events import Emit
from colonnade.protocol.messages import Array, Message
from colonnade.protocol.quota import Bucket
from colonnade.protocol.role import WITHHELD
from colonnade.protocol.saved import transient

__all__ = ["Contribute", "SumParty", "SumServer", "SumServerState", "Sums"]

P = TypeVar("P", bound=AnsweringState)


class Contribute(Message, frozen=True):
    """Server → every party: contribute to the sum over these ids. If one party collects it, that party is `root`."""

    nonce: int
    root: int
    ids: list[str]


class SumParty(AnsweringParty[P], Generic[P]):
    """Shows which ids it has, and nothing about their rows."""

    def __init__(
        self, name: str, table: RowsById, names: tuple[str, ...], state: P, quota: Sequence[Bucket] = ()
    ) -> None:
        super().__init__(name, {other: PARTY for other in names if other != name}, table, state, quota)
        self.names, self.own = names, names.index(name)
        self.key = SecretKey()

    def started(self, entropy: bytes) -> None:
        """Take the key from which masks are drawn; no other process has it."""
        self.key.renew(entropy)

    @job(Find)
    def find(self, job: Find) -> Looked:
        """Return which ids it has, without values."""
        rows = self.table.find(job.ids)
        has, withheld = rows >= 0, int((rows == WITHHELD).sum())
        return Looked(job.number, job.start, has, np.zeros((int(has.sum()), 0), np.float32), withheld)

    def may_sum(self, ids: list[str], possible: bool) -> bool:
        """Whether the party contributes to a sum over these ids. It records the question.

        It declines a sum that is not `possible`, one over ids that it lacks, and one beyond its quota. The server's
        deadline ends the request.
        """
        why = self.why_not(ids) if possible else MALFORMED
        if not why and (self.table.find(ids) < 0).any():
            why = MALFORMED
        self.record(Question(len(ids), 0, len(ids), why) if why else Question(len(ids), len(ids), 0))
        return not why


@dataclass(slots=True)
class Sums:
    """The second half of a request."""

    request: PredictionRequest
    values: Array  # sums of all its ids: (rows, *shape)
    rows: dict[int, Array] = field(default_factory=dict)  # nonce → rows that are not summed yet


@dataclass(slots=True, kw_only=True)
class SumServerState(AskingState):
    """State of servers that learn sums."""

    sums: dict[int, Sums] = transient(dict)
    nonces: int = 0


S = TypeVar("S", bound=SumServerState)


class SumServer(AskingServer[S], Generic[S]):
    """Asks for sums only. The sum of one id has the given `shape` and `dtype`."""

    def __init__(
        self, parties: tuple[str, ...], predictions: Callable[[Array], Array], deadline_s: float, state: S,
        shape: tuple[int, ...] = (), dtype: type[np.floating[Any]] = np.float64,
    ) -> None:  # fmt: skip
        super().__init__(parties, (0,) * len(parties), deadline_s, state)
        self._predictions, self.key, self.shape, self._dtype = predictions, SecretKey(), shape, dtype

    def started(self, entropy: bytes) -> None:
        """Take the key that makes this process's nonces unique."""
        self.key.renew(entropy)

    def conclude(self, number: int, request: PredictionRequest) -> None:
        """Start the second half, for the ids that all parties have."""
        common = np.flatnonzero((request.what == SENT).all(1))
        values = np.zeros((len(request.ids), *self.shape), self._dtype)
        sums = self.state.sums[number] = Sums(request, values)
        for start in range(0, len(common), MAX_ASKED):
            rows = common[start : start + MAX_ASKED]
            self.state.nonces += 1
            nonce = int.from_bytes(self.key.seed("nonce", self.state.nonces)[:8], "little") >> 1
            sums.rows[nonce] = rows
            message = Contribute(nonce, self.state.nonces % len(self.parties), [request.ids[row] for row in rows])
            for name in self.parties:
                self.send(name, message)
        if not sums.rows:
            self._answer(number)

    def rows_of(self, nonce: int) -> Array | None:
        """Return the rows of a sum; None if it is too late for it."""
        return next((sums.rows[nonce] for sums in self.state.sums.values() if nonce in sums.rows), None)

    def take(self, nonce: int, values: Array) -> None:
        """Store a sum, and answer the request if it was the last one."""
        number = next((number for number, sums in self.state.sums.items() if nonce in sums.rows), None)
        if number is None:
            return  # too late
        sums = self.state.sums[number]
        sums.values[sums.rows.pop(nonce)] = values
        if not sums.rows:
            self._answer(number)

    def too_late(self, number: int) -> None:
        """Handle the deadline in either half."""
        if number in self.state.sums:
            self.give_up(number, "")
        else:
            super().too_late(number)

    def give_up(self, number: int, peer: str) -> None:
        """Give up the missing sums. The server cannot always know which party failed; `peer` is then ""."""
        sums = self.state.sums[number]
        for rows in sums.rows.values():
            sums.request.what[rows] = AWAY
        sums.request.away += [peer] if peer else []
        sums.rows = {}
        self._answer(number)

    def give_up_sum(self, nonce: int) -> None:
        """Give up the request of a sum that cannot be had."""
        self.give_up(next(number for number, sums in self.state.sums.items() if nonce in sums.rows), "")

    def _answer(self, number: int) -> None:
        sums = self.state.sums.pop(number)
        values = self._predictions(sums.values).reshape(len(sums.values), -1)
        self.forget_timer(str(number))
        self.do([Emit(Computed(number, values, sums.request.what, sums.request.away))])
        self.answered()

    def answered(self) -> None:
        """React to the end of a request: drop what belongs to its sums."""
