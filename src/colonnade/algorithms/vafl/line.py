"""What waits for a server step: requests in the order of arrival, at most a batch and a query of each party."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from colonnade.algorithms.batches import Rows, is_rows
from colonnade.algorithms.vafl.messages import LARGEST, Embeddings, are_sane
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.messages import Array

__all__ = ["Request", "check_upload", "fields", "first_of_each", "part_by_step", "without"]

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


def first_of_each(line: Iterable[Request]) -> list[Request]:
    """The first request of every party."""
    first: dict[int, Request] = {}
    for request in line:
        first.setdefault(request.party, request)
    return list(first.values())


def without(line: Iterable[Request], party: int) -> list[Request]:
    """The line without one party's requests."""
    return [request for request in line if request.party != party]


def part_by_step(line: Iterable[Request], step: int) -> tuple[list[Request], list[Request]]:
    """Requests of this step or a later one, and those behind it."""
    here: list[Request] = []
    behind: list[Request] = []
    for request in line:
        (behind if request.step < step else here).append(request)
    return here, behind


def fields(request: Request) -> tuple[Any, ...]:
    """A request as plain values, for a checkpoint."""
    return tuple(getattr(request, name) for name in Request.__slots__)
