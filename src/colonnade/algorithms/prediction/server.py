"""The server that answers requests. It asks every connected party and waits until all have answered, or until the
deadline. Then the policy fills in what is missing, and the server runs its network once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Generic, TypeVar

import numpy as np

from colonnade.algorithms.chassis import PARTY, Chassis, RoleState, done, job, on
from colonnade.algorithms.evaluation import Evaluation
from colonnade.algorithms.prediction.messages import (
    REASONS,
    Ask,
    Asked,
    Compute,
    Computed,
    Declined,
    Found,
    Mean,
    PartyDeclined,
)
from colonnade.algorithms.prediction.party import MAX_ASKED
from colonnade.algorithms.prediction.standing_in import AWAY, LACKS, SENT, StandIns
from colonnade.algorithms.sane import are_sane
from colonnade.algorithms.table import blocks_of
from colonnade.models import ServerNetwork
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError
from colonnade.protocol.events import NANOSECONDS, Emit, Event
from colonnade.protocol.messages import Array
from colonnade.protocol.role import SERVER, RoleSummary
from colonnade.protocol.saved import transient

__all__ = ["AskingServer", "AskingState", "PredictServer", "PredictionRequest"]

CHUNK_NUMBERS = 2**20  # in one answer of a party


@dataclass(slots=True)
class PredictionRequest:
    """A request without an answer yet."""

    ids: list[str]
    h: Array  # (rows, Σ widths)
    what: Array  # (rows, parties) uint8
    owed: dict[str, list[int]] = field(default_factory=dict)  # party → first rows of the chunks that it has not sent
    away: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class AskingState(RoleState):
    """State of every predicting server. The process saves nothing of it."""

    requests: dict[int, PredictionRequest] = transient(dict)


S = TypeVar("S", bound=AskingState)


class AskingServer(Chassis[S], Generic[S]):
    """What predicting servers share: they ask the parties for ids, and continue without those that do not answer."""

    gated = True

    def __init__(self, parties: Sequence[str], widths: Sequence[int], deadline_s: float, state: S) -> None:
        super().__init__(SERVER, dict.fromkeys(parties, PARTY), state)
        self.parties, self._widths, self._blocks = tuple(parties), tuple(widths), blocks_of(widths)
        self.index = MappingProxyType({name: n for n, name in enumerate(parties)})
        self.deadline = round(deadline_s * NANOSECONDS)

    # What a method defines.

    def conclude(self, number: int, request: PredictionRequest) -> None:
        """Answer a request for which all parties have answered or are away."""
        raise NotImplementedError

    def means(self) -> Mapping[str, Array]:
        """Return the vector that replaces each party that is away."""
        return {}

    def noted(self, party: int, ids: Sequence[str], found: Found) -> None:
        """React to a party's answer for these ids."""

    # Events.

    def gate(self, event: Event | Asked) -> bool:
        """Take questions, which come from outside and not from a peer."""
        if not isinstance(event, Asked):
            return False
        self._asked(event)
        return True

    def rang(self, timer: str, due: int) -> None:
        """End the wait for the request with this number at its deadline."""
        self.too_late(int(timer))

    def joined(self, peer: str, reset: bool) -> None:
        """Stop waiting for a party that has restarted, since it has forgotten the questions."""
        if reset:
            self._lose(peer)

    def peer_lost(self, peer: str) -> None:
        """Stop waiting for the party."""
        self._lose(peer)

    def _asked(self, asked: Asked) -> None:
        rows, here = len(asked.ids), [name for name in self.parties if name in asked.here]
        what = np.empty((rows, len(self.parties)), np.uint8)
        what.fill(AWAY)
        request = PredictionRequest(asked.ids, np.zeros((rows, sum(self._widths)), np.float32), what)
        self.state.requests[asked.number] = request
        request.away = [name for name in self.parties if name not in asked.here]
        for name in here:
            chunk = self._chunk(name)
            request.owed[name] = list(range(0, rows, chunk))
            for start in request.owed[name]:
                self.send(name, Ask(asked.number, start, asked.ids[start : start + chunk]))
        self.wake(str(asked.number), self.now + self.deadline)
        self._finish_if_complete(asked.number)

    def _chunk(self, name: str) -> int:
        return max(1, min(MAX_ASKED, CHUNK_NUMBERS // max(1, self._widths[self.index[name]])))

    @on(Found, PARTY)
    def found(self, sender: str, message: Found) -> None:
        """Keep a chunk; ignore one whose request is already answered."""
        request = self.state.requests.get(message.number)
        if request is None or message.start not in request.owed.get(sender, ()):
            return
        party = self.index[sender]
        ids = request.ids[message.start : message.start + self._chunk(sender)]
        self._check(sender, message, len(ids))
        rows, block = slice(message.start, message.start + len(ids)), self._blocks[party]
        if len(message.values) == len(ids):  # it has them all
            request.h[rows, block], request.what[rows, party] = message.values, SENT
        else:
            request.h[rows, block][message.has] = message.values
            request.what[rows, party] = np.where(message.has, np.uint8(SENT), np.uint8(LACKS))
        self.noted(party, ids, message)
        self._settle(request, sender, message.start)
        self._finish_if_complete(message.number)

    @on(Declined, PARTY)
    def declined(self, sender: str, message: Declined) -> None:
        """Treat the party as away for this chunk."""
        request = self.state.requests.get(message.number)
        if request is None or message.start not in request.owed.get(sender, ()):
            return
        if sender not in request.away:
            request.away.append(sender)
        self.do([Emit(PartyDeclined(sender, message.why if message.why in REASONS else "unknown"))])
        self._settle(request, sender, message.start)
        self._finish_if_complete(message.number)

    def _settle(self, request: PredictionRequest, sender: str, start: int) -> None:
        request.owed[sender].remove(start)
        if not request.owed[sender]:
            del request.owed[sender]

    def _check(self, sender: str, found: Found, rows: int) -> None:
        has, values, width = found.has, found.values, self._widths[self.index[sender]]
        if has.shape != (rows,) or has.dtype != np.bool_:
            raise RemoteProtocolError(sender, f"answers for {has.shape} ids, but was asked for {rows}")
        expected = (int(np.count_nonzero(has)), width)
        if values.shape != expected or values.dtype != np.float32 or not are_sane(values):
            raise RemoteProtocolError(sender, f"embeddings of shape {values.shape}, expected {expected} sane float32")

    def too_late(self, number: int) -> None:
        """Treat parties that have not answered by the deadline as away."""
        request = self.state.requests.get(number)
        for name in list(request.owed) if request is not None else ():
            self._lose_in(number, name)

    def _lose(self, peer: str) -> None:
        for number in list(self.state.requests):
            self._lose_in(number, peer)

    def _lose_in(self, number: int, peer: str) -> None:
        request = self.state.requests[number]
        if request.owed.pop(peer, None) is not None:
            request.away += [peer] if peer not in request.away else []
            self._finish_if_complete(number)

    def _finish_if_complete(self, number: int) -> None:
        if not self.state.requests[number].owed:
            self.conclude(number, self.state.requests.pop(number))

    def validate(self) -> None:
        """Raise LocalProtocolError if a request that waits for no party is unanswered."""
        for number, request in self.state.requests.items():
            if not request.owed:
                raise LocalProtocolError(f"server: request {number} waits for no party")

    def summary(self) -> RoleSummary:
        """Report the number of jobs."""
        return {"jobs": self.state.jobs}


class PredictServer(AskingServer[AskingState]):
    """Holds the trained θ_0, and what may replace a party's block."""

    def __init__(
        self,
        parties: Sequence[str],
        widths: Sequence[int],
        network: ServerNetwork,
        evaluation: Evaluation,
        stand_ins: StandIns,
        deadline_s: float,
    ) -> None:
        super().__init__(parties, widths, deadline_s, AskingState())
        self._network, self._evaluation, self.stand_ins = network, evaluation, stand_ins

    @on(Mean, PARTY)
    def mean(self, sender: str, message: Mean) -> None:
        """Keep the vector that replaces the party when it is away."""
        values, width = message.values, self._widths[self.index[sender]]
        if values.shape != (width,) or values.dtype != np.float32 or not are_sane(values):
            raise RemoteProtocolError(sender, f"a mean of shape {values.shape}, expected ({width},) sane float32")
        self.stand_ins.learned({self.index[sender]: values.copy()})
        self.do([Emit(Mean(values))])

    def means(self) -> Mapping[str, Array]:
        """Return the vector that replaces each party."""
        return {self.parties[party]: vector for party, vector in self.stand_ins.fallback.items()}

    def noted(self, party: int, ids: Sequence[str], found: Found) -> None:
        """Update the cache with a party's answer."""
        self.stand_ins.sent(party, ids, found.has, found.values)

    def conclude(self, number: int, request: PredictionRequest) -> None:
        """Let the policy fill in what is missing, and run the network."""
        self.stand_ins.fill(request.h, request.what, request.ids)
        self.forget_timer(str(number))
        self.work("predict", 0.0, Compute(number, request.h, request.what, request.away), aside=True)

    @job(Compute)
    def predict(self, job: Compute) -> Computed:
        """Run θ_0 on the blocks of all parties."""
        values = self._network.predict(self._evaluation.gathered(job.h))
        return Computed(job.number, values.reshape(len(job.h), -1), job.blocks, job.away)

    @done(Computed)
    def predicted(self, token: int, result: Computed) -> None:
        """Emit the answer for the caller."""
        self.do([Emit(result)])
