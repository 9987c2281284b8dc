"""Predictions by coded sums, for `fedvs`: of an id, the server decodes only the sum of all embeddings.

Every party shares its rows and its weights with all others, under fresh masks and blinding, over the sealed relay (Alg.
1 l. 2–8, 14–18). Each party multiplies and adds the shares it holds (Eq. (5)) and answers. Any R answers decode, so the
server can do without a party that straggles or stops after sharing. With `spare`, the server waits for as many answers
more, for half of the deadline, and finds wrong ones as in training. S is always all parties. A party does not predict
at all if, at the same weights, its last sums in training were over other parties.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from colonnade.algorithms.chassis import PARTY, done, job, on
from colonnade.algorithms.fedvs.coding import average, average_in_plain, coded_sum, share_data, share_model
from colonnade.algorithms.fedvs.config import FedvsOptions
from colonnade.algorithms.fedvs.holdings import check_elements
from colonnade.algorithms.fedvs.party import Party
from colonnade.algorithms.fedvs.server import Server
from colonnade.algorithms.prediction.messages import PAYLOADS
from colonnade.algorithms.prediction.party import AnsweringState
from colonnade.algorithms.prediction.predictor import (
    Predictor,
    PredictPartySetup,
    PredictServerSetup,
    RowsById,
    TrainedRoles,
)
from colonnade.algorithms.prediction.sums import Contribute, SumParty, SumServer, SumServerState
from colonnade.algorithms.remarks import Remark
from colonnade.models import ServerNetwork
from colonnade.models.joint import Joint
from colonnade.privacy.field import MAX_INNER, total
from colonnade.privacy.sharing import Segmentation
from colonnade.protocol.errors import ConfigError, RemoteProtocolError
from colonnade.protocol.events import Emit
from colonnade.protocol.messages import Array, Message, Payload
from colonnade.protocol.quota import Bucket
from colonnade.protocol.role import SERVER
from colonnade.protocol.saved import transient

__all__ = ["CodedAnswer", "CodedParty", "CodedPredictor", "CodedServer", "CodedShare"]

SPARE = "spare "  # timers: with the nonce of a sum
PENDING = 64  # sums to keep that are under way, or whose shares came before their order; the oldest are dropped


class CodedShare(Message, frozen=True):
    """Party → party: its rows of the asked ids, its weights, and blinding, in the receiver's shares."""

    nonce: int
    asked: bytes  # digest of the ids: the server must not ask parties for different ids
    data: Array  # (places, terms)
    model: Array  # (terms, h)
    blinding: Array  # (places, h), or without places


class CodedAnswer(Message, frozen=True):
    """Party → server: the coded sum over all parties, blinded."""

    nonce: int
    values: Array  # (places, h)


class ShareTerms(Payload, frozen=True):
    """Party's job: its shares for all parties."""

    draw: int  # names the masks; never used again
    nonce: int
    ids: list[str]


class TermsShared(Payload, frozen=True):
    """Result of `ShareTerms`, with one line for each party."""

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
    answers: Array  # (answers, places, h)
    who: list[int]
    draw: int  # names the key of the check


class SumDecoded(Payload, frozen=True):
    """Result of `DecodeSum`: the average embedding of each id."""

    nonce: int
    values: Array  # (ids, h) float32
    wrong: list[int]  # parties whose answers were wrong, and left out


class SumDoubted(Payload, frozen=True):
    """Result of `DecodeSum`: some answers are wrong, and these are too few to tell which."""

    nonce: int


@dataclass(slots=True)
class Pending:
    """A sum that is under way."""

    places: int = -1  # -1: its order has not come yet
    asked: bytes = b""
    shares: dict[int, CodedShare] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class CodedPartyState(AnsweringState):
    """The state of a party that shares its rows and weights."""

    sums: dict[int, Pending] = transient(dict)  # nonce → the shares that are here


