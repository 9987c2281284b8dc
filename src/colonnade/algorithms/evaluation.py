"""Evaluation: the server asks for held-out rows, and parties answer from committed state.

The first `training.validation` of these rows are validation rows. While a run trains, the server asks for them alone.
The evaluation at the end asks for all rows and judges the test rows once. If there are no validation rows, every
evaluation uses the test rows.

No evaluation waits for a missing party. The result names the party, and its rows stay as last seen (zeros at first).
The mean of its validation rows replaces test rows that it has never sent.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from colonnade.algorithms.batches import rows_per_message
from colonnade.algorithms.sane import LARGEST, are_sane, is_step
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
    "Rounds",
    "RowsRead",
    "Scores",
]

TOKEN = -1  # evaluation jobs of a server; a party's job tokens count down from here


class EvaluateRows(Released, frozen=True):
    """Party's job: embed the held-out rows start..stop."""

    number: int
    start: int
    stop: int


class RowsRead(Receipted, frozen=True):
    """Result of `EvaluateRows`: the encoded embeddings of the rows from `start` on."""

    number: int
    start: int
    values: Array


class EvaluateAll(Payload, frozen=True):
    """Server's job: judge the collected rows."""

    number: int


class Scores(Payload, frozen=True):
    """Loss and metrics over some rows."""

    loss: float
    values: dict[str, float]


class Evaluated(Payload, frozen=True):
    """Result of `EvaluateAll`, over the validation rows, or over the test rows if the run has no validation rows."""

    number: int
    loss: float
    values: dict[str, float]
    tested: Scores | None = None  # scores of the test rows, in the last evaluation of a run with validation rows


class Rounds(Payload, frozen=True):
    """Rounds since the last evaluation. For each: its number, when it began, and τ_k and η_k of the logged roles.

    None: the role did not take part, or its report came too late. η_k is a factor of the role's own rate.
    """

    round: list[int]
    clock_s: list[float]
    tau: list[list[int | None]]
    eta: list[list[float | None]]


class Measurement(Payload, frozen=True, repr_omit_defaults=True):
    """One row of metrics.jsonl, before the driver adds clock and bytes. `Evaluated` explains its scores."""

    update: int
    epochs: float
    loss: float
    train_loss: float
    values: dict[str, float]
    staleness: list[float]
    missing: list[str]
    tested: Scores | None = None
    rounds: Rounds | None = None  # only of methods with local steps between rounds


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
    """A party's part: answers from committed state while the party does other work."""

    def __init__(self, rows: int, guard: Guard | None = None) -> None:
        self._rows, self._guard = rows, guard
        self.tokens: list[int] = []  # tokens of running jobs
        self.count = 0

    def begin(self, message: EvaluationRequest) -> list[Effect]:
        """Start a job that embeds the requested rows; raise RemoteProtocolError if they are not held-out rows."""
        start, stop = message.start, min(message.stop, self._rows)
        if not 0 <= start < stop or not is_step(message.number) or not is_step(message.best):
            raise RemoteProtocolError(SERVER, f"asks for held-out rows {start}..{message.stop} of {self._rows}")
        self.count += 1
        token = TOKEN - self.count
        self.tokens.append(token)
        release = self._guard.plan("evaluation", np.arange(start, stop), "test") if self._guard is not None else None
        job = EvaluateRows(message.number, start, stop, release=release)
        return [Work(token, EVALUATION, 0.0, job, aside=True, repeatable=release is None)]

    def done(self, token: int, result: RowsRead, step: int) -> list[Effect]:
        """Send the embedded rows to the server."""
        self.tokens.remove(token)
        return [Send(SERVER, EvaluationReply(result.number, result.start, step, result.values), evaluation=True)]

    def cancel(self) -> list[Effect]:
        """Cancel all jobs whose answers the server no longer needs."""
        tokens, self.tokens = self.tokens, []
        return [CancelWork(token) for token in tokens]

    def save(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "count": self.count}

    def load(self, saved: dict[str, Any]) -> None:
        self.tokens, self.count = saved["tokens"], saved["count"]


