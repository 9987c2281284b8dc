"""Evaluation as part of the contract: the server asks for rows held out, parties answer from committed state.

The first `training.validation` of these rows are to validate on. While a run trains, the server asks for these alone.
The evaluation at the end asks for all, and judges the test rows once. Without validation rows every evaluation is of
the test rows.

No evaluation waits for a missing party: it is named, and its rows stay as last seen (zeros at first). The mean of its
validation rows stands in for test rows that it has never sent.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from colonnade.algorithms.batches import rows_per_message
from colonnade.algorithms.table import EmbeddingTable
from colonnade.models import ServerNetwork
from colonnade.models.metrics import measure
from colonnade.privacy.guard import Guard, Receipted, Released
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.events import CancelWork, Effect, Send, Work
from colonnade.protocol.messages import Array, EvaluationReply, EvaluationRequest, Payload
from colonnade.protocol.role import EVALUATION, SERVER

__all__ = [
    "EVALUATION_PAYLOADS",
    "EvaluateAll",
    "EvaluateRows",
    "Evaluated",
    "Evaluation",
    "Measurement",
    "Reading",
    "RowsRead",
    "Scores",
]

TOKEN = -1  # evaluation jobs of a server; a party's are numbered downwards from here


class EvaluateRows(Released, frozen=True):
    """Party's job: embed the rows start..stop of those held out."""

    number: int
    start: int
    stop: int


class RowsRead(Receipted, frozen=True):
    """Its result."""

    number: int
    start: int
    values: Array


class EvaluateAll(Payload, frozen=True):
    """Server's job: judge the collected rows."""

    number: int


class Scores(Payload, frozen=True):
    """How good the model is on some rows."""

    loss: float
    values: dict[str, float]


class Evaluated(Payload, frozen=True):
    """Its result: of the validation rows, if the run has any; else of the test rows."""

    number: int
    loss: float
    values: dict[str, float]
    tested: Scores | None = None  # of the test rows, in the evaluation at the end of a run with validation rows


class Measurement(Payload, frozen=True, repr_omit_defaults=True):
    """One row of metrics.jsonl, before the driver adds clock and bytes; its scores are as in `Evaluated`."""

    update: int
    epochs: float
    loss: float
    train_loss: float
    values: dict[str, float]
    staleness: list[float]
    missing: list[str]
    tested: Scores | None = None


EVALUATION_PAYLOADS = (
    EvaluationRequest,
    EvaluationReply,
    EvaluateRows,
    RowsRead,
    EvaluateAll,
    Evaluated,
    Measurement,
)


class Reading:
    """A party's side: answers from committed state, beside whatever else it does."""

    def __init__(self, rows: int, guard: Guard | None = None) -> None:
        self._rows, self._guard = rows, guard
        self.tokens: list[int] = []  # of running jobs
        self.count = 0

    def begin(self, message: EvaluationRequest) -> list[Effect]:
        """Embed the rows that the server asks for."""
        start, stop = message.start, min(message.stop, self._rows)
        if not 0 <= start < stop:
            raise RemoteProtocolError(SERVER, f"asks for held-out rows {start}..{message.stop} of {self._rows}")
        self.count += 1
        token = TOKEN - self.count
        self.tokens.append(token)
        release = self._guard.plan("evaluation", np.arange(start, stop), "test") if self._guard is not None else None
        return [Work(token, EVALUATION, 0.0, EvaluateRows(message.number, start, stop, release=release), aside=True)]

    def done(self, token: int, result: RowsRead, step: int) -> list[Effect]:
        """Send them."""
        self.tokens.remove(token)
        return [Send(SERVER, EvaluationReply(result.number, result.start, step, result.values), evaluation=True)]

    def cancel(self) -> list[Effect]:
        """Nobody waits for them any more."""
        tokens, self.tokens = self.tokens, []
        return [CancelWork(token) for token in tokens]

    def save(self) -> dict[str, Any]:
        """What is running."""
        return {"tokens": self.tokens, "count": self.count}

    def load(self, saved: dict[str, Any]) -> None:
        """The reverse of `save`."""
        self.tokens, self.count = saved["tokens"], saved["count"]