class CodedParty(SumParty[CodedPartyState]):
    """Holds W, its rows by id, and shares of sums that are under way."""

    def __init__(
        self,
        trained: Party,
        table: RowsById,
        names: tuple[str, ...],
        options: FedvsOptions,
        quota: Sequence[Bucket] = (),
    ) -> None:
        everyone = set(range(len(names)))
        if any(set(weights) != everyone for _, _, weights in trained.answered.sums):
            advice = (
                f"with its present weights, {trained.name} has answered sums that left out some parties. "
                "A sum over all parties would now reveal an embedding by subtraction. Train further, with all "
                "parties present at the end"
            )
            raise ConfigError("--predict", trained.name, advice)
        super().__init__(trained.name, table, names, CodedPartyState(), quota)
        self._trained, self._options, self._code = trained, options, options.code(len(names))

    def _pending(self, nonce: int) -> Pending:
        sums = self.state.sums
        while len(sums) >= PENDING and nonce not in sums:
            del sums[next(iter(sums))]
        return sums.setdefault(nonce, Pending())

    @on(Contribute, SERVER)
    def contribute(self, sender: str, message: Contribute) -> None:
        """Start this party's shares. The sum is always over all parties; the server cannot choose them."""
        early = self.state.sums.get(message.nonce, Pending())
        if not self.may_sum(message.ids, possible=early.places < 0):
            return
        places = Segmentation(len(message.ids), self._code.segments).length
        asked = hashlib.sha256(msgspec.msgpack.encode(message.ids)).digest()
        for n, share in early.shares.items():
            self._check(n, share, Pending(places, asked))
        pending = self._pending(message.nonce)
        pending.places, pending.asked = places, asked
        self.aside(ShareTerms(self.state.jobs + 1, message.nonce, message.ids))

    @on(CodedShare, PARTY)
    def share(self, sender: str, message: CodedShare) -> None:
        """Take another party's share; it may come before the order."""
        n, pending = self.names.index(sender), self.state.sums.get(message.nonce)
        if pending is not None and n in pending.shares:
            raise RemoteProtocolError(sender, "sends shares of one sum twice")
        if pending is not None and pending.places >= 0:
            self._check(n, message, pending)
        self._pending(message.nonce).shares[n] = message
        self._add_up(message.nonce)

    def _check(self, n: int, share: CodedShare, pending: Pending) -> None:
        sender, terms, width, places = self.names[n], len(share.model), self._trained.width, pending.places
        if share.asked != pending.asked:
            raise RemoteProtocolError(
                sender, "was asked for other ids; the server must ask all parties for the same ids"
            )
        if not 0 < terms <= MAX_INNER:
            raise RemoteProtocolError(sender, f"a coded model of {terms} terms")
        check_elements(sender, "coded data", share.data, (places, terms))
        check_elements(sender, "a coded model", share.model, (terms, width))
        check_elements(sender, "blinding", share.blinding, (places if self._options.blinding else 0, width))

    @job(ShareTerms)
    def share_terms(self, job: ShareTerms) -> TermsShared:
        """Encode the rows as test rows are, and the weights as models are in training."""
        x, weights, rounding = self._trained.to_predict(self.table.x[self.table.find(job.ids)])
        data = share_data(x, self._code, self.key.seed("data", job.draw))
        masks, blinding = self.key.seed("masks", job.draw), self.key.seed("blinding", job.draw)
        places = data.shape[1] if self._options.blinding else 0
        return TermsShared(
            job.nonce, data, *share_model(weights, places, self._code, self._options.l_w, rounding, masks, blinding)
        )

    @done(TermsShared)
    def terms_shared(self, token: int, result: TermsShared) -> None:
        """Send each party its share."""
        pending = self.state.sums.get(result.nonce)
        if pending is None:
            return  # dropped, because too many other sums came since
        shares = [
            CodedShare(result.nonce, pending.asked, *parts)
            for parts in zip(result.data, result.models, result.blindings, strict=True)
        ]
        pending.shares[self.own] = shares[self.own]
        for n, name in enumerate(self.names):
            if n != self.own:
                self.send(name, shares[n])
        self._add_up(result.nonce)

    def _add_up(self, nonce: int) -> None:
        """Start the sum, once the shares of all parties are here."""
        if len(self.state.sums[nonce].shares) < len(self.names):
            return
        shares = [share for _, share in sorted(self.state.sums.pop(nonce).shares.items())]
        x = np.concatenate([share.data for share in shares], axis=1)
        w = np.concatenate([share.model for share in shares])
        self.aside(AddUp(nonce, x, w, total([share.blinding for share in shares])))

    @job(AddUp)
    def add_up(self, job: AddUp) -> CodedAnswer:
        """Eq. (5)."""
        return CodedAnswer(job.nonce, coded_sum(job.x, job.w, job.blinding))

    @done(CodedAnswer)
    def added_up(self, token: int, result: CodedAnswer) -> None:
        """Send the coded sum to the server."""
        self.send(SERVER, result)


