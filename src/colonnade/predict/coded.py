"""Predictions by coded sums, for `fedvs`: the server decodes the sum of all embeddings of an id, and no other.

A request has two halves, as with masked sums (`summed`). First every party says which ids it has. Then, for those that
all have, every party shares its rows and its weights with all others, under fresh masks and blinding, over the sealed
relay (Alg. 1 l. 2–8, 14–18); each multiplies and adds what it holds (Eq. (5)) and answers; any R answers decode, so who
straggles after sharing, or dies, is done without. S is always everybody: sums over different S would tell a single
embedding by subtraction. Hence nobody stands in for a party that is away or lacks an id, and a party whose last sums of
the training were over others than everybody, with the same weights, does not predict at all.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from colonnade.algorithms.fedvs.coding import average, coded_sum, share_data, share_model
from colonnade.algorithms.fedvs.holdings import check_elements
from colonnade.algorithms.fedvs.party import Party
from colonnade.algorithms.fedvs.server import Server
from colonnade.data import Lookup
from colonnade.predict.messages import PAYLOADS, Asked
from colonnade.predict.party import PredictParty
from colonnade.predict.server import PredictServer
from colonnade.predict.summed import Contribute, SummedServer, found_without_values
from colonnade.privacy.field import MAX_INNER, total
from colonnade.privacy.secret import SecretKey
from colonnade.privacy.sharing import Segmentation
from colonnade.protocol.errors import ConfigError, RemoteProtocolError
from colonnade.protocol.events import Effect, Event, PeerLost, Received, Send, Started, Work, WorkDone
from colonnade.protocol.messages import Array, Message, Payload
from colonnade.protocol.role import SERVER

__all__ = ["CODED_PAYLOADS", "CodedParty", "CodedServer"]

PENDING = 64  # sums under way, or of which shares came before their order; the oldest are forgotten


class CodedShare(Message, frozen=True):
    """Party → party: its rows of the asked ids, its weights, and blinding, in the receiver's shares."""

    nonce: int
    asked: bytes  # of which ids, hashed: the server must not ask one for others than the rest
    data: Array  # (places, terms)
    model: Array  # (terms, h)
    blinding: Array  # (places, h), or of no places


class CodedAnswer(Message, frozen=True):
    """Party → server: the coded sum over all parties, blinded."""

    nonce: int
    values: Array  # (places, h)


class ShareTerms(Payload, frozen=True):
    """Party's job: its shares for everybody."""

    draw: int  # never the same again: masks are drawn by it
    nonce: int
    ids: list[str]


class TermsShared(Payload, frozen=True):
    """Its result, with one line for each party."""

    nonce: int
    data: Array
    models: Array
    blindings: Array


class AddUp(Payload, frozen=True):
    """Party's job, Eq. (5); its result is a `CodedAnswer`."""

    nonce: int
    x: Array
    w: Array
    blinding: Array


class DecodeSum(Payload, frozen=True):
    """Server's job, Eq. (6), (7)."""

    nonce: int
    rows: int
    answers: list[Array]
    who: list[int]


class SumDecoded(Payload, frozen=True):
    """Its result: the average embedding of each id."""

    nonce: int
    values: Array  # (ids, h) float32


CODED_PAYLOADS: tuple[type[Payload], ...] = (
    *(*PAYLOADS, Contribute, CodedShare, CodedAnswer),
    *(ShareTerms, TermsShared, AddUp, DecodeSum, SumDecoded),
)


@dataclass(slots=True)
class Pending:
    """A sum that is under way."""

    places: int = -1  # -1: its order has not come yet
    asked: bytes = b""
    shares: dict[int, CodedShare] = field(default_factory=dict)


