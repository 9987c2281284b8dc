"""Messages between FedVS's roles, and the jobs of the roles.

An exchange is one attempt at one sum: parties share models, the set S is agreed, and evaluators answer. In an exchange
over test rows (`testing`), `round` is the evaluation's number. Parties are named by their numbers, from 0. Field
elements are uint32 below p. Fields with a default belong to `stale = "allow"`; without it they are not sent.
"""

from typing import ClassVar

from msgspec import field

from colonnade.protocol.messages import Array, Message, Payload

__all__ = ["CHUNK_PLACES", "CODED_PAYLOADS", "EXCHANGE", "Answer", "Blind", "Blinded", "CodedSum", "CodedSummed",
           "CodedTerms", "CodedTermsMade", "DataRequest", "DataShare", "DataShared", "Declined", "Decode",
           "DecodeTest", "Decoded", "DecodedTest", "Doubted", "DoubtedTest", "FetchData", "Gradient", "Holding",
           "ModelRequest", "ModelShare", "ModelShared", "OfRows", "Prepared", "ShareData", "ShareModel",
           "ShareModels", "Shared", "Stepped", "Sum", "Take", "WhoHolds"]  # fmt: skip


CHUNK_PLACES = 8192  # of held-out rows in one exchange


class OfRows(Message, frozen=True, omit_defaults=True, kw_only=True):
    """Base of messages about training rows or test rows; the latter are sent for evaluation."""

    testing: bool = False


class DataShare(OfRows, frozen=True):
    """Party → party, Alg. 1 l. 8: places start … of the sender's coded data; `version` names the polynomial F."""

    plainly: ClassVar[str] = (
        "a coded share of the party's columns: up to T receivers together learn nothing from their shares "
        "(T = 0: shares hide nothing)"
    )

    version: int
    start: int
    values: Array  # (places, D(d+1))


class DataRequest(Message, frozen=True):
    """Party → party: I do not hold your coded data (any more)."""

    plainly: ClassVar[str] = "a question for another party's shares; no data"


class FetchData(Message, frozen=True):
    """Server → party: you seem to lack the coded data of these parties; ask them."""

    of: list[int]


class Prepared(Message, frozen=True):
    """Party → server: the parties whose coded data I hold, and my newest exchanges."""

    plainly: ClassVar[str] = "a list of the parties whose shares it holds; no data"

    held: list[int]
    round: int
    attempt: int
    position: int  # the newest batch that this party answered for
    tested: int  # number of the newest evaluation


class ShareModels(OfRows, frozen=True):
    """Server → party: an exchange begins; share your model with these parties, and blinding for `places` places."""

    round: int
    attempt: int
    among: list[int]
    places: int
    awaited: list[int] = field(
        default_factory=list
    )  # the exchange waits for these parties, and they blind; the others' last shares are used
    position: int = -1  # of the batch that will most likely be summed
    evaluators: list[int] = field(default_factory=list)  # the parties that will be asked first; none: all


class ModelShare(OfRows, frozen=True):
    """Party → party, Alg. 1 l. 18: a share of the model and of blinding; `version` names the polynomial G."""

    plainly: ClassVar[str] = (
        "a coded share of the party's weights, and of numbers that hide its answers if blinding is on"
    )

    round: int
    attempt: int
    version: int
    model: Array  # (D(d+1), h); without lines: the same model as shared before
    blinding: Array  # (places, h), or without places
    trained: int = 0  # number of the weights: one more than the round whose gradient led to them; 0: the first
    mark: int = 0  # names the blinding polynomial


class ModelRequest(Message, frozen=True):
    """Party → party: I do not hold your model (any more)."""

    plainly: ClassVar[str] = "a question for another party's shares; no data"


class Shared(Message, frozen=True):
    """Party → server: these weights are shared."""

    plainly: ClassVar[str] = "a notice that the party has shared its weights; no data"

    trained: int


class WhoHolds(OfRows, frozen=True):
    """Server → party: the time for sharing is over; which parties' shares do you hold?"""

    round: int
    attempt: int


class Holding(OfRows, frozen=True):
    """Party → server: the parties whose shares (model, blinding and data) I hold; sent unasked once all are here."""

    plainly: ClassVar[str] = "a list of the parties whose shares it holds, and how many of its weights were clipped"

    round: int
    attempt: int
    held: list[int]
    versions: list[int]  # of their data and models; a party may be there twice, its preferred version last
    clipped: int  # weights of this party clipped so far
    trained: list[int] = field(default_factory=list)  # numbers of these models' weights


