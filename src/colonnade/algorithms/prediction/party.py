"""A party that answers: it looks up ids in its own table and embeds the rows it has, as in its method's evaluation.

It keeps nothing of the questions. By asking, the server learns which ids the party has. The party learns which ids the
server asks for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from colonnade.algorithms.chassis import Chassis, RoleState, done, job, on
from colonnade.algorithms.chassis.rules import Sender
from colonnade.algorithms.prediction.messages import Ask, Find, Found, Mean, TakeMean
from colonnade.algorithms.prediction.predictor import RowsById
from colonnade.algorithms.sane import are_sane
from colonnade.protocol.errors import RemoteProtocolError, TrainingDiverged
from colonnade.protocol.events import Resumed
from colonnade.protocol.messages import Array, Payload
from colonnade.protocol.role import SERVER, Embedding, RoleSummary
from colonnade.protocol.saved import transient

__all__ = ["MAX_ASKED", "MAX_ID_BYTES", "AnsweringParty", "PredictParty"]

MAX_ASKED = 2048  # ids in a message
MAX_ID_BYTES = 200
READ_ROWS = 8192  # training rows embedded at a time

S = TypeVar("S", bound=RoleState)


class AnsweringParty(Chassis[S], Generic[S]):
    """What predicting parties share: the server asks them for ids. The process saves nothing of it."""

    def __init__(self, name: str, senders: Mapping[str, Sender], table: RowsById, state: S) -> None:
        super().__init__(name, {SERVER: SERVER, **senders}, state)
        self.table = table

    def aside(self, job: Payload) -> None:
        """Start a job. Questions do not wait for each other."""
        self.work(type(job).__name__.lower(), 0.0, job, aside=True)

    @on(Ask, SERVER)
    def asked(self, sender: str, message: Ask) -> None:
        """Start a search for these ids; raise RemoteProtocolError for too many ids or too long ones."""
        ids = message.ids
        if not 0 < len(ids) <= MAX_ASKED or max(map(len, ids)) > MAX_ID_BYTES:
            raise RemoteProtocolError(
                SERVER, f"asks for {len(ids)} ids; the limit is {MAX_ASKED} ids of {MAX_ID_BYTES} bytes"
            )
        self.aside(Find(self.state.jobs + 1, message.number, message.start, ids))

    @job(Find)
    def find(self, job: Find) -> Found:
        """Return which ids the party has, and what it shows of them."""
        raise NotImplementedError

    @done(Found)
    def found(self, token: int, result: Found) -> None:
        self.send(SERVER, result)

    def summary(self) -> RoleSummary:
        """Report the number of jobs."""
        return {"jobs": self.state.jobs}


@dataclass(slots=True, kw_only=True)
class PredictPartyState(RoleState):
    """State of a party that shows embeddings."""

    mean: Mean | None = transient(lambda: None)


class PredictParty(AnsweringParty[PredictPartyState]):
    """Holds a trained role of its method, and the party's rows by id."""

    def __init__(self, trained: Embedding, table: RowsById, width: int, train: Array | None) -> None:
        super().__init__(trained.name, {}, table, PredictPartyState())
        self._trained, self._width = trained, width
        self._train = train  # rows for the mean embedding; None: the server has learned something better

    def started(self, entropy: bytes) -> None:
        """Give the trained role its key, for the noise if it has any, and compute the mean."""
        self._trained.handle(Resumed(entropy), self.now)
        if self._train is not None:
            self.aside(TakeMean())

    def joined(self, peer: str, reset: bool) -> None:
        """Send the mean again to a server that has restarted."""
        if reset and self.state.mean is not None:
            self.send(SERVER, self.state.mean)

    @job(Find)
    def find(self, job: Find) -> Found:
        """Also return the embeddings. If the privacy budget is spent, the party reports none of the ids."""
        rows = self.table.find(job.ids)
        has = rows >= 0
        values = self._read(self.table.x, rows[has], job.job)
        if values is None:
            has, values = np.zeros_like(has), self._nothing
        return Found(job.number, job.start, has, values)

    @job(TakeMean)
    def take_mean(self, job: TakeMean) -> Mean:
        """Return the mean embedding of all training rows."""
        assert self._train is not None
        total = np.zeros(self._width)
        for start in range(0, len(self._train), READ_ROWS):
            rows = np.arange(start, min(start + READ_ROWS, len(self._train)))
            values = self._read(self._train, rows, -1 - start)
            assert values is not None, "a party that accounts for its uploads sends no mean"
            total += values.sum(0, dtype=np.float64)
        return Mean((total / len(self._train)).astype(np.float32))

    @done(Mean)
    def mean_taken(self, token: int, result: Mean) -> None:
        """Send the mean to the server, and keep it for a server that restarts."""
        self.state.mean = result
        self.send(SERVER, result)

    @property
    def _nothing(self) -> Array:
        return np.zeros((0, self._width), np.float32)

    def _read(self, x: Array, rows: Array, number: int) -> Array | None:
        if not len(rows):
            return self._nothing
        values = self._trained.embed(x, rows, number)
        if values is not None and not are_sane(values):
            raise TrainingDiverged(
                f"{self.name}: its embeddings are not finite or far too large; check that its table has the "
                "columns and units of the training"
            )
        return values
