"""The server that answers: it asks every party that is here, waits until all have answered or the deadline is over,
lets the policy stand in for the rest, and runs its network once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from colonnade.algorithms.evaluation import Evaluation
from colonnade.algorithms.vafl.messages import are_sane
from colonnade.models import ServerNetwork
from colonnade.predict.messages import Ask, Asked, Compute, Computed, Found, Mean
from colonnade.predict.party import MAX_ASKED
from colonnade.predict.standing_in import AWAY, LACKS, SENT, StandIns
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError
from colonnade.protocol.events import (
    NANOSECONDS,
    CancelTimer,
    Effect,
    Emit,
    Event,
    PeerJoined,
    PeerLost,
    Received,
    Resumed,
    Send,
    SetTimer,
    Started,
    TimerFired,
    Work,
    WorkDone,
)
from colonnade.protocol.messages import Array, Payload
from colonnade.protocol.role import RoleSummary

__all__ = ["PredictServer"]

CHUNK_NUMBERS = 2**20  # in one answer of a party


@dataclass(slots=True)
class Request:
    """One that is not yet answered."""

    ids: list[str]
    h: Array  # (rows, Σ widths)
    what: Array  # (rows, parties) uint8
    owed: dict[str, list[int]] = field(default_factory=dict)  # party → where the chunks begin that it has not sent
    away: list[str] = field(default_factory=list)


class PredictServer:
    """Holds the trained θ_0, and what may stand in for a party."""

    def __init__(
        self,
        parties: Sequence[str],
        widths: Sequence[int],
        network: ServerNetwork | None,
        evaluation: Evaluation | None,
        stand_ins: StandIns,
        deadline_s: float,
    ) -> None:
        self.name = "server"
        self._parties, self._widths = tuple(parties), tuple(widths)
        self._index = {name: n for n, name in enumerate(parties)}
        self._network, self._evaluation = network, evaluation
        self.stand_ins, self._deadline = stand_ins, round(deadline_s * NANOSECONDS)
        self.requests: dict[int, Request] = {}
        self.jobs = 0

    def handle(self, event: Event | Asked, now: int) -> list[Effect]:
        """One event."""
        match event:
            case Asked():
                return self._asked(event, now)
            case Received(sender=sender, message=Found() as found) if sender in self._index:
                return self._found(sender, found)
            case Received(sender=sender, message=Mean(values=values)) if sender in self._index:
                return self._mean(sender, values)
            case Received(sender=sender, message=message):
                raise RemoteProtocolError(sender, f"server does not expect a {type(message).__name__}")
            case WorkDone(result=Computed() as result):
                return [Emit(result)]
            case TimerFired(name=name):
                return self._too_late(int(name))
            case PeerLost(peer=peer) | PeerJoined(peer=peer, anew=True):
                return [effect for number in list(self.requests) for effect in self._lose(number, peer)]
            case Started() | Resumed() | PeerJoined():
                return []
        raise LocalProtocolError(f"server: no rule for {type(event).__name__}")

    def _asked(self, asked: Asked, now: int) -> list[Effect]:
        rows = len(asked.ids)
        what = np.full((rows, len(self._parties)), AWAY, np.uint8)
        request = Request(asked.ids, np.zeros((rows, sum(self._widths)), np.float32), what)
        self.requests[asked.number] = request
        request.away = [name for name in self._parties if name not in asked.here]
        effects: list[Effect] = []
        for name in self._parties:
            if name in asked.here:
                starts = list(range(0, rows, self._chunk(name)))
                request.owed[name] = starts
                stop = self._chunk(name)
                effects += [Send(name, Ask(asked.number, start, asked.ids[start : start + stop])) for start in starts]
        effects.append(SetTimer(str(asked.number), now + self._deadline))
        return [*effects, *self._finish_if_complete(asked.number)]

    def _chunk(self, name: str) -> int:
        return max(1, min(MAX_ASKED, CHUNK_NUMBERS // max(1, self._widths[self._index[name]])))

    def _found(self, sender: str, found: Found) -> list[Effect]:
        """A chunk; of a request that is answered already it comes too late."""
        request = self.requests.get(found.number)
        if request is None or found.start not in request.owed.get(sender, ()):
            return []
        party = self._index[sender]
        ids = request.ids[found.start : found.start + self._chunk(sender)]
        self._check(sender, found, len(ids))
        rows = found.start + np.arange(len(ids))
        request.h[rows[found.has], self.stand_ins.blocks[party]] = found.values
        request.what[rows, party] = np.where(found.has, SENT, LACKS)
        self.stand_ins.sent(party, ids, found.has, found.values)
        request.owed[sender].remove(found.start)
        if not request.owed[sender]:
            del request.owed[sender]
        return self._finish_if_complete(found.number)

    def _check(self, sender: str, found: Found, rows: int) -> None:
        has, values, width = found.has, found.values, self._widths[self._index[sender]]
        if has.shape != (rows,) or has.dtype != np.bool_:
            raise RemoteProtocolError(sender, f"says of {has.shape} ids whether it has them, asked for {rows}")
        expected = (int(has.sum()), width)
        if values.shape != expected or values.dtype != np.float32 or not are_sane(values):
            raise RemoteProtocolError(sender, f"embeddings of shape {values.shape}, expected {expected} sane float32")

    def _mean(self, sender: str, values: Array) -> list[Effect]:
        width = self._widths[self._index[sender]]
        if values.shape != (width,) or values.dtype != np.float32 or not are_sane(values):
            raise RemoteProtocolError(sender, f"a mean of shape {values.shape}, expected ({width},) sane float32")
        self.stand_ins.learned({self._index[sender]: values.copy()})
        return [Emit(Mean(values))]

    def _lose(self, number: int, peer: str) -> list[Effect]:
        request = self.requests[number]
        if request.owed.pop(peer, None) is None:
            return []
        request.away.append(peer)
        return self._finish_if_complete(number)

    def _too_late(self, number: int) -> list[Effect]:
        """The deadline: who has not answered is away."""
        request = self.requests.get(number)
        if request is None:
            return []
        return [effect for name in list(request.owed) for effect in self._lose(number, name)]

    def _finish_if_complete(self, number: int) -> list[Effect]:
        request = self.requests[number]
        if request.owed:
            return []
        del self.requests[number]
        return self._conclude(number, request)

    def _conclude(self, number: int, request: Request) -> list[Effect]:
        """Let the policy fill in what is missing, and run the network."""
        self.stand_ins.fill(request.h, request.what, request.ids)
        self.jobs += 1
        job = Compute(number, request.h, request.what, request.away)
        return [CancelTimer(str(number)), Work(self.jobs, "predict", 0.0, job, aside=True)]

    def compute(self, job: Payload) -> Payload:
        """A job, without changing any state."""
        network, evaluation = self._network, self._evaluation
        if not isinstance(job, Compute) or network is None or evaluation is None:
            raise LocalProtocolError(f"server: no job {type(job).__name__}")
        values = network.objective.predict(network.output(evaluation.gathered(job.h)))
        return Computed(job.number, values.reshape(len(job.h), -1), job.blocks, job.away)

    def means(self) -> Mapping[str, Array]:
        """What stands in for each party."""
        return {self._parties[party]: vector for party, vector in self.stand_ins.fallback.items()}

    def validate(self) -> None:
        """A request that nobody owes anything to is answered."""
        for number, request in self.requests.items():
            if not request.owed:
                raise LocalProtocolError(f"server: request {number} waits for nobody")

    def save(self) -> dict[str, Any]:
        """Nothing outlives the process."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """The reverse of `save`."""

    def summary(self) -> RoleSummary:
        """How often it computed."""
        return {"jobs": self.jobs}
