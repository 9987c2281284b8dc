"""Predictions by masked sums, for the linear methods: of an id, the server learns only the sum of all margins.

Each party contributes its margins under a fresh mask, over the two trees of Alg. 2 (no two of them have a subtree in
common). The root, a different party each time, sends the sum to the server.

The weights that predict have one set of parties for their whole life: all parties. A party does not predict at all if,
at its current weights, its last sums in training were over other parties. A sum carries a digest of its ids, so a
server that asks parties for different ids gets no sum.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np

from colonnade.algorithms.asysqn.aggregation import WAITING, Aggregations
from colonnade.algorithms.asysqn.config import LinearOptions
from colonnade.algorithms.asysqn.holdings import predictions
from colonnade.algorithms.asysqn.messages import Ask as Opening
from colonnade.algorithms.asysqn.messages import MarginsMade, Masked, Masks
from colonnade.algorithms.asysqn.party import Party
from colonnade.algorithms.chassis import PARTY, done, job, on
from colonnade.algorithms.prediction.messages import PAYLOADS, UNANSWERABLE, Question
from colonnade.algorithms.prediction.party import MAX_ASKED, AnsweringState
from colonnade.algorithms.prediction.predictor import (
    Predictor,
    PredictPartySetup,
    PredictServerSetup,
    RowsById,
    TrainedRoles,
)
from colonnade.algorithms.prediction.sums import Contribute, SumParty, SumServer, SumServerState
from colonnade.privacy import masking
from colonnade.protocol.errors import ConfigError, RemoteProtocolError, TrainingDiverged
from colonnade.protocol.events import Send
from colonnade.protocol.finite import all_finite
from colonnade.protocol.messages import Array, Message, Payload
from colonnade.protocol.quota import Bucket
from colonnade.protocol.role import SERVER, Role
from colonnade.protocol.saved import transient

__all__ = ["Summed", "SummedParty", "SummedPredictor", "SummedServer"]

NO_ROWS = np.zeros(0, np.int32)


class Summed(Message, frozen=True):
    """Root → server: the sum over all parties."""

    nonce: int
    values: Array  # (ids,) float64


class MakeTerm(Payload, frozen=True):
    """Job of a party: its own margins under a mask; the result is `MarginsMade`, as in training."""

    draw: int
    nonce: int
    ids: list[str]


class Unanswerable(Payload, frozen=True):
    """Result of `MakeTerm` if a margin does not fit into masked sums."""

    nonce: int
    ids: int


@dataclass(slots=True, kw_only=True)
class SummedPartyState(AnsweringState):
    """The state of a party that contributes margins."""

    roots: dict[int, int] = transient(dict)  # nonce → root, for own terms that are being made


class SummedParty(SumParty[SummedPartyState]):
    """Holds w_ℓ, its rows by id, and its part in sums that are under way."""

    def __init__(
        self,
        trained: Party,
        table: RowsById,
        names: tuple[str, ...],
        options: LinearOptions,
        quota: Sequence[Bucket] = (),
    ) -> None:
        if trained.estimator.w.any() and trained.fence.members() - {tuple(range(len(names)))}:
            advice = (
                f"the last sums that {trained.name} contributed to with these weights left out some parties. A sum "
                "over all parties would now reveal one party's margins by subtraction. Train again, with all "
                "parties present at the end"
            )
            raise ConfigError("--predict", trained.name, advice)
        super().__init__(trained.name, table, names, SummedPartyState(), quota)
        self._trained, self._options = trained, options
        self._masked = options.masking == "on"
        self.sums = Aggregations(
            self.own, names, self._masked, options.fan_out, options.fraction_bits, WAITING, MAX_ASKED
        )

    @on(Contribute, SERVER)
    def contribute(self, sender: str, message: Contribute) -> None:
        """Start this party's term. The sum is always over all parties; the server cannot choose them."""
        ids, root, nonce = message.ids, message.root, message.nonce
        if not self.may_sum(ids, possible=0 <= root < len(self.names) and nonce not in self.state.roots):
            return
        opening = Opening(nonce, list(range(len(self.names))), False, NO_ROWS)
        self.sums.open(root, opening, len(ids), hashlib.sha256(msgspec.msgpack.encode(ids)).digest())
        self.state.roots[nonce] = root
        self.aside(MakeTerm(self.state.jobs + 1, nonce, ids))

    @job(MakeTerm)
    def make_term(self, job: MakeTerm) -> MarginsMade | Unanswerable:
        """Alg. 2 l. 2: θ + δ, and δ."""
        theta = self._trained.margins(self.table.x[self.table.find(job.ids)])
        try:
            term = masking.encode(np.asarray(theta, np.float64), self._options.fraction_bits, len(self.names))
        except TrainingDiverged:
            return Unanswerable(job.nonce, len(job.ids))
        if not self._masked:
            return MarginsMade(job.nonce, 0, term, np.zeros(0, np.uint64))
        masks = masking.masks(self.key.seed("mask", job.draw), len(term))
        return MarginsMade(job.nonce, 0, masking.add(term, masks), masks)

    @done(MarginsMade)
    def term_made(self, token: int, result: MarginsMade) -> None:
        """Add the term to the children's sums."""
        root = self.state.roots.pop(result.nonce)
        self._pass_on(self.sums.contribute(root, result.nonce, result), result.nonce)

    @done(Unanswerable)
    def unanswerable(self, token: int, result: Unanswerable) -> None:
        """Give up the sum. The server's deadline ends the request."""
        self.record(Question(result.ids, 0, result.ids, UNANSWERABLE))
        self.sums.drop(self.state.roots.pop(result.nonce), result.nonce)

    @on(Masked, PARTY)
    def masked(self, sender: str, message: Masked) -> None:
        """A child's sum on T1."""
        self._pass_on(self.sums.receive(self.names.index(sender), message), message.nonce)

    @on(Masks, PARTY)
    def masks(self, sender: str, message: Masks) -> None:
        """A child's sum on T2."""
        self._pass_on(self.sums.receive(self.names.index(sender), message), message.nonce)

    def _pass_on(self, sends: Sequence[Send], nonce: int) -> None:
        """Send sums to the parent; the root sends the total to the server."""
        self.do(sends)
        total = self.sums.take_total(nonce)
        if total is not None:
            self.send(SERVER, Summed(nonce, total.theta))


