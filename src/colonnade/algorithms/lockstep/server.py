"""The server of the lock-step baseline: every step waits for every party.

Batches carry all blocks, so there is no table. The server evaluates between two steps, when all parties have applied
the last one. A party is at another step than the server only after one of the two lost its state. The server's step
counts, whatever the party says: the party moves to it, forward or back. The rows of a step follow from the walk that
all roles share, so the server refuses other rows.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from colonnade.algorithms.batches import Order, are_same, walk_of
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
    """The state beside the queue: the round, which is the step of all parties."""

    round: int = 0  # the first round that is not complete


T = TypeVar("T", bound=RoundState)


class LockStepServer(Stepping[T], Generic[T]):
    """Holds θ_0 and the labels."""

    def __init__(self, setup: ServerSetup[Options], state: T, walk: Order) -> None:
        super().__init__(setup, state, everyone=True)
        self.walk = walk
        self.absent = None if setup.absent is None else setup.absent[0]

    @on(Embeddings, PARTY)
    def embeddings(self, sender: str, message: Embeddings) -> None:
        """Put a party's batch in the queue until the batches of all others are there."""
        message = self.decoded(sender, message)
        self.check_upload(sender, message)
        if message.step != self.state.round:
            return self.send(sender, Skip(self.state.round))
        self.state.queue.add(self.request_of(self.index[sender], message))
        self.advance()

    def check_upload(self, sender: str, message: Embeddings) -> None:
        """Also raise RemoteProtocolError for other rows than the round's. A batch of another step is never used."""
        super().check_upload(sender, message)
        rows = len(message.rows)
        if message.batch != rows or rows != self.walk.size(message.step):
            raise RemoteProtocolError(
                sender, f"sent a batch of {message.batch} among {rows} rows for step {message.step}"
            )
        if message.step == self.state.round and not are_same(message.rows, self.walk.batch(message.step)):
            raise RemoteProtocolError(sender, f"sent rows for step {message.step} that differ from the agreed walk")

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
        """Close a round. A party that sent its batch again meanwhile is behind now."""
        self.state.round += 1
        for request in self.state.queue.empty():
            self.send(self.names[request.party], Skip(self.state.round))

    def forget(self, peer: str) -> None:
        """Drop the party's requests, since the conversation restarted. A step in progress uses what the party sent."""
        self.state.queue.drop(self.index[peer])

    def validate(self) -> None:
        """Raise LocalProtocolError unless all requests in the queue are of the round."""
        super().validate()
        rounds = {request.step for request in self.state.queue}
        if rounds - {self.state.round}:
            raise LocalProtocolError(f"server: steps {sorted(rounds)} queued for round {self.state.round}")


class Server(LockStepServer[RoundState]):
    """The server of `sync`."""

    def __init__(self, setup: ServerSetup[SyncOptions]) -> None:
        super().__init__(setup, RoundState(), walk_of(setup.training, None))
