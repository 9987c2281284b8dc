"""The messages of the predicting roles, their jobs, and the requests to the server from outside."""

import msgspec

from colonnade.protocol.messages import Array, Message, Payload

__all__ = ["PAYLOADS", "Ask", "Asked", "Compute", "Computed", "Find", "Found", "Mean", "TakeMean"]


class Asked(msgspec.Struct, frozen=True):
    """An event of the server's role only: a caller asks for predictions. `here` are the connected parties."""

    number: int
    ids: list[str]
    here: list[str]


class Ask(Message, frozen=True):
    """Server → party: embed the rows of these ids, which begin at `start` of a request."""

    number: int
    start: int
    ids: list[str]


class Found(Message, frozen=True):
    """Party → server: which of the asked ids it has, and their embeddings."""

    number: int
    start: int
    has: Array  # (ids,) bool
    values: Array  # (ids that it has, width) float32


class Mean(Message, frozen=True):
    """Party → server: the mean embedding of its training rows, its replacement if the server learned nothing better."""

    values: Array  # (width,) float32


class Find(Payload, frozen=True):
    """Party's job for an `Ask`. Its result is a `Found`."""

    job: int  # never repeated: it determines the noise
    number: int
    start: int
    ids: list[str]


class TakeMean(Payload, frozen=True):
    """Party's job: the mean embedding of its training rows. Its result is a `Mean`."""


class Compute(Payload, frozen=True):
    """Server's job: predictions from the blocks of all parties."""

    number: int
    h: Array  # (rows, Σ widths)
    blocks: Array  # (rows, parties) uint8: the kind of each block, see `standing_in`
    away: list[str]  # parties that did not answer


class Computed(Payload, frozen=True):
    """Result of `Compute`, and the server's answer to the caller."""

    number: int
    values: Array  # (rows, classes), or (rows, 1) for regression; meaningless in refused rows
    blocks: Array
    away: list[str]


PAYLOADS = (Ask, Found, Mean, Find, TakeMean, Compute, Computed)