@dataclass(slots=True)
class Answers:
    """The answers to one sum."""

    values: dict[int, Array] = field(default_factory=dict)  # party → its coded sum
    lost: set[int] = field(default_factory=set)  # parties that have left since the sum began
    decoding: bool = False
    doubted: int = 0  # so many answers did not fit together
    late: bool = False  # the time for spare answers is over

    def decodable(self, needed: int, spare: int, parties: int) -> bool:
        """Whether `needed` answers are here, and the spare ones that can still come; more than were doubted."""
        hopeful = len(self.values) if self.late else len(self.values.keys() | (set(range(parties)) - self.lost))
        wanted = max(needed, min(needed + spare, hopeful), self.doubted + 1 if self.doubted else 0)
        return not self.decoding and len(self.values) >= wanted

    def disputed(self, parties: int) -> bool:
        """Whether wrong answers cannot be located, and no more answers can come."""
        hopeful = len(self.values.keys() | (set(range(parties)) - self.lost))
        return bool(self.doubted) and not self.decoding and hopeful <= self.doubted


@dataclass(slots=True, kw_only=True)
class CodedServerState(SumServerState):
    """The state of a server that decodes sums."""

    answers: dict[int, Answers] = transient(dict)  # by nonce


class CodedServer(SumServer[CodedServerState]):
    """Asks for sums, decodes them, and runs its network on their average.

    The server does not need a party that leaves after sharing. The deadline ends a sum that cannot be decoded.
    """

    def __init__(self, trained: Server, parties: tuple[str, ...], options: FedvsOptions, deadline_s: float) -> None:
        network = trained.network
        super().__init__(
            parties, lambda h: _predictions(network, h), deadline_s, CodedServerState(), (trained.width,), np.float32
        )
        self._options, self._code = options, options.code(len(parties))

    @on(CodedAnswer, PARTY)
    def answer(self, sender: str, message: CodedAnswer) -> None:
        """Take a coded sum; R of them decode, and spare ones show whether they are right."""
        n, rows, nonce = self.index[sender], self.rows_of(message.nonce), message.nonce
        if rows is None:
            return  # too late
        answers = self.state.answers.get(nonce, Answers())
        if n in answers.values:
            raise RemoteProtocolError(sender, "answers one sum twice")
        places = Segmentation(len(rows), self._code.segments).length
        check_elements(sender, "a coded sum", message.values, (places, *self.shape))
        if nonce not in self.state.answers and self._options.spare:
            self.wake(f"{SPARE}{nonce}", self.now + self.deadline // 2)
        self.state.answers[nonce] = answers
        answers.values[n] = message.values
        self._advance(nonce)

    def _advance(self, nonce: int) -> None:
        """Decode if enough answers are here; give up a sum whose answers do not fit together."""
        rows, answers, parties = self.rows_of(nonce), self.state.answers[nonce], len(self.parties)
        if rows is None:
            return
        if answers.decodable(self._code.needed, self._options.spare, parties):
            answers.decoding, who = True, sorted(answers.values)
            values = np.stack([answers.values[n] for n in who])
            self.work("predict", 0.0, DecodeSum(nonce, len(rows), values, who, self.state.jobs + 1), aside=True)
        elif answers.disputed(parties):
            for n in sorted(answers.values):
                self.do([Emit(Remark(self.parties[n], "its answer may be wrong: the answers do not fit together"))])
            self.give_up_sum(nonce)

    @job(DecodeSum)
    def decode(self, job: DecodeSum) -> SumDecoded | SumDoubted:
        """Eq. (6), (7), from the answers that are right."""
        code, wrong = self._code, []
        if len(job.who) > code.needed:
            found = code.wrong(job.answers, job.who, self.key.seed("check", job.draw))
            if found is None:
                return SumDoubted(job.nonce)
            wrong = found
        right = [place for place, n in enumerate(job.who) if n not in wrong]
        decoded = code.decode(job.answers[right], [job.who[place] for place in right])
        cut = Segmentation(job.rows, code.segments)
        values = average(decoded, len(self.parties), self._options.l_x + self._options.l_w)
        return SumDecoded(job.nonce, cut.samples(values, np.arange(cut.length)), wrong)

    @done(SumDecoded)
    def decoded(self, token: int, result: SumDecoded) -> None:
        """Use the average embedding of each id. Name the parties whose answers were wrong."""
        for n in result.wrong:
            self.do([Emit(Remark(self.parties[n], "wrong answer to a prediction, left out"))])
        self.take(result.nonce, result.values)

    @done(SumDoubted)
    def doubted(self, token: int, result: SumDoubted) -> None:
        """Wait for more answers, if there can be any."""
        answers = self.state.answers.get(result.nonce)
        if answers is not None:
            answers.decoding, answers.doubted = False, len(answers.values)
            self._advance(result.nonce)

    def rang(self, timer: str, due: int) -> None:
        """Stop waiting for spare answers; or the deadline of a request."""
        if not timer.startswith(SPARE):
            return super().rang(timer, due)
        nonce = int(timer.removeprefix(SPARE))
        if nonce in self.state.answers:
            self.state.answers[nonce].late = True
            self._advance(nonce)

    def joined(self, peer: str, reset: bool) -> None:
        super().joined(peer, reset)
        if reset:
            self._left(peer)

    def peer_lost(self, peer: str) -> None:
        super().peer_lost(peer)
        self._left(peer)

    def _left(self, peer: str) -> None:
        """Do not wait for answers of this party."""
        for nonce, answers in list(self.state.answers.items()):
            answers.lost.add(self.index[peer])
            self._advance(nonce)

    def answered(self) -> None:
        """Drop the coded sums of requests that are over."""
        state = self.state
        over = [nonce for nonce in state.answers if self.rows_of(nonce) is None]
        for nonce in over:
            del state.answers[nonce]
            if self._options.spare:
                self.forget_timer(f"{SPARE}{nonce}")


def _predictions(network: ServerNetwork, h: Array) -> Array:
    return network.objective.predict(network.output(h))


class CodedPredictor(Predictor[FedvsOptions, Server, Party]):
    """Predicts from sums of embeddings, which are all that the server learns."""

    payloads = (
        *(*PAYLOADS, Contribute, CodedShare, CodedAnswer),
        *(ShareTerms, TermsShared, AddUp, DecodeSum, SumDecoded, SumDoubted),
    )
    peers = True
    joint = True

    def server(self, setup: PredictServerSetup[FedvsOptions, Server]) -> CodedServer:
        return CodedServer(setup.trained, setup.parties, setup.options, setup.deadline_s)

    def party(self, setup: PredictPartySetup[FedvsOptions, Party]) -> CodedParty:
        return CodedParty(setup.trained, setup.table, setup.parties, setup.options, setup.quota)

    def in_one_place(
        self, roles: TrainedRoles[FedvsOptions, Server, Party], blocks: Sequence[Array], number: int
    ) -> Array:
        """Predictions from the average embeddings, with the precision of the shares."""
        pairs, options = zip(roles.parties, blocks, strict=True), roles.options
        h = average_in_plain([party.to_predict(block) for party, block in pairs], options.l_x, options.l_w)
        return _predictions(roles.server.network, h)

    def networks(self, roles: TrainedRoles[FedvsOptions, Server, Party]) -> Joint:
        """Return all networks; the average has the parties' own precision, not that of the shares."""
        count = len(roles.parties)
        parts = [party.network for party in roles.parties]
        return Joint(roles.server.network, parts, lambda h: h.reshape(len(h), count, -1).mean(1))