class Sum(OfRows, frozen=True):
    """Server → evaluator: S is agreed; answer for the batch at `position` (test rows: from this place on)."""

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
    """Evaluator → server: no answer over this S: I answered for some of these rows over another, or lack a share."""

    plainly: ClassVar[str] = "a notice that the party does not answer a request; no data"

    round: int
    attempt: int


class Gradient(Message, frozen=True, omit_defaults=True):
    """Server → party, Alg. 1 l. 31: ∇_H of the average H over S."""

    round: int
    update: int  # k
    position: int
    summed: list[int]
    values: Array  # (rows, h) float32
    trained: list[int] = field(default_factory=list)  # numbers of the weights that were summed, in the order of S


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
)  # all messages of an exchange


class ShareData(Payload, frozen=True):
    """Party's job: encode its own data, for all parties or for one."""

    to: int  # -1: for all parties
    train_seed: bytes = b""  # seeds of the masks; empty: to be drawn
    test_seed: bytes = b""


class DataShared(Payload, frozen=True):
    """Result of `ShareData`, with the seeds it drew: secrets come from `compute`, which no replayed journal repeats."""

    to: int
    train: Array  # (parties, places, terms)
    test: Array
    train_seed: bytes
    test_seed: bytes
    version: int


class ShareModel(Payload, frozen=True):
    """Party's job: quantise, mask and encode its own model, and make a blinding polynomial."""

    round: int
    attempt: int
    testing: bool
    weights: Array  # (terms, h) float32
    places: int
    trained: int = 0
    rounding: bytes = b""  # seed of the rounding; empty: that of the round


class ModelShared(Payload, frozen=True):
    """Result of `ShareModel`."""

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
    places: int  # of the whole exchange
    rows: int  # places that this party blinds


class Blinded(Payload, frozen=True):
    """Result of `Blind`."""

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
    ends: list[int]  # the end of each product's columns
    sizes: list[int] = field(default_factory=list)  # parties of each product; none: one each


class CodedTermsMade(Payload, frozen=True):
    """Result of `CodedTerms`."""

    position: int
    numbers: list[int]
    versions: list[int]
    values: Array  # (products, places, h)
    sizes: list[int] = field(default_factory=list)


class CodedSum(Payload, frozen=True):
    """Party's job, Eq. (5): Σ_{n ∈ S} X̃_n W̃_n, plus the blinding."""

    round: int
    attempt: int
    testing: bool
    summed: list[int]
    x: Array  # (places, Σ terms)
    w: Array  # (Σ terms, h)
    blinding: Array  # (places, h), already summed


class CodedSummed(Payload, frozen=True):
    """Result of `CodedSum`."""

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
    """Result of `Take`."""

    update: int
    gradient: Array
    buffers: list[Array]


class Decode(Payload, frozen=True):
    """Server's job, Alg. 1 l. 28–31: decode, average, and one pass through the server's network."""

    answers: Array  # (R or more, places, h)
    who: list[int]
    count: int  # |S|
    batch: Array  # places
    targets: Array
    seed: int
    draw: int  # names the randomness of the check; never used again


class Decoded(Payload, frozen=True):
    """Result of `Decode`."""

    loss: float
    h: Array  # ∇_H
    theta_0: Array
    buffers: list[Array]
    answers: int  # that were here
    wrong: list[int]  # parties whose answers were wrong and left out


class Doubted(Payload, frozen=True):
    """Result of `Decode` if some answers are wrong, and too few are here to tell which."""

    answers: int


class DecodeTest(Payload, frozen=True):
    """Server's job: decode a chunk of test rows."""

    answers: Array
    who: list[int]
    count: int
    start: int
    draw: int


class DecodedTest(Payload, frozen=True):
    """Result of `DecodeTest`."""

    start: int
    values: Array  # (K, places, h) float32
    wrong: list[int]


class DoubtedTest(Payload, frozen=True):
    """Result of `DecodeTest` if some answers are wrong, and too few are here to tell which."""

    start: int
    answers: int


CODED_PAYLOADS = (
    *(DataShare, DataRequest, FetchData, Prepared, *EXCHANGE, Gradient),
    *(ShareData, DataShared, ShareModel, ModelShared, Blind, Blinded),
    *(CodedTerms, CodedTermsMade, CodedSum, CodedSummed, Take, Stepped),
    *(Decode, Decoded, Doubted, DecodeTest, DecodedTest, DoubtedTest),
)
