"""What the predicting server and parties say to each other, their jobs, and what passes the server's door."""

import msgspec

from colonnade.protocol.messages import Array, Message, Payload

__all__ = ["PAYLOADS", "Ask", "Asked", "Compute", "Computed", "Find", "Found", "Mean", "TakeMean"]


class Asked(msgspec.Struct, frozen=True):
    """An event of the server's role alone: somebody asks at the door; `here` are the parties that are connected."""

    number: int
    ids: list[str]
    here: list[str]


class Ask(Message, frozen=True):
    """Server → party: embed the rows of these ids, which begin at `start` of a request."""

    number: int
    start: int
    ids: list[str]


class Found(Message, frozen=True):
    """Party → server: which of them it has, and the embeddings of those."""

    number: int
    start: int
    has: Array  # (ids,) bool
    values: Array  # (those that it has, width) float32


class Mean(Message, frozen=True):
    """Party → server: the mean of its training rows' embeddings, to stand in for it when nothing better was learned."""

    values: Array  # (width,) float32


class Find(Payload, frozen=True):
    """Party's job for an `Ask`; its result is a `Found`."""

    job: int  # never the same again: noise is drawn by it
    number: int
    start: int
    ids: list[str]


class TakeMean(Payload, frozen=True):
    """Party's job; its result is a `Mean`."""


class Compute(Payload, frozen=True):
    """Server's job: predictions from the blocks of all parties."""

    number: int
    h: Array  # (rows, Σ widths)
    blocks: Array  # (rows, parties) uint8, what each is: see `standing_in`
    away: list[str]  # who did not answer


class Computed(Payload, frozen=True):
    """Its result, which is also what comes out at the door."""

    number: int
    values: Array  # (rows, classes), or (rows, 1) for regression; of no meaning in rows that are refused
    blocks: Array
    away: list[str]


PAYLOADS = (Ask, Found, Mean, Find, TakeMean, Compute, Computed)
