"""The messages of the predicting roles, their jobs, and the requests to the server from outside."""

import msgspec

from colonnade.protocol.messages import Array, Message, Payload

__all__ = [
    "PAYLOADS",
    "REASONS",
    "Ask",
    "Asked",
    "Compute",
    "Computed",
    "Declined",
    "Find",
    "Found",
    "Looked",
    "Mean",
    "PartyDeclined",
    "Question",
    "TakeMean",
]

# Why a party gives no answer, or not to all ids.
REASONS = ("malformed", "quota", "unanswerable", "budget", "not aligned")
MALFORMED, QUOTA, UNANSWERABLE, BUDGET, NOT_ALIGNED = REASONS


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


class Declined(Message, frozen=True):
    """Party → server: no answer to this `Ask`, and why, as one of `REASONS`."""

    number: int
    start: int
    why: str


class Mean(Message, frozen=True):
    """Party → server: the mean embedding of its training rows, its replacement if the server learned nothing better."""

    values: Array  # (width,) float32


class Find(Payload, frozen=True):
    """Party's job for an `Ask`. Its result is a `Looked`."""

    job: int  # never repeated: it determines the noise
    number: int
    start: int
    ids: list[str]


class Looked(Payload, frozen=True):
    """Result of `Find`: the content of a `Found`, and what the party keeps to itself."""

    number: int
    start: int
    has: Array
    values: Array
    withheld: int  # ids that it has and does not answer for
    why: str = ""  # if it answers for no id


class Question(Payload, frozen=True):
    """The party's record of a question, for its audit: numbers only, no ids."""

    ids: int
    answered: int
    refused: int  # the others are ids that the party does not have
    why: str = ""


class PartyDeclined(Payload, frozen=True):
    """The server's record of a `Declined`."""

    party: str
    why: str


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


PAYLOADS = (Ask, Found, Declined, Mean, Find, Looked, Question, PartyDeclined, TakeMean, Compute, Computed)