class CodedParty(PredictParty):
    """Holds W, its rows by id, and shares of sums that are under way."""

    _trained: Party

    def __init__(self, trained: Party, table: Lookup, names: tuple[str, ...], options: Any) -> None:
        everybody = list(range(len(names)))
        if any(summed != everybody for _, _, summed in trained.answered.sums):
            advice = (
                f"the last sums that {trained.name} answered for, with the weights it has, were not over all parties: "
                "sums over all would tell an embedding by subtraction; train on, and let all be there at the end"
            )
            raise ConfigError("--predict", trained.name, advice)
        super().__init__(trained, table, 0, None)
        self._names, self._index, self._options = names, names.index(trained.name), options
        self._code, self._key = options.code(len(names)), SecretKey()
        self.sums: dict[int, Pending] = {}

    def handle(self, event: Event, now: int) -> list[Effect]:
        """One event."""
        match event:
            case Started(entropy=entropy):
                self._key.renew(entropy)
                return []
            case Received(sender=sender, message=Contribute() as message) if sender == SERVER:
                return self._open(message)
            case Received(sender=sender, message=CodedShare() as message) if sender in self._names:
                return self._take(self._names.index(sender), message)
            case WorkDone(result=TermsShared() as shared):
                return self._shared(shared)
            case WorkDone(result=CodedAnswer() as answer):
                return [Send(SERVER, answer)]
        return super().handle(event, now)

    def _pending(self, nonce: int) -> Pending:
        while len(self.sums) >= PENDING and nonce not in self.sums:
            del self.sums[next(iter(self.sums))]
        return self.sums.setdefault(nonce, Pending())

    def _open(self, message: Contribute) -> list[Effect]:
        """Always over all parties: the server has no say in whose embeddings are summed."""
        self.check_sum(message.ids)
        pending = self._pending(message.nonce)
        if pending.places >= 0:
            raise RemoteProtocolError(SERVER, "asks for one sum twice")
        pending.places = Segmentation(len(message.ids), self._options.K).length
        pending.asked = hashlib.sha256(msgspec.msgpack.encode(message.ids)).digest()
        for n, share in pending.shares.items():
            self._check(n, share, pending)
        return [self._work(ShareTerms(self.jobs + 1, message.nonce, message.ids))]

    def _take(self, n: int, share: CodedShare) -> list[Effect]:
        pending = self._pending(share.nonce)
        if n == self._index or n in pending.shares:
            raise RemoteProtocolError(self._names[n], "sends shares of one sum twice")
        if pending.places >= 0:
            self._check(n, share, pending)
        pending.shares[n] = share
        return self._add_up(share.nonce)

    def _check(self, n: int, share: CodedShare, pending: Pending) -> None:
        sender, terms, width, places = self._names[n], len(share.model), self._trained.width, pending.places
        if share.asked != pending.asked:
            raise RemoteProtocolError(sender, "was asked for other ids: the server must ask all for the same")
        if not 0 < terms <= MAX_INNER:
            raise RemoteProtocolError(sender, f"a coded model of {terms} terms")
        check_elements(sender, "coded data", share.data, (places, terms))
        check_elements(sender, "a coded model", share.model, (terms, width))
        check_elements(sender, "blinding", share.blinding, (places if self._options.blinding else 0, width))

    def _shared(self, shared: TermsShared) -> list[Effect]:
        pending = self.sums.get(shared.nonce)
        if pending is None:
            return []  # too many others came between
        shares = [
            CodedShare(shared.nonce, pending.asked, *parts)
            for parts in zip(shared.data, shared.models, shared.blindings, strict=True)
        ]
        pending.shares[self._index] = shares[self._index]
        sends: list[Effect] = [Send(name, shares[n]) for n, name in enumerate(self._names) if n != self._index]
        return [*sends, *self._add_up(shared.nonce)]

    def _add_up(self, nonce: int) -> list[Effect]:
        """Once everybody's share is here."""
        if len(self.sums[nonce].shares) < len(self._names):
            return []
        shares = [share for _, share in sorted(self.sums.pop(nonce).shares.items())]
        x = np.concatenate([share.data for share in shares], axis=1)
        w = np.concatenate([share.model for share in shares])
        return [self._work(AddUp(nonce, x, w, total([share.blinding for share in shares])))]

    def compute(self, job: Payload) -> Payload:
        """A job, without changing any state."""
        match job:
            case ShareTerms():
                return self._share(job)
            case AddUp():
                return CodedAnswer(job.nonce, coded_sum(job.x, job.w, job.blinding))
        return found_without_values(self._table, job) or super().compute(job)

    def _share(self, job: ShareTerms) -> TermsShared:
        """As test rows and models are shared."""
        x, weights, rounding = self._trained.to_predict(self._table.x[self._table.find(job.ids)])
        data = share_data(x, self._code, self._key.seed("data", job.draw))
        masks, blinding = self._key.seed("masks", job.draw), self._key.seed("blinding", job.draw)
        places = data.shape[1] if self._options.blinding else 0
        return TermsShared(
            job.nonce, data, *share_model(weights, places, self._code, self._options.l_w, rounding, masks, blinding)
        )


class CodedServer(SummedServer):
    """Asks for sums, decodes them, and runs its network on their average."""

    def __init__(self, trained: Server, parties: tuple[str, ...], options: Any, deadline_s: float) -> None:
        network = trained.network
        super().__init__(parties, lambda h: network.objective.predict(network.output(h)), deadline_s)
        self._options, self._code = options, options.code(len(parties))
        self._shape = (trained.width,)
        self.answers: dict[int, dict[int, Array]] = {}

    def handle(self, event: Event | Asked, now: int) -> list[Effect]:
        """One event; who leaves after sharing is not missed, and the deadline ends what cannot be decoded."""
        match event:
            case Received(sender=sender, message=CodedAnswer() as answer) if sender in self._index:
                return self._answered(sender, answer)
            case WorkDone(result=SumDecoded() as decoded):
                return self._take(decoded.nonce, decoded.values)
            case PeerLost():
                return PredictServer.handle(self, event, now)
        return super().handle(event, now)

    def _answered(self, sender: str, answer: CodedAnswer) -> list[Effect]:
        rows = self._rows(answer.nonce)
        answers = self.answers.setdefault(answer.nonce, {}) if rows is not None else {}
        if rows is None or len(answers) >= self._code.needed:
            return []  # too late: R were enough
        places = Segmentation(len(rows), self._options.K).length
        check_elements(sender, "a coded sum", answer.values, (places, *self._shape))
        answers[self._index[sender]] = answer.values
        if len(answers) < self._code.needed:
            return []
        self.jobs += 1
        job = DecodeSum(answer.nonce, len(rows), list(answers.values()), list(answers))
        return [Work(self.jobs, "predict", 0.0, job, aside=True)]

    def compute(self, job: Payload) -> Payload:
        """A job, without changing any state."""
        if not isinstance(job, DecodeSum):
            return super().compute(job)
        cut = Segmentation(job.rows, self._options.K)
        decoded = self._code.decode(job.answers, job.who)
        values = average(decoded, len(self._parties), self._options.l_x + self._options.l_w)
        return SumDecoded(job.nonce, cut.samples(values, np.arange(cut.length)))

    def _answer(self, number: int) -> list[Effect]:
        effects = super()._answer(number)
        self.answers = {nonce: held for nonce, held in self.answers.items() if self._rows(nonce) is not None}
        return effects
