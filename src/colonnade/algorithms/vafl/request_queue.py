"""Requests that wait for a step of the server, in order of arrival: at most `most` batches and queries per party."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from colonnade.algorithms.batches import Rows, is_rows
from colonnade.algorithms.sane import LARGEST, are_sane, is_step
from colonnade.algorithms.vafl.messages import Embeddings
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.messages import Array

__all__ = ["QueuedRequest", "RequestQueue", "check_upload"]


@dataclass(frozen=True, slots=True, eq=False)
class QueuedRequest:
    """A waiting batch: it steps θ_0 (`learn`), its party wants the gradient (`reply`), or both."""

    party: int
    step: int
    rows: Rows
    values: Array | None  # kept only by servers without a table
    learn: bool
    reply: bool
    perturbed: Array | None = None  # (directions, rows, width): the perturbed embeddings of a zeroth-order party


def check_upload(sender: str, message: Embeddings, rows: int, width: int) -> None:
    """Raise RemoteProtocolError for an upload that cannot be this party's embeddings."""
    if not is_rows(message.rows, rows):
        raise RemoteProtocolError(sender, f"row numbers outside 0..{rows - 1}")
    expected, values = (len(message.rows), width), message.values
    if values.shape != expected or values.dtype != np.float32:
        raise RemoteProtocolError(sender, f"embeddings of shape {values.shape}, expected {expected} float32")
    if not are_sane(values):
        raise RemoteProtocolError(sender, f"embeddings that are not finite, or beyond ±{LARGEST:g}")
    if not 0 <= message.batch <= len(message.rows):
        raise RemoteProtocolError(sender, f"a batch of {message.batch} among {len(message.rows)} rows")
    if not is_step(message.step):
        raise RemoteProtocolError(sender, f"embeddings of step {message.step}")


@dataclass(slots=True)
class RequestQueue:
    """Requests in order of arrival. The work per upload does not depend on how many requests wait.

    A party's steps in flight are consecutive numbers, so step mod `most` is a separate place for each. A party
    that sends more than `most` batches only replaces its own.
    """

    most: int = 1  # batches per party
    waiting: dict[tuple[int, bool, int], QueuedRequest] = field(default_factory=dict)

    @classmethod
    def of(cls, *requests: QueuedRequest) -> "RequestQueue":
        return cls(waiting={(request.party, request.learn, 0): request for request in requests})

    def __iter__(self) -> Iterator[QueuedRequest]:
        return iter(self.waiting.values())

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, request: QueuedRequest) -> None:
        """Append a request. A batch replaces the party's batch in the same place; a query waits beside its batch."""
        party, place = request.party, request.step % self.most
        if request.learn:
            self.waiting.pop((party, True, place), None)
        self.waiting.pop((party, False, place), None)
        self.waiting[party, request.learn, place] = request

    def drop(self, party: int) -> None:
        """Remove all requests of a party."""
        for place in range(self.most):
            for learn in (True, False):
                self.waiting.pop((party, learn, place), None)

    def has(self, parties: int) -> bool:
        """Whether requests of this many distinct parties are waiting."""
        return len(self) >= parties and len(self._first(parties)) == parties

    def take(self, parties: int) -> list[QueuedRequest]:
        """Remove and return the first requests of this many distinct parties."""
        first = self._first(parties)
        for request in first:
            del self.waiting[request.party, request.learn, request.step % self.most]
        return first

    def _first(self, parties: int) -> list[QueuedRequest]:
        first: dict[int, QueuedRequest] = {}
        for request in self:
            first.setdefault(request.party, request)
            if len(first) == parties:
                break
        return list(first.values())

    def empty(self) -> list[QueuedRequest]:
        """Remove and return all requests."""
        waiting, self.waiting = self.waiting, {}
        return list(waiting.values())
