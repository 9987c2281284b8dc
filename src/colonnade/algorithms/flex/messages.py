"""The messages between Flex-VFL's roles, and the roles' jobs.

A phase is the local part of a round. A round that only measures (Alg. 2, τ^0) has a phase, but no role learns in it.
"""

from typing import ClassVar

from colonnade.algorithms.leaving import LEAVING_PAYLOADS
from colonnade.algorithms.vafl.messages import Embed, Embedded, Skip
from colonnade.data.task import Kind
from colonnade.privacy.guard import Receipted, Released
from colonnade.protocol.messages import Array, Message, Payload

__all__ = ["FLEX_PAYLOADS", "BeginPhase", "BeginWithGradient", "BeginWithSnapshot", "Late", "LocalStep", "LocalStepped",
           "Open", "Opened", "Ready", "ServerStep", "Snapshot"]  # fmt: skip


class Ready(Message, frozen=True):
    """Party → server: embeddings of the round's batch (Alg. 1 l. 6), and a report of its last phase (Alg. 2 l. 15)."""

    plainly: ClassVar[str] = (
        "for each row of a round's batch, the numbers that the party's network makes of it, and its number of steps"
    )

    round: int
    values: Array  # (batch, width) float32
    phase: int = 0  # the reported phase; 0: no report
    steps: int = 0  # τ
    weight: float = 1.0  # w̄
    step_s: float = 0.0  # mean seconds of a local step; the shortest, in a phase that only measures speeds
    held_s: float = 0.0  # seconds from the start of the phase to this upload


class Late(Message, frozen=True):
    """Party → server: the bell rang before the party had done one step; do not wait for it."""

    plainly: ClassVar[str] = "a notice that the party has not finished a step in time; no data"

    phase: int


class BeginPhase(Message, frozen=True):
    """Server → party: start the local phase of a round."""

    phase: int
    round: int
    following: int  # the round after it
    update: int  # k
    timeout_s: float  # until the bell; 0: no bell
    limit: int  # steps; 0: as many as fit
    scale: float  # factor of the party's rate; 0: only measure


class BeginWithGradient(BeginPhase, frozen=True):
    """Server → party, if labels stay at the server: ∂ℓ/∂h of the party's block at the round's start."""

    values: Array


class Snapshot(Payload, frozen=True):
    """Φ and the labels."""

    h: Array  # (batch, Σ widths)
    theta_0: Array
    buffers: list[Array]
    targets: Array
    task: Kind
    outputs: int


class BeginWithSnapshot(BeginPhase, frozen=True):
    """Server → party: Alg. 1 l. 9, as printed."""

    snapshot: Snapshot


class Open(Payload, frozen=True):
    """Server's job: the pass over the round's snapshot."""

    seed: int
    h: Array
    targets: Array


class Opened(Payload, frozen=True):
    """Result of `Open`: the loss, ∂ℓ/∂h, and the first local gradient of θ_0."""

    loss: float
    h: Array
    theta_0: Array
    buffers: list[Array]


class LocalStep(Released, frozen=True):
    """Party's job: one local step on its batch, from ∂ℓ/∂h or from the snapshot."""

    key: int
    seed: int
    x: Array
    given: Array | None
    snapshot: Snapshot | None
    first: bool  # its forward pass is that of the upload


class ServerStep(Payload, frozen=True):
    """Server's job: one local step against the snapshot. `opened` already has the first gradient."""

    seed: int
    h: Array
    targets: Array
    opened: Opened | None


class LocalStepped(Receipted, frozen=True):
    """Result of `LocalStep` and `ServerStep`: the gradient and BatchNorm's averages."""

    gradient: Array
    buffers: list[Array]


FLEX_PAYLOADS = (
    *(Ready, Late, BeginWithGradient, BeginWithSnapshot, Snapshot, Skip),
    *(Embed, Embedded, Open, Opened, LocalStep, ServerStep, LocalStepped),
    *LEAVING_PAYLOADS,
)
