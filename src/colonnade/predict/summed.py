"""Predictions by masked sums, for the linear methods: the server learns the sum of all margins of an id, and no other.

A request has two halves. First every party says which ids it has. Then all contribute to the margins of those that all
have, each under a fresh mask, over the two trees of AsySQN Alg. 2 (no two of them have a subtree in common); the root,
another party each time, sends the sum to the server. Nobody stands in for anybody: sums over different parties would
tell single margins by subtraction, so an id that somebody does not have, or whose party is away, is refused.

For the same reason the weights that predict have one set of parties for their whole life, all of them. A party whose
last sums of the training were over others, with the weights it has, does not predict at all. And a sum carries a digest
of its ids: a server that asks parties for different ids gets no sum.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from colonnade.algorithms.asysqn.aggregation import Aggregations
from colonnade.algorithms.asysqn.messages import Ask as Opening
from colonnade.algorithms.asysqn.messages import MarginsMade, Masked, Masks
from colonnade.algorithms.asysqn.party import Party
from colonnade.data import Lookup
from colonnade.predict.messages import PAYLOADS, Asked, Computed, Find, Found
from colonnade.predict.party import MAX_ASKED, PredictParty
from colonnade.predict.server import PredictServer, Request
from colonnade.predict.standing_in import AWAY, SENT, StandIns
from colonnade.privacy import masking
from colonnade.privacy.secret import SecretKey
from colonnade.protocol.errors import ConfigError, RemoteProtocolError
from colonnade.protocol.events import (
    CancelTimer,
    Effect,
    Emit,
    Event,
    PeerLost,
    Received,
    Send,
    Started,
    WorkDone,
)
from colonnade.protocol.messages import Array, Message, Payload
from colonnade.protocol.role import SERVER

__all__ = ["SUM_PAYLOADS", "Contribute", "SummedParty", "SummedServer", "found_without_values"]

NO_ROWS = np.zeros(0, np.int32)


class Contribute(Message, frozen=True):
    """Server → every party: the margins of these ids, to be summed at the party `root`."""

    nonce: int
    root: int
    ids: list[str]


class Summed(Message, frozen=True):
    """Root → server: the sum over all parties."""

    nonce: int
    values: Array  # (ids,) float64


class MakeTerm(Payload, frozen=True):
    """Party's job: its own margins under a mask; the result is AsySQN's."""

    draw: int
    nonce: int
    ids: list[str]


def found_without_values(table: Lookup, job: Payload) -> Found | None:
    """Which ids a party has, and nothing of their rows."""
    if not isinstance(job, Find):
        return None
    has = table.find(job.ids) >= 0
    return Found(job.number, job.start, has, np.zeros((int(has.sum()), 0), np.float32))


SUM_PAYLOADS: tuple[type[Payload], ...] = (*PAYLOADS, Contribute, Summed, Masked, Masks, MakeTerm, MarginsMade)


class SummedParty(PredictParty):
    """Holds w_ℓ, its rows by id, and its part in sums that are under way."""

    _trained: Party

    def __init__(self, trained: Party, table: Lookup, names: tuple[str, ...], options: Any) -> None:
        if trained.estimator.w.any() and trained.fence.members() - {tuple(range(len(names)))}:
            advice = (
                f"the last sums that {trained.name} contributed to with these weights were not over all parties: "
                "sums over all would tell a party's margins by subtraction; train again, with all parties at the end"
            )
            raise ConfigError("--predict", trained.name, advice)
        super().__init__(trained, table, 0, None)
        self._names, self._index, self._options = names, names.index(trained.name), options
        self._masked = options.masking == "on"
        self.sums = Aggregations(self._index, names, self._masked, options.fan_out, options.fraction_bits)
        self._key = SecretKey()
        self.roots: dict[int, int] = {}  # nonce → root, of own terms that are being made

    def handle(self, event: Event, now: int) -> list[Effect]:
        """One event."""
        match event:
            case Started(entropy=entropy):
                self._key.renew(entropy)
                return []
            case Received(sender=sender, message=Contribute() as message) if sender == SERVER:
                return self._open(message)
            case Received(sender=sender, message=(Masked() | Masks()) as message) if sender in self._names:
                sends = self.sums.receive(self._names.index(sender), message)
                return [*sends, *self._complete(message.nonce)]
            case WorkDone(result=MarginsMade() as made):
                root = self.roots.pop(made.nonce)
                return [*self.sums.contribute(root, made.nonce, made), *self._complete(made.nonce)]
        return super().handle(event, now)

    def _open(self, message: Contribute) -> list[Effect]:
        """Always over all parties: the server has no say in whose margins are summed."""
        ids, root = message.ids, message.root
        if not 0 <= root < len(self._names) or message.nonce in self.roots:
            raise RemoteProtocolError(SERVER, f"asks for a sum that cannot be: {len(ids)} ids at party {root}")
        self.check_sum(ids)
        opening = Opening(message.nonce, list(range(len(self._names))), False, NO_ROWS)
        self.sums.open(root, opening, len(ids), hashlib.sha256(msgspec.msgpack.encode(ids)).digest())
        self.roots[message.nonce] = root
        return [self._work(MakeTerm(self.jobs + 1, message.nonce, ids))]

    def compute(self, job: Payload) -> Payload:
        """A job, without changing any state."""
        match job:
            case MakeTerm(draw=draw, nonce=nonce, ids=ids):
                theta = self._trained.margins(self._table.x[self._table.find(ids)])
                term = masking.encode(np.asarray(theta, np.float64), self._options.fraction_bits, len(self._names))
                if not self._masked:
                    return MarginsMade(nonce, 0, term, np.zeros(0, np.uint64))
                masks = masking.masks(self._key.seed("mask", draw), len(term))
                return MarginsMade(nonce, 0, masking.add(term, masks), masks)
        return found_without_values(self._table, job) or super().compute(job)

    def _complete(self, nonce: int) -> list[Effect]:
        total = self.sums.take_total(nonce)
        return [] if total is None else [Send(SERVER, Summed(nonce, total.theta))]


@dataclass(slots=True)
class Sums:
    """A request's second half."""

    request: Request
    theta: Array  # (rows,)
    rows: dict[int, Array] = field(default_factory=dict)  # nonce → those that are not summed yet


