"""What FedVS's roles say to each other, and the jobs they give themselves.

An exchange is one attempt at one sum: models are shared, the set S is agreed, evaluators answer. In an exchange over
test rows (`testing`) `round` is the evaluation's number. Parties are named by their numbers, from 0. Field elements are
uint32 below p. Fields with a default are those of `stale = "allow"`; without it they are not sent.
"""

from typing import ClassVar

from msgspec import field

from colonnade.protocol.messages import Array, Message, Payload

__all__ = ["CHUNK_PLACES", "CODED_PAYLOADS", "EXCHANGE", "Answer", "Blind", "Blinded", "CodedSum", "CodedSummed",
           "CodedTerms", "CodedTermsMade", "DataRequest", "DataShare", "DataShared", "Declined", "Decode", "DecodeTest",
           "Decoded", "DecodedTest", "FetchData", "Gradient", "Holding", "ModelRequest", "ModelShare", "ModelShared",
           "OfRows", "Prepared", "ShareData", "ShareModel", "ShareModels", "Shared", "Stepped", "Sum", "Take",
           "WhoHolds"]  # fmt: skip


CHUNK_PLACES = 8192  # of test rows: an exchange of their own


class OfRows(Message, frozen=True, omit_defaults=True, kw_only=True):
    """About training rows or about test rows; the latter are sent for evaluation."""

    testing: bool = False


class DataShare(OfRows, frozen=True):
    """Party → party, Alg. 1 l. 8: places start … of the sender's coded data; `version` names the polynomial F."""

    plainly: ClassVar[str] = (
        "a coded share of the party's columns: up to T receivers together learn nothing from theirs (T = 0: all)"
    )

    version: int
    start: int
    values: Array  # (places, D(d+1))


class DataRequest(Message, frozen=True):
    """Party → party: I do not hold your coded data (any more)."""

    plainly: ClassVar[str] = "a question for another party's shares; no data"


class FetchData(Message, frozen=True):
    """Server → party: you seem to lack the coded data of these; ask them."""

    of: list[int]


class Prepared(Message, frozen=True):
    """Party → server: whose coded data I hold, and which exchanges were my newest."""

    plainly: ClassVar[str] = "whose shares the party holds; no data"

    held: list[int]
    round: int
    attempt: int
    position: int  # the newest batch that I answered for
    tested: int  # the newest evaluation


class ShareModels(OfRows, frozen=True):
    """Server → party: an exchange begins; share your model with these, and blinding for so many places."""

    round: int
    attempt: int
    among: list[int]
    places: int
    awaited: list[int] = field(
        default_factory=list
    )  # the exchange waits for these, and they blind; of the others, the last shares do
    position: int = -1  # of the batch that the sum will most likely be asked for


class ModelShare(OfRows, frozen=True):
    """Party → party, Alg. 1 l. 18; `version` names the polynomial G."""

    plainly: ClassVar[str] = (
        "a coded share of the party's weights, and of numbers that hide its answers if blinding is on"
    )

    round: int
    attempt: int
    version: int
    model: Array  # (D(d+1), h); of no lines: as it was shared before
    blinding: Array  # (places, h), or of no places
    trained: int = 0  # which weights: one more than the round whose gradient has led to them; 0: the first
    mark: int = 0  # names the blinding polynomial


class ModelRequest(Message, frozen=True):
    """Party → party: I do not hold your model (any more)."""

    plainly: ClassVar[str] = "a question for another party's shares; no data"


class Shared(Message, frozen=True):
    """Party → server: these weights are shared."""

    plainly: ClassVar[str] = "that the party has shared its weights; no data"

    trained: int


class WhoHolds(OfRows, frozen=True):
    """Server → party: the time for sharing is over; whose shares do you hold?"""

    round: int
    attempt: int


class Holding(OfRows, frozen=True):
    """Party → server: whose shares (model, blinding and data) I hold; unasked once they are everybody's."""

    plainly: ClassVar[str] = "whose shares the party holds, and how many of its weights were cut off"

    round: int
    attempt: int
    held: list[int]
    versions: list[int]  # of their data and models; a party may be there twice, the one to be summed last
    clipped: int  # of my weights, so far
    trained: list[int] = field(default_factory=list)  # of these models


class Sum(OfRows, frozen=True):
    """Server → evaluator: S is this; answer for the batch at `position` (test rows: from this place on)."""

    round: int
    attempt: int
    position: int
    summed: list[int]
    versions: list[int]


class Answer(OfRows, frozen=True):
    """Evaluator → server, Alg. 1 l. 23: the coded embedding, blinded, summed over S."""

    plainly: ClassVar[str] = "a coded sum over several parties, hidden by random numbers if blinding is on"

    round: int
    attempt: int
    summed: list[int]
    values: Array  # (places, h)


