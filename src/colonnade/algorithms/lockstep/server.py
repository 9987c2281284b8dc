"""The server of the lock-step baseline: every step waits for every party.

Batches carry all blocks, so there is no table. The server evaluates between two steps, when all parties have applied
the last one. Parties are at different steps only after one of them lost its state. The rounds then continue at the
newest step, and the parties behind skip to it.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from colonnade.algorithms.chassis import PARTY, on
from colonnade.algorithms.lockstep.config import SyncOptions
from colonnade.algorithms.method import Options, ServerSetup
from colonnade.algorithms.table import blank
from colonnade.algorithms.vafl.messages import Batch, Embeddings, Skip
from colonnade.algorithms.vafl.request_queue import QueuedRequest
from colonnade.algorithms.vafl.stepping import Stepping, SteppingState
from colonnade.protocol.errors import LocalProtocolError, RemoteProtocolError

__all__ = ["LockStepServer", "RoundState", "Server"]


@dataclass(slots=True, kw_only=True)
class RoundState(SteppingState):
    """The state beside the queue: the round of all parties."""

    round: int = 0  # the first round that is not complete


T = TypeVar("T", bound=RoundState)


class LockStepServer(Stepping[T], Generic[T]):
    """Holds θ_0 and the labels."""

    def __init__(self, setup: ServerSetup[Options], state: T) -> None:
        super().__init__(setup, state, everyone=True)
        self.absent = None if setup.absent is None else setup.absent[0]

    @on(Embeddings, PARTY)
    def embeddings(self, sender: str, message: Embeddings) -> None:
        """Put a party's batch in the queue until the batches of all others are there."""
        message = self.decoded(sender, message)
        self.check_upload(sender, message)
        if message.batch:
            self.state.queue.add(self.request_of(self.index[sender], message))
            self._leave_behind()
        self.advance()

    def check_upload(self, sender: str, message: Embeddings) -> None:
        """Raise RemoteProtocolError if a party sends other rows than the rest of its round."""
        super().check_upload(sender, message)
        # All requests in the queue wait for one step, with the same rows.
        other = self.state.queue.beside(self.index[sender])
        if not message.batch or other is None or other.step != message.step:
            return
        if not np.array_equal(other.rows, message.rows[: message.batch]):
            raise RemoteProtocolError(
                sender, f"sent rows for step {other.step} that differ from the other parties' rows"
            )

    def request_of(self, party: int, message: Embeddings) -> QueuedRequest:
        """Return a request that keeps the values, since there is no table."""
        rows, values = message.rows[: message.batch], message.values[: message.batch]
        return QueuedRequest(party, message.step, rows, values, learn=True, reply=message.reply)

    def advance(self) -> None:
        """Step when all batches are in the queue, after the last round is evaluated if an evaluation is due."""
        s = self.state
        if s.working or self.progress.ending or self.evaluation.running or not s.queue.has(len(self.names)):
            return
        if s.due:
            self.settle()
            if self.progress.ending or self.evaluation.running:
                return
        s.taken = s.queue.take(len(self.names))
        self.run_pass([self._batch()])

    def _batch(self) -> Batch:
        """Put all parties' blocks side by side."""
        requests = sorted(self.state.taken, key=lambda request: request.party)
        rows, h = requests[0].rows, np.concatenate([request.values for request in requests], axis=1)
        if self.absent is not None:
            blank(h, self.absent[rows], self.blocks)
        return Batch(h, self.targets[rows])

    def concluded(self, taken: list[QueuedRequest]) -> None:
        """Close a round."""
        self.state.round = max(self.state.round, taken[0].step + 1)
        self._leave_behind()

    def _leave_behind(self) -> None:
        """Tell the parties behind the newest step to skip to it."""
        newest, behind = self.state.queue.leave_behind(self.state.round)
        for request in behind:
            self.send(self.names[request.party], Skip(newest))

    def forget(self, peer: str) -> None:
        """Drop the party's requests, since the conversation restarted. A step in progress uses what the party sent."""
        self.state.queue.drop(self.index[peer])

    def validate(self) -> None:
        """Raise LocalProtocolError unless all requests in the queue wait for one step that is not done."""
        super().validate()
        rounds = {request.step for request in self.state.queue}
        if len(rounds) > 1 or any(step < self.state.round for step in rounds):
            raise LocalProtocolError(f"server: steps {sorted(rounds)} queued for round {self.state.round}")


class Server(LockStepServer[RoundState]):
    """The server of `sync`."""

    def __init__(self, setup: ServerSetup[SyncOptions]) -> None:
        super().__init__(setup, RoundState())
