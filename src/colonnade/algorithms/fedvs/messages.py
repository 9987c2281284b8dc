"""What FedVS's roles say to each other, and the jobs they give themselves.

An exchange is one attempt at one sum: models are shared, the set S is agreed, evaluators answer. In an exchange over
test rows (`testing`) `round` is the evaluation's number. Parties are named by their numbers, from 0. Field elements are
uint32 below p.
"""

from colonnade.protocol.messages import Array, Message, Payload

__all__ = ["CHUNK_PLACES", "CODED_PAYLOADS", "EXCHANGE", "Answer", "CodedSum", "CodedSummed", "DataRequest",
           "DataShare", "DataShared", "Declined", "Decode", "DecodeTest", "Decoded", "DecodedTest", "FetchData",
           "Gradient", "Holding", "ModelShare", "ModelShared", "OfRows", "Prepared", "ShareData", "ShareModel",
           "ShareModels", "Stepped", "Sum", "Take", "WhoHolds"]  # fmt: skip


CHUNK_PLACES = 8192  # of test rows: an exchange of their own


class OfRows(Message, frozen=True, omit_defaults=True, kw_only=True):
    """About training rows or about test rows; the latter are sent for evaluation."""

    testing: bool = False


class DataShare(OfRows, frozen=True):
    """Party → party, Alg. 1 l. 8: places start … of the sender's coded data; `version` names the polynomial F."""

    version: int
    start: int
    values: Array  # (places, D(d+1))


class DataRequest(Message, frozen=True):
    """Party → party: I do not hold your coded data (any more)."""


class FetchData(Message, frozen=True):
    """Server → party: you seem to lack the coded data of these; ask them."""

    of: list[int]


class Prepared(Message, frozen=True):
    """Party → server: whose coded data I hold, and which exchanges were my newest."""

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


class ModelShare(OfRows, frozen=True):
    """Party → party, Alg. 1 l. 18; `version` names the polynomial G."""

    round: int
    attempt: int
    version: int
    model: Array  # (D(d+1), h)
    blinding: Array  # (places, h), or of no places


class WhoHolds(OfRows, frozen=True):
    """Server → party: the time for sharing is over; whose shares do you hold?"""

    round: int
    attempt: int


class Holding(OfRows, frozen=True):
    """Party → server: whose shares (model, blinding and data) I hold; unasked once they are everybody's."""

    round: int
    attempt: int
    held: list[int]
    versions: list[int]  # of their data and models
    clipped: int  # of my weights, so far


class Sum(OfRows, frozen=True):
    """Server → evaluator: S is this; answer for the batch at `position` (test rows: from this place on)."""

    round: int
    attempt: int
    position: int
    summed: list[int]
    versions: list[int]


class Answer(OfRows, frozen=True):
    """Evaluator → server, Alg. 1 l. 23: the coded embedding, blinded, summed over S."""

    round: int
    attempt: int
    summed: list[int]
    values: Array  # (places, h)


class Declined(OfRows, frozen=True):
    """Evaluator → server: not over this S: it has answered for some of these rows over another, or lacks a share."""

    round: int
    attempt: int


class Gradient(Message, frozen=True):
    """Server → party, Alg. 1 l. 31: ∇_H of the average H over S."""

    round: int
    update: int  # k
    position: int
    summed: list[int]
    values: Array  # (rows, h) float32


EXCHANGE = (ShareModels, ModelShare, WhoHolds, Holding, Sum, Answer, Declined)  # the messages of one


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


class ModelShared(Payload, frozen=True):
    """Its result."""

    round: int
    attempt: int
    testing: bool
    version: int
    models: Array  # (parties, terms, h)
    blindings: Array  # (parties, places, h)


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
    *(ShareData, DataShared, ShareModel, ModelShared, CodedSum, CodedSummed, Take, Stepped),
    *(Decode, Decoded, DecodeTest, DecodedTest),
)
