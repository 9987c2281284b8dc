"""A party that answers: it looks up ids in its own table and embeds the rows it has, as in its method's evaluation.

It keeps nothing of the questions but their numbers. By asking, the server learns which ids the party has. The party
learns which ids the server asks for.

No question ends the party. It declines a question that is malformed, beyond its quota, or without a sane answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from colonnade.algorithms.chassis import Chassis, RoleState, done, job, on
from colonnade.algorithms.chassis.rules import Sender
from colonnade.algorithms.prediction.messages import (
    BUDGET,
    MALFORMED,
    NOT_ALIGNED,
    QUOTA,
    UNANSWERABLE,
    Ask,
    Declined,
    Find,
    Found,
    Looked,
    Mean,
    Question,
    TakeMean,
)
from colonnade.algorithms.prediction.predictor import RowsById
from colonnade.algorithms.sane import are_sane
from colonnade.protocol.errors import TrainingDiverged
from colonnade.protocol.events import Emit, Event, Resumed, WorkDone
from colonnade.protocol.messages import Array, Payload
from colonnade.protocol.quota import Bucket, take_from_all
from colonnade.protocol.role import SERVER, WITHHELD, Embedding, RoleSummary
from colonnade.protocol.saved import transient

__all__ = ["MAX_ASKED", "MAX_ID_BYTES", "AnsweringParty", "AnsweringState", "PredictParty"]

MAX_ASKED = 2048  # ids in a message
MAX_ID_BYTES = 200  # of a normalised id
MAX_UNDER_WAY = 1024  # jobs that have not ended
READ_ROWS = 8192  # training rows embedded at a time


@dataclass(slots=True, kw_only=True)
class AnsweringState(RoleState):
    """State of every predicting party. The process saves nothing of it."""

    quota: list[Bucket] = transient(list)
    under_way: int = 0  # jobs


S = TypeVar("S", bound=AnsweringState)


class AnsweringParty(Chassis[S], Generic[S]):
    """What predicting parties share: the server asks them for ids, within their quota."""

    gated = True

    def __init__(
        self, name: str, senders: Mapping[str, Sender], table: RowsById, state: S, quota: Sequence[Bucket] = ()
    ) -> None:
        super().__init__(name, {SERVER: SERVER, **senders}, state)
        self.table, state.quota = table, list(quota)

    def gate(self, event: Event) -> bool:
        """Count the jobs that have ended."""
        self.state.under_way -= isinstance(event, WorkDone)
        return False

    def aside(self, job: Payload) -> None:
        """Start a job. Questions do not wait for each other."""
        self.state.under_way += 1
        self.work(type(job).__name__.lower(), 0.0, job, aside=True)

    @on(Ask, SERVER)
    def asked(self, sender: str, message: Ask) -> None:
        """Start a search for these ids, or decline the question."""
        if why := self.why_not(message.ids):
            self.decline(message.number, message.start, len(message.ids), why)
        else:
            self.aside(Find(self.state.jobs + 1, message.number, message.start, message.ids))

    def why_not(self, ids: Sequence[str]) -> str:
        """Return why a question is declined; "" if it is not, and then its rows are taken from the quota."""
        if not 0 < len(ids) <= MAX_ASKED or max(map(len, map(str.encode, ids))) > MAX_ID_BYTES:
            return MALFORMED
        if self.state.under_way >= MAX_UNDER_WAY:
            return QUOTA
        return QUOTA if take_from_all(self.state.quota, len(ids), self.now) else ""

    def decline(self, number: int, start: int, ids: int, why: str) -> None:
        """Record the question and tell the server."""
        self.record(Question(ids, 0, ids, why))
        self.send(SERVER, Declined(number, start, why))

    def record(self, question: Question) -> None:
        """Pass a question to the audit. Call it before sending the answer: without a record there is no answer."""
        self.do([Emit(question)])

    @job(Find)
    def find(self, job: Find) -> Looked:
        """Return which ids the party has, and what it shows of them."""
        raise NotImplementedError

    @done(Looked)
    def looked(self, token: int, result: Looked) -> None:
        """Answer the server."""
        ids, answered = len(result.has), int(np.count_nonzero(result.has))
        if result.why == UNANSWERABLE:
            self.decline(result.number, result.start, ids, result.why)
            return
        why = result.why or (NOT_ALIGNED if result.withheld else "")
        self.record(Question(ids, answered, result.withheld, why))
        self.send(SERVER, Found(result.number, result.start, result.has, result.values))

    def summary(self) -> RoleSummary:
        """Report the number of jobs."""
        return {"jobs": self.state.jobs}


@dataclass(slots=True, kw_only=True)
class PredictPartyState(AnsweringState):
    """State of a party that shows embeddings."""

    mean: Mean | None = transient(lambda: None)


class PredictParty(AnsweringParty[PredictPartyState]):
    """Holds a trained role of its method, and the party's rows by id."""

    def __init__(
        self, trained: Embedding, table: RowsById, width: int, train: Array | None, quota: Sequence[Bucket] = ()
    ) -> None:
        super().__init__(trained.name, {}, table, PredictPartyState(), quota)
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
    def find(self, job: Find) -> Looked:
        """Also return the embeddings. If the privacy budget is spent, the party reports none of the ids."""
        rows = self.table.find(job.ids)
        has, why, withheld = rows >= 0, "", 0
        if np.count_nonzero(has) < len(rows):
            withheld = int(np.count_nonzero(rows == WITHHELD))
            rows = rows[has]
        try:
            values = self._read(self.table.x, rows, job.job)
        except TrainingDiverged:
            values, why = None, UNANSWERABLE
        if values is None:
            why, withheld = why or BUDGET, withheld + int(np.count_nonzero(has))
            has, values = np.zeros_like(has), self._nothing
        return Looked(job.number, job.start, has, values, withheld, why)

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
