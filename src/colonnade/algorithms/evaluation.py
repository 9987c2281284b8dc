"""Evaluation as part of the contract: the server asks for test rows, parties answer from committed state.

Nobody waits for a missing party: it is named, and its test rows stay as last seen (zeros at first).
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
]

TOKEN = -1  # evaluation jobs of a server; a party's are numbered downwards from here


class EvaluateRows(Released, frozen=True):
    """Party's job: embed test rows start..stop."""

    number: int
    start: int
    stop: int


class RowsRead(Receipted, frozen=True):
    """Its result."""

    number: int
    start: int
    values: Array


class EvaluateAll(Payload, frozen=True):
    """Server's job: judge the collected test rows."""

    number: int


class Evaluated(Payload, frozen=True):
    """Its result."""

    number: int
    loss: float
    values: dict[str, float]


class Measurement(Payload, frozen=True):
    """One row of metrics.jsonl, before the driver adds clock and bytes."""

    update: int
    epochs: float
    loss: float
    train_loss: float
    values: dict[str, float]
    staleness: list[float]
    missing: list[str]


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
            raise RemoteProtocolError(SERVER, f"asks for test rows {start}..{message.stop} of {self._rows}")
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

    def lack(self, absent: Array) -> None:
        """bool (rows, parties): who does not have which test row."""
        self.table.lack(absent)

    def begin(self, present: Iterable[str]) -> list[Effect]:
        """Ask everyone who is here."""
        self.number += 1
        self.running = True
        here = set(present)
        self.missing = [name for name in self._index if name not in here]
        rows = len(self._y)
        chunks = [(start, min(start + self._chunk, rows)) for start in range(0, rows, self._chunk)]
        asked = [name for name in self._index if name in here]
        self._outstanding = dict.fromkeys(asked, len(chunks))
        sends: list[Effect] = [
            Send(name, EvaluationRequest(self.number, start, stop), evaluation=True)
            for name in asked
            for start, stop in chunks
        ]
        return sends + self._judge_if_complete()

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
        rows, width = len(self._y), self.table.widths[self._index[sender]]
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
        h = map(self.gathered, self.table.parts())
        loss, prediction = network.evaluate(h, network.objective.targets(self._y))
        return Evaluated(self.number, loss, measure(self._metric, network.objective.task, self._y, prediction, loss))

    def save(self) -> dict[str, Any]:
        """Collected rows and what is outstanding."""
        return {
            "number": self.number,
            "missing": self.missing,
            "outstanding": self._outstanding,
            "running": self.running,
            "table": self.table.save(),
        }

    def load(self, saved: dict[str, Any]) -> None:
        """The reverse of `save`."""
        self.number, self.missing = saved["number"], saved["missing"]
        self._outstanding, self.running = saved["outstanding"], saved["running"]
        self.table.load(saved["table"])