class Declined(OfRows, frozen=True):
    """Evaluator → server: not over this S: it has answered for some of these rows over another, or lacks a share."""

    plainly: ClassVar[str] = "that the party does not answer a question; no data"

    round: int
    attempt: int


class Gradient(Message, frozen=True, omit_defaults=True):
    """Server → party, Alg. 1 l. 31: ∇_H of the average H over S."""

    round: int
    update: int  # k
    position: int
    summed: list[int]
    values: Array  # (rows, h) float32
    trained: list[int] = field(default_factory=list)  # of S: which weights were summed


EXCHANGE = (
    ShareModels,
    ModelShare,
    ModelRequest,
    Shared,
    WhoHolds,
    Holding,
    Sum,
    Answer,
    Declined,
)  # the messages of one


class ShareData(Payload, frozen=True):
    """Party's job: encode the own data, for all or for one."""

    to: int  # -1: for all
    train_seed: bytes = b""  # of masks; none: to be drawn
    test_seed: bytes = b""


class DataShared(Payload, frozen=True):
    """Its result, and what was drawn for it: secrets come from `compute`, which no replayed log repeats."""

    to: int
    train: Array  # (parties, places, terms)
    test: Array
    train_seed: bytes
    test_seed: bytes
    version: int


class ShareModel(Payload, frozen=True):
    """Party's job: quantise, mask and encode the own model, and a blinding polynomial beside it."""

    round: int
    attempt: int
    testing: bool
    weights: Array  # (terms, h) float32
    places: int
    trained: int = 0
    rounding: bytes = b""  # the seed of it; none: that of the round


class ModelShared(Payload, frozen=True):
    """Its result."""

    round: int
    attempt: int
    testing: bool
    version: int
    models: Array  # (parties, terms, h)
    blindings: Array  # (parties, places, h)
    trained: int = 0


class Blind(Payload, frozen=True):
    """Party's job: a blinding polynomial for some places of an exchange, which may not have begun."""

    round: int
    attempt: int
    awaited: list[int]
    places: int  # all of the exchange
    rows: int  # that this party blinds


class Blinded(Payload, frozen=True):
    """Its result."""

    round: int
    attempt: int
    awaited: list[int]
    places: int
    mark: int
    values: Array  # (parties, rows, h)


class CodedTerms(Payload, frozen=True):
    """Party's job: X̃_n W̃_n of some parties n, the terms of Eq. (5)."""

    position: int
    numbers: list[int]
    versions: list[int]  # of their models
    x: Array  # (places, Σ terms)
    w: Array  # (Σ terms, h)
    ends: list[int]  # where the columns of each party end


class CodedTermsMade(Payload, frozen=True):
    """Its result."""

    position: int
    numbers: list[int]
    versions: list[int]
    values: Array  # (numbers, places, h)


class CodedSum(Payload, frozen=True):
    """Party's job, Eq. (5): Σ_{n ∈ S} X̃_n W̃_n, and the blinding on top."""

    round: int
    attempt: int
    testing: bool
    summed: list[int]
    x: Array  # (places, Σ terms)
    w: Array  # (Σ terms, h)
    blinding: Array  # (places, h), already summed


class CodedSummed(Payload, frozen=True):
    """Its result."""

    round: int
    attempt: int
    testing: bool
    summed: list[int]
    values: Array


class Take(Payload, frozen=True):
    """Party's job, Alg. 1 l. 34: the gradient of W from ∇_{H_n}."""

    round: int
    update: int
    x: Array
    values: Array


class Stepped(Payload, frozen=True):
    """Its result."""

    update: int
    gradient: Array
    buffers: list[Array]


class Decode(Payload, frozen=True):
    """Server's job, Alg. 1 l. 28–31: decode, average, and one pass through the server's network."""

    answers: Array  # (R, places, h)
    who: list[int]
    count: int  # |S|
    batch: Array  # places
    targets: Array
    seed: int


class Decoded(Payload, frozen=True):
    """Its result."""

    loss: float
    h: Array  # ∇_H
    theta_0: Array
    buffers: list[Array]


class DecodeTest(Payload, frozen=True):
    """Server's job: decode a chunk of test rows."""

    answers: Array
    who: list[int]
    count: int
    start: int


class DecodedTest(Payload, frozen=True):
    """Its result."""

    start: int
    values: Array  # (K, places, h) float32


CODED_PAYLOADS = (
    *(DataShare, DataRequest, FetchData, Prepared, *EXCHANGE, Gradient),
    *(ShareData, DataShared, ShareModel, ModelShared, Blind, Blinded),
    *(CodedTerms, CodedTermsMade, CodedSum, CodedSummed, Take, Stepped),
    *(Decode, Decoded, DecodeTest, DecodedTest),
)