class Evaluation:
    """The server's part: runs one evaluation after another."""

    def __init__(
        self, parties: Sequence[str], widths: Sequence[int], y_test: Array, metric: str,
        table: EmbeddingTable | None = None, also: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._index = {name: index for index, name in enumerate(parties)}
        self.table = EmbeddingTable(len(y_test), widths) if table is None else table
        self._y, self._metric, self._also = y_test, metric, also
        self._chunk = rows_per_message(max(widths))
        self.number = 0
        self.missing: list[str] = []
        self._outstanding: dict[str, list[int]] = {}  # first rows of the chunks that each asked party has not sent yet
        self.running = False
        self._validation, self._asked = 0, len(y_test)  # of this evaluation: validation rows, rows asked for

    def mark_absent(self, absent: Array) -> None:
        """Mark rows that parties lack; `absent` is bool (rows, parties)."""
        self.table.mark_absent(absent)

    def begin(
        self, present: Iterable[str], validation: int = 0, last: bool = False, best: int = 0
    ) -> list[Effect]:  # fmt: skip
        """Ask the present parties for the first `validation` rows. If that is 0, or at the `last`, ask for all rows."""
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
        self._outstanding = {name: [start for start, _ in chunks] for name in asked}
        sends: list[Effect] = [
            Send(name, EvaluationRequest(self.number, start, stop, best, last and best > 0), evaluation=True)
            for name in asked
            for start, stop in chunks
        ]
        return sends + self._judge_if_complete()

    def _stand_in(self) -> None:
        """Write the mean of each party's validation rows into its test rows. The party's answers then replace it."""
        total, count = np.zeros(sum(self.table.widths)), np.zeros(sum(self.table.widths))
        for h in self.table.parts(0, self._validation):  # NaN marks rows that a party lacks
            total += np.nansum(h, axis=0, dtype=np.float64)
            count += np.count_nonzero(~np.isnan(h), axis=0)
        mean = (total / np.maximum(count, 1)).astype(np.float32)
        rows = np.arange(self._validation, len(self._y))
        for party, block in enumerate(self.table.blocks):
            self.table.write(party, rows, np.broadcast_to(mean[block], (len(rows), self.table.widths[party])), 0)

    def receive(self, sender: str, reply: EvaluationReply) -> list[Effect]:
        """Keep the rows, and judge them when all have arrived; raise RemoteProtocolError for a wrong chunk or shape.

        An answer to an earlier evaluation, or to one that no longer waits for the party, is dropped.
        """
        if not 0 < reply.number <= self.number or not is_step(reply.step):
            cause = f"evaluation {reply.number} at step {reply.step}; the newest is {self.number}"
            raise RemoteProtocolError(sender, cause)
        if reply.number != self.number or sender not in self._outstanding:
            return []
        self._check(sender, reply)
        rows = np.arange(reply.start, reply.start + len(reply.values))
        self.table.write(self._index[sender], rows, reply.values, 0)
        self._outstanding[sender].remove(reply.start)
        if not self._outstanding[sender]:
            del self._outstanding[sender]
        return self._judge_if_complete()

    def _check(self, sender: str, reply: EvaluationReply) -> None:
        rows, width = self._asked, self.table.widths[self._index[sender]]
        expected = (min(self._chunk, rows - reply.start), width)
        owed = reply.start in self._outstanding[sender]
        if not owed or reply.values.shape != expected or reply.values.dtype != np.float32:
            cause = f"evaluation rows from {reply.start} of shape {reply.values.shape}, expected {expected} float32"
            raise RemoteProtocolError(sender, cause)
        if not are_sane(reply.values):
            raise RemoteProtocolError(sender, f"evaluation rows that are not finite, or beyond ±{LARGEST:g}")

    def owed(self) -> dict[str, str]:
        """What each party still owes to this evaluation, in words."""
        what = f"part(s) of evaluation {self.number}"
        return {name: f"{len(starts)} {what}" for name, starts in self._outstanding.items()}

    def lose(self, peer: str) -> list[Effect]:
        """Stop waiting for a lost party and count it as missing."""
        if self._outstanding.pop(peer, None) is None:
            return []
        self.missing.append(peer)
        return self._judge_if_complete()

    def _judge_if_complete(self) -> list[Effect]:
        if self._outstanding or not self.running:
            return []
        return [Work(TOKEN, EVALUATION, 0.0, EvaluateAll(self.number), aside=True)]

    def gathered(self, h: Array) -> Array:
        """Turn all parties' blocks, side by side, into the input of the server's network."""
        return h

    def judge(self, network: ServerNetwork) -> Evaluated:
        """Compute the loss and the metrics over the collected rows."""
        scores = self._scores(network, 0, self._validation or len(self._y))
        both = 0 < self._validation < self._asked
        tested = self._scores(network, self._validation, len(self._y)) if both else None
        return Evaluated(self.number, scores.loss, scores.values, tested)

    def _scores(self, network: ServerNetwork, start: int, stop: int) -> Scores:
        y, objective = self._y[start:stop], network.objective
        loss, prediction = network.evaluate(map(self.gathered, self.table.parts(start, stop)), objective.targets(y))
        return Scores(loss, measure(self._metric, objective.task, y, prediction, loss, self._also))

    def save(self) -> dict[str, Any]:
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
        self.number, self.missing = saved["number"], saved["missing"]
        self._outstanding, self.running = saved["outstanding"], saved["running"]
        self._validation, self._asked = saved["validation"], saved["asked"]
        self.table.load(saved["table"])