class Evaluation:
    """The server's side of one evaluation after another."""

    def __init__(
        self, parties: Sequence[str], widths: Sequence[int], y_test: Array, metric: str,
        table: EmbeddingTable | None = None,
    ) -> None:  # fmt: skip
        self._index = {name: index for index, name in enumerate(parties)}
        self.table = EmbeddingTable(len(y_test), widths) if table is None else table
        self._y, self._metric = y_test, metric
        self._chunk = rows_per_message(max(widths))
        self.number = 0
        self.missing: list[str] = []
        self._outstanding: dict[str, int] = {}  # chunks that each asked party still owes
        self.running = False
        self._validation, self._asked = 0, len(y_test)  # of the present evaluation: rows to validate on, and all

    def lack(self, absent: Array) -> None:
        """bool (rows, parties): who does not have which row."""
        self.table.lack(absent)

    def begin(
        self, present: Iterable[str], validation: int = 0, last: bool = False, best: int = 0
    ) -> list[Effect]:  # fmt: skip
        """Ask the parties that are here for the first `validation` rows; if that is 0, or at the `last`, for all."""
        self._validation, self._asked = validation, validation if validation and not last else len(self._y)
        if validation and last:
            self._stand_in()
        self.number += 1
        self.running = True
        here = set(present)
        self.missing = [name for name in self._index if name not in here]
        rows = self._asked
        chunks = [(start, min(start + self._chunk, rows)) for start in range(0, rows, self._chunk)]
        asked = [name for name in self._index if name in here]
        self._outstanding = dict.fromkeys(asked, len(chunks))
        sends: list[Effect] = [
            Send(name, EvaluationRequest(self.number, start, stop, best, last and best > 0), evaluation=True)
            for name in asked
            for start, stop in chunks
        ]
        return sends + self._judge_if_complete()

    def _stand_in(self) -> None:
        """The mean of each party's validation rows for its test rows, which its answers then replace."""
        total, count = np.zeros(sum(self.table.widths)), np.zeros(sum(self.table.widths))
        for h in self.table.parts(0, self._validation):  # NaN: rows that a party lacks
            total += np.nansum(h, axis=0, dtype=np.float64)
            count += np.count_nonzero(~np.isnan(h), axis=0)
        mean = (total / np.maximum(count, 1)).astype(np.float32)
        rows = np.arange(self._validation, len(self._y))
        for party, block in enumerate(self.table.blocks):
            self.table.write(party, rows, np.broadcast_to(mean[block], (len(rows), self.table.widths[party])), 0)

    def receive(self, sender: str, reply: EvaluationReply) -> list[Effect]:
        """Keep the rows; when all are there, judge them."""
        if reply.number != self.number or sender not in self._outstanding:
            return []
        self._check(sender, reply)
        rows = np.arange(reply.start, reply.start + len(reply.values))
        self.table.write(self._index[sender], rows, reply.values, 0)
        self._outstanding[sender] -= 1
        if not self._outstanding[sender]:
            del self._outstanding[sender]
        return self._judge_if_complete()

    def _check(self, sender: str, reply: EvaluationReply) -> None:
        rows, width = self._asked, self.table.widths[self._index[sender]]
        expected = (min(self._chunk, rows - reply.start), width)
        chunk = 0 <= reply.start < rows and reply.start % self._chunk == 0
        if not chunk or reply.values.shape != expected or reply.values.dtype != np.float32:
            cause = f"evaluation rows from {reply.start} of shape {reply.values.shape}, expected {expected} float32"
            raise RemoteProtocolError(sender, cause)

    def lose(self, peer: str) -> list[Effect]:
        """Stop waiting for a party that is gone."""
        if self._outstanding.pop(peer, None) is None:
            return []
        self.missing.append(peer)
        return self._judge_if_complete()

    def _judge_if_complete(self) -> list[Effect]:
        if self._outstanding or not self.running:
            return []
        return [Work(TOKEN, EVALUATION, 0.0, EvaluateAll(self.number), aside=True)]

    def gathered(self, h: Array) -> Array:
        """From all parties' blocks side by side to what the server's network is given."""
        return h

    def judge(self, network: ServerNetwork) -> Evaluated:
        """The metric and the loss over the collected rows."""
        scores = self._scores(network, 0, self._validation or len(self._y))
        both = 0 < self._validation < self._asked
        tested = self._scores(network, self._validation, len(self._y)) if both else None
        return Evaluated(self.number, scores.loss, scores.values, tested)

    def _scores(self, network: ServerNetwork, start: int, stop: int) -> Scores:
        y, objective = self._y[start:stop], network.objective
        loss, prediction = network.evaluate(map(self.gathered, self.table.parts(start, stop)), objective.targets(y))
        return Scores(loss, measure(self._metric, objective.task, y, prediction, loss))

    def save(self) -> dict[str, Any]:
        """Collected rows and what is outstanding."""
        return {
            "number": self.number,
            "missing": self.missing,
            "outstanding": self._outstanding,
            "running": self.running,
            "validation": self._validation,
            "asked": self._asked,
            "table": self.table.save(),
        }

    def load(self, saved: dict[str, Any]) -> None:
        """The reverse of `save`."""
        self.number, self.missing = saved["number"], saved["missing"]
        self._outstanding, self.running = saved["outstanding"], saved["running"]
        self._validation, self._asked = saved["validation"], saved["asked"]
        self.table.load(saved["table"])