class SummedServer(SumServer[SumServerState]):
    """Gets each sum from its root; if a party is missing, there is no sum."""

    def __init__(self, parties: tuple[str, ...], predictions: Callable[[Array], Array], deadline_s: float) -> None:
        super().__init__(parties, predictions, deadline_s, SumServerState())

    @on(Summed, PARTY)
    def summed(self, sender: str, message: Summed) -> None:
        """A sum from its root."""
        rows, values = self.rows_of(message.nonce), message.values
        if rows is not None and (values.shape != rows.shape or values.dtype != np.float64 or not all_finite(values)):
            raise RemoteProtocolError(sender, f"a sum of shape {values.shape}, expected {rows.shape} finite float64")
        self.take(message.nonce, values)

    def peer_lost(self, peer: str) -> None:
        """Sums that are under way cannot complete."""
        under_way = list(self.state.sums)
        super().peer_lost(peer)
        for number in under_way:
            self.give_up(number, peer)


class SummedPredictor(Predictor[LinearOptions, Role, Party]):
    """Predicts from sums of margins, which are all that the server learns."""

    payloads = (*PAYLOADS, Contribute, Summed, Masked, Masks, MakeTerm, MarginsMade, Unanswerable)
    peers = True

    def server(self, setup: PredictServerSetup[LinearOptions, Role]) -> SummedServer:
        """The server's role. It has no weights, and needs only the task."""
        return SummedServer(setup.parties, partial(predictions, task=setup.task), setup.deadline_s)

    def party(self, setup: PredictPartySetup[LinearOptions, Party]) -> SummedParty:
        return SummedParty(setup.trained, setup.table, setup.parties, setup.options, setup.quota)

    def in_one_place(
        self, roles: TrainedRoles[LinearOptions, Role, Party], blocks: Sequence[Array], number: int
    ) -> Array:
        """Predictions from the sum of all parties' margins."""
        theta = sum(party.margins(block) for party, block in zip(roles.parties, blocks, strict=True))
        return predictions(np.asarray(theta), roles.task)