class SummedServer(PredictServer):
    """Asks for sums, and for nothing else."""

    _shape: tuple[int, ...] = ()  # of one id's sum

    def __init__(self, parties: tuple[str, ...], predictions: Callable[[Array], Array], deadline_s: float) -> None:
        self._predictions, self._key = predictions, SecretKey()
        self.sums: dict[int, Sums] = {}
        self.nonces = 0
        nobody = StandIns(("refuse",), (0,) * len(parties), 1, len(parties))
        super().__init__(parties, (0,) * len(parties), None, None, nobody, deadline_s)

    def handle(self, event: Event | Asked, now: int) -> list[Effect]:
        """One event."""
        match event:
            case Started(entropy=entropy):
                self._key.renew(entropy)
            case Received(sender=sender, message=Summed() as summed) if sender in self._index:
                return self._summed(sender, summed)
            case PeerLost(peer=peer):
                ended = [effect for number in list(self.sums) for effect in self._give_up(number, peer)]
                return [*super().handle(event, now), *ended]
        return super().handle(event, now)

    def _conclude(self, number: int, request: Request) -> list[Effect]:
        """The second half: of the ids that all have."""
        common = np.flatnonzero((request.what == SENT).all(1))
        sums = self.sums[number] = Sums(
            request, np.zeros((len(request.ids), *self._shape), np.float32 if self._shape else np.float64)
        )
        effects: list[Effect] = []
        for start in range(0, len(common), MAX_ASKED):
            rows = common[start : start + MAX_ASKED]
            self.nonces += 1
            nonce = int.from_bytes(self._key.seed("nonce", self.nonces)[:8], "little") >> 1
            sums.rows[nonce] = rows
            message = Contribute(nonce, self.nonces % len(self._parties), [request.ids[row] for row in rows])
            effects += [Send(name, message) for name in self._parties]
        return effects or self._answer(number)

    def _rows(self, nonce: int) -> Array | None:
        """What a sum is of, unless it is too late for it."""
        return next((sums.rows[nonce] for sums in self.sums.values() if nonce in sums.rows), None)

    def _summed(self, sender: str, summed: Summed) -> list[Effect]:
        rows, values = self._rows(summed.nonce), summed.values
        if rows is not None and (values.shape != rows.shape or values.dtype != np.float64):
            raise RemoteProtocolError(sender, f"a sum of shape {values.shape}, expected {rows.shape} float64")
        return self._take(summed.nonce, values)

    def _take(self, nonce: int, values: Array) -> list[Effect]:
        number = next((number for number, sums in self.sums.items() if nonce in sums.rows), None)
        if number is None:
            return []  # too late
        sums = self.sums[number]
        sums.theta[sums.rows.pop(nonce)] = values
        return [] if sums.rows else self._answer(number)

    def _too_late(self, number: int) -> list[Effect]:
        return self._give_up(number, "") if number in self.sums else super()._too_late(number)

    def _give_up(self, number: int, peer: str) -> list[Effect]:
        """Sums that will not be; whose fault it is, the server cannot always know."""
        sums = self.sums[number]
        for rows in sums.rows.values():
            sums.request.what[rows] = AWAY
        sums.request.away += [peer] if peer else []
        sums.rows = {}
        return self._answer(number)

    def _answer(self, number: int) -> list[Effect]:
        sums = self.sums.pop(number)
        values = self._predictions(sums.theta).reshape(len(sums.theta), -1)
        return [CancelTimer(str(number)), Emit(Computed(number, values, sums.request.what, sums.request.away))]
