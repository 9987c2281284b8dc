"""A party that answers: it looks ids up in its own table and embeds what it has, as its method's evaluation would.

It keeps nothing of what it is asked. The server learns which ids the party has, by asking; the party learns which ids
are asked for.
"""

from typing import Any

import numpy as np

from colonnade.algorithms.evaluation import read_rows
from colonnade.algorithms.vafl.messages import are_sane
from colonnade.data import Lookup
from colonnade.predict.messages import Ask, Find, Found, Mean, TakeMean
from colonnade.privacy.guard import Withheld
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError, TrainingDiverged
from colonnade.protocol.events import (
    Effect,
    Event,
    PeerJoined,
    PeerLost,
    Received,
    Resumed,
    Send,
    Started,
    TimerFired,
    Work,
    WorkDone,
)
from colonnade.protocol.messages import Array, Payload
from colonnade.protocol.role import SERVER, Role, RoleSummary

__all__ = ["MAX_ASKED", "MAX_ID_BYTES", "PredictParty"]

MAX_ASKED = 2048  # ids in a message
MAX_ID_BYTES = 200
READ_ROWS = 8192  # of the training, at a time


class PredictParty:
    """Holds a trained role of its method, and the party's rows by id."""

    def __init__(self, trained: Role, table: Lookup, width: int, train: Array | None) -> None:
        self.name, self._trained, self._table, self._width = trained.name, trained, table, width
        self._train = train  # rows whose mean embedding is told; None: the server has learned something better
        self.jobs = 0
        self.mean: Mean | None = None

    def handle(self, event: Event, now: int) -> list[Effect]:
        """One event."""
        match event:
            case Received(sender=sender, message=Ask() as message) if sender == SERVER:
                return self._asked(message)
            case Received(sender=sender, message=message):
                raise RemoteProtocolError(sender, f"{self.name} does not expect a {type(message).__name__}")
            case WorkDone(result=Found() as found):
                return [Send(SERVER, found)]
            case WorkDone(result=Mean() as mean):
                self.mean = mean
                return [Send(SERVER, mean)]
            case Started(entropy=entropy):
                self._trained.handle(Resumed(entropy), now)  # its generator of noise, if it has one
                return [] if self._train is None else [self._work(TakeMean())]
            case PeerJoined(anew=True) if self.mean is not None:
                return [Send(SERVER, self.mean)]
            case PeerJoined() | PeerLost() | Resumed() | TimerFired():
                return []
        raise LocalProtocolError(f"{self.name}: no rule for {type(event).__name__}")

    def _asked(self, message: Ask) -> list[Effect]:
        ids = message.ids
        if not 0 < len(ids) <= MAX_ASKED or max(map(len, ids)) > MAX_ID_BYTES:
            raise RemoteProtocolError(
                SERVER, f"asks for {len(ids)} ids; 1 to {MAX_ASKED} of {MAX_ID_BYTES} bytes may be"
            )
        return [self._work(Find(self.jobs + 1, message.number, message.start, ids))]

    def check_sum(self, ids: list[str]) -> None:
        """Refuse to contribute to sums that cannot be."""
        if not 0 < len(ids) <= MAX_ASKED or (self._table.find(ids) < 0).any():
            raise RemoteProtocolError(SERVER, f"asks for a sum of {len(ids)} ids, too many or not all of this party")

    def _work(self, job: Payload) -> Work:
        self.jobs += 1
        return Work(self.jobs, type(job).__name__.lower(), 0.0, job, aside=True)

    def compute(self, job: Payload) -> Payload:
        """A job, without changing any state."""
        match job:
            case Find(job=number, ids=ids):
                return self._find(job, number, ids)
            case TakeMean():
                return Mean(self._mean())
        raise LocalProtocolError(f"{self.name}: no job {type(job).__name__}")

    def _find(self, job: Find, number: int, ids: list[str]) -> Found:
        """With a privacy budget that is spent, it has none of them."""
        rows = self._table.find(ids)
        has = rows >= 0
        values = self._read(self._table.x, rows[has], number)
        if isinstance(values, Withheld):
            has, values = np.zeros_like(has), self._nothing
        return Found(job.number, job.start, has, values)

    @property
    def _nothing(self) -> Array:
        return np.zeros((0, self._width), np.float32)

    def _read(self, x: Array, rows: Array, number: int) -> Array | Withheld:
        if not len(rows):
            return self._nothing
        values = read_rows(self._trained, x, rows, number)
        if not isinstance(values, Withheld) and not are_sane(values):
            raise TrainingDiverged(f"{self.name}: its embeddings are absurd; are these the rows it was trained on?")
        return values

    def _mean(self) -> Array:
        """Of all training rows."""
        assert self._train is not None
        total = np.zeros(self._width)
        for start in range(0, len(self._train), READ_ROWS):
            rows = np.arange(start, min(start + READ_ROWS, len(self._train)))
            values = self._read(self._train, rows, -1 - start)
            assert not isinstance(values, Withheld), "no mean is told of uploads that are accounted"
            total += values.sum(0, dtype=np.float64)
        mean: Array = (total / len(self._train)).astype(np.float32)
        return mean

    def save(self) -> dict[str, Any]:
        """Nothing outlives the process."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """The reverse of `save`."""

    def validate(self) -> None:
        """Nothing can be wrong with nothing."""

    def summary(self) -> RoleSummary:
        """How often it was asked."""
        return {"jobs": self.jobs}
