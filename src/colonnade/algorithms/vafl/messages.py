"""What VAFL's roles say to each other, and the jobs they give themselves."""

from colonnade.algorithms.leaving import LEAVING_PAYLOADS
from colonnade.privacy.guard import Release, Released
from colonnade.protocol.messages import Array, Elsewhere, Message, Payload

__all__ = ["LARGEST", "VAFL_PAYLOADS", "Batch", "Embed", "Embedded", "Embeddings", "FreshRequest", "Gradient", "Query",
           "Refine", "Refined", "Skip", "Step", "Stepped", "are_sane"]  # fmt: skip

LARGEST = 1e6  # of an embedding: one absurd value in the server's table would end the training of all


def are_sane(values: Array) -> bool:
    """Whether embeddings are finite and of a size that training could have led to."""
    if isinstance(values, Elsewhere):
        return True  # nobody sent it over a wire; to look at it would stop the GPU, and the loss tells as well
    return not values.size or bool(-LARGEST <= values.min() <= values.max() <= LARGEST)


class Embeddings(Message, frozen=True):
    """Party → server: newest embeddings; the first `batch` rows are a step's batch, the rest only renew the table."""

    step: int
    batch: int
    rows: Array  # (n,) int32
    values: Array  # (n, width) float32
    reply: bool = True  # whether the batch's gradient is wanted at once (Alg. 1 l. 6) or queried later
    request: int = 0  # the FreshRequest that this answers


class Query(Message, frozen=True):
    """Party → server: the gradient of the batch uploaded last, as things stand now (Alg. 1 †)."""

    step: int


class Gradient(Message, frozen=True):
    """Server → party: ∂ℓ/∂h of the uploaded batch."""

    step: int
    update: int  # k
    values: Array  # (batch, width)


class FreshRequest(Message, frozen=True):
    """Server → party: these rows are older than D, send them anew."""

    request: int
    rows: Array


class Skip(Message, frozen=True):
    """Server → party of coordinated rounds: the others are further, go on at this step."""

    step: int


class Embed(Released, frozen=True):
    """Party's job: h_m(θ_m; x) for a batch (trained on later) or for rows that only renew the table."""

    step: int
    seed: int
    batch: Array | None  # features of the batch
    renew: Array | None  # features of further rows
    renew_seed: int = 0  # of the random layers in the pass over `renew`


class Embedded(Payload, frozen=True):
    """Its result."""

    values: Array
    buffers: list[Array]
    receipt: str = ""  # of the privacy ledger


class Refine(Payload, frozen=True):
    """Party's job: the gradient of θ_m from ∂ℓ/∂h."""

    step: int
    seed: int
    x: Array
    values: Array
    release: Release | None = None


class Refined(Payload, frozen=True):
    """Its result."""

    gradient: Array
    receipt: str = ""


class Batch(Payload, frozen=True):
    """One batch of a server step."""

    h: Array  # (rows, Σ widths)
    targets: Array
    uploads: int = 1  # how many parties sent it


class Step(Payload, frozen=True):
    """Server's job: one forward and backward pass over each batch."""

    seed: int
    batches: list[Batch]


class Stepped(Payload, frozen=True):
    """Its result: the mean gradient of θ_0, and ∂ℓ/∂h of every batch."""

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
    Embed,
    Embedded,
    Refine,
    Refined,
    Batch,
    Step,
    Stepped,
    *LEAVING_PAYLOADS,
)
