"""What waits for a server step: requests in the order of arrival, at most `most` batches and queries of each party."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from colonnade.algorithms.batches import Rows, is_rows
from colonnade.algorithms.sane import LARGEST, are_sane
from colonnade.algorithms.vafl.messages import Embeddings
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.messages import Array

__all__ = ["Line", "Request", "check_upload"]

STEPS = 2**40  # no run is that long; a party that says so would only send the others astray


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A batch in line: it steps θ_0 (`learn`), its gradient is wanted (`reply`), or both."""

    party: int
    step: int
    rows: Rows
    values: Array | None  # kept only where there is no table
    learn: bool
    reply: bool
    perturbed: Array | None = None  # (directions, rows, width): what a zeroth-order party sends beside them


def check_upload(sender: str, message: Embeddings, rows: int, width: int) -> None:
    """Refuse what cannot be embeddings of this party."""
    if not is_rows(message.rows, rows):
        raise RemoteProtocolError(sender, f"row numbers outside 0..{rows - 1}")
    expected, values = (len(message.rows), width), message.values
    if values.shape != expected or values.dtype != np.float32:
        raise RemoteProtocolError(sender, f"embeddings of shape {values.shape}, expected {expected} float32")
    if not are_sane(values):
        raise RemoteProtocolError(sender, f"embeddings that are not finite, or beyond ±{LARGEST:g}")
    if not 0 <= message.batch <= len(message.rows):
        raise RemoteProtocolError(sender, f"a batch of {message.batch} among {len(message.rows)} rows")
    if not 0 <= message.step < STEPS:
        raise RemoteProtocolError(sender, f"embeddings of step {message.step}")


@dataclass(slots=True)
class Line:
    """Requests by their arrival; what is asked of it for every upload does not depend on how many wait.

    A party's steps under way are consecutive numbers, so that step mod `most` is a place of its own for each. A party
    that sends more than `most` batches only replaces its own.
    """

    most: int = 1  # batches of a party
    waiting: dict[tuple[int, bool, int], Request] = field(default_factory=dict)

    @classmethod
    def of(cls, *requests: Request) -> "Line":
        """These requests, in this order."""
        return cls(waiting={(request.party, request.learn, 0): request for request in requests})

    def __iter__(self) -> Iterator[Request]:
        return iter(self.waiting.values())

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, request: Request) -> None:
        """Behind all others; a batch replaces the party's one in the same place, a query waits beside its batch."""
        party, place = request.party, request.step % self.most
        if request.learn:
            self.waiting.pop((party, True, place), None)
        self.waiting.pop((party, False, place), None)
        self.waiting[party, request.learn, place] = request

    def drop(self, party: int) -> None:
        """All that a party waits for."""
        for place in range(self.most):
            for learn in (True, False):
                self.waiting.pop((party, learn, place), None)

    def has(self, parties: int) -> bool:
        """Whether requests of so many distinct parties are here."""
        return len(self) >= parties and len(self._first(parties)) == parties

    def take(self, parties: int) -> list[Request]:
        """The first requests of so many distinct parties, out of the line."""
        first = self._first(parties)
        for request in first:
            del self.waiting[request.party, request.learn, request.step % self.most]
        return first

    def _first(self, parties: int) -> list[Request]:
        first: dict[int, Request] = {}
        for request in self:
            first.setdefault(request.party, request)
            if len(first) == parties:
                break
        return list(first.values())

    def beside(self, party: int) -> Request | None:
        """Somebody else's request."""
        return next((request for request in self if request.party != party), None)

    def leave_behind(self, step: int) -> tuple[int, list[Request]]:
        """Of coordinated rounds, where all wait for the same step: the newest one, and who is now behind it."""
        ends = [request.step for request in (*islice(self, 1), *islice(reversed(self.waiting.values()), 1))]
        newest = max([step, *ends])
        if min(ends, default=newest) == newest:
            return newest, []
        behind = [request for request in self if request.step < newest]
        for request in behind:
            self.drop(request.party)
        return newest, behind
