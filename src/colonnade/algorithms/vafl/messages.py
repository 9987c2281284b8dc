"""The messages between VAFL's roles, and the roles' jobs."""

from typing import ClassVar

from colonnade.algorithms.leaving import LEAVING_PAYLOADS
from colonnade.privacy.guard import Receipted, Released
from colonnade.protocol.messages import Array, Message, Payload

__all__ = [
    "REVEALS",
    "VAFL_PAYLOADS",
    "Batch",
    "Embed",
    "Embedded",
    "Embeddings",
    "FreshRequest",
    "Gradient",
    "Pace",
    "Query",
    "Refine",
    "Refined",
    "Skip",
    "Step",
    "Stepped",
]

REVEALS = (
    "server: every party's embeddings and row numbers; each party: the loss gradient of its own embeddings "
    "(from which a curious party can infer labels); parties learn nothing of each other directly"
)


class Embeddings(Message, frozen=True):
    """Party → server: newest embeddings. The first `batch` rows are a step's batch; the rest only renew the table."""

    plainly: ClassVar[str] = (
        "for each row of a batch, its row number and the numbers that the party's network makes of it"
    )

    step: int
    batch: int
    rows: Array  # (n,) int32
    values: Array  # (n, width) float32
    reply: bool = True  # whether the party wants the gradient at once (Alg. 1 l. 6) or queries it later
    request: int = 0  # the FreshRequest that this answers


class Query(Message, frozen=True):
    """Party → server: a query for the gradient of the last uploaded batch at the current θ_0 and table (Alg. 1 †)."""

    plainly: ClassVar[str] = "a question for the gradient of the last batch; no data"

    step: int


class Gradient(Message, frozen=True):
    """Server → party: ∂ℓ/∂h of the uploaded batch."""

    step: int
    update: int  # k
    values: Array  # (batch, width)


class FreshRequest(Message, frozen=True):
    """Server → party: these rows are older than D; send them again."""

    request: int
    rows: Array


class Skip(Message, frozen=True):
    """Server → party of coordinated rounds: the others are further; continue at this step."""

    step: int


class Pace(Message, frozen=True):
    """Server → party: use batches of this many rows from now on, because this party is slow, or no longer slow."""

    rows: int


class Embed(Released, frozen=True):
    """Party's job: h_m(θ_m; x) for a batch (trained on later) or for rows that only renew the table."""

    step: int
    seed: int
    batch: Array | None  # features of the batch
    renew: Array | None  # features of further rows
    renew_seed: int = 0  # for the random layers in the pass over `renew`


class Embedded(Receipted, frozen=True):
    """Result of `Embed`: encoded embeddings of `batch`, then of `renew`; and BatchNorm's averages."""

    values: Array
    buffers: list[Array]


class Refine(Released, frozen=True):
    """Party's job: the gradient of θ_m from ∂ℓ/∂h."""

    step: int
    seed: int
    x: Array
    values: Array


class Refined(Receipted, frozen=True):
    """Result of `Refine`: the gradient of θ_m."""

    gradient: Array


class Batch(Payload, frozen=True):
    """The embeddings and targets of one batch in a server step."""

    h: Array  # (rows, Σ widths)
    targets: Array
    uploads: int = 1  # how many parties sent it


class Step(Payload, frozen=True):
    """Server's job: one forward and backward pass over each batch."""

    seed: int
    batches: list[Batch]


class Stepped(Payload, frozen=True):
    """Result of `Step`: the mean gradient of θ_0, and ∂ℓ/∂h of every batch."""

    losses: list[float]
    theta_0: Array
    h: list[Array]
    buffers: list[Array]


VAFL_PAYLOADS = (
    Embeddings,
    Query,
    Gradient,
    FreshRequest,
    Skip,
    Pace,
    Embed,
    Embedded,
    Refine,
    Refined,
    Batch,
    Step,
    Stepped,
    *LEAVING_PAYLOADS,
)
