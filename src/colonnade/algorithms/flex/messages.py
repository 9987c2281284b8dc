"""What Flex-VFL's roles say to each other, and the jobs they give themselves.

A phase is the local part of a round; a round that only measures (Alg. 2, τ^0) has a phase, but nothing is learnt.
"""

from typing import ClassVar

from colonnade.algorithms.leaving import LEAVING_PAYLOADS
from colonnade.algorithms.vafl.messages import Embed, Embedded, Skip
from colonnade.data.task import Kind
from colonnade.privacy.guard import Receipted, Released
from colonnade.protocol.messages import Array, Message, Payload

__all__ = ["FLEX_PAYLOADS", "Begin", "BeginWithGradient", "BeginWithSnapshot", "Late", "LocalStep", "LocalStepped",
           "Open", "Opened", "Ready", "ServerStep", "Snapshot"]  # fmt: skip


class Ready(Message, frozen=True):
    """Party → server: embeddings of the round's batch (Alg. 1 l. 6), and how its last phase went (Alg. 2 l. 15)."""

    plainly: ClassVar[str] = (
        "for each row of a round's batch, the numbers that the party's network makes of it, and its number of steps"
    )

    round: int
    values: Array  # (batch, width) float32
    phase: int = 0  # the one reported; 0: none
    steps: int = 0  # τ
    weight: float = 1.0  # w̄
    step_s: float = 0.0  # mean seconds of a local step
    held_s: float = 0.0  # from the phase's beginning to this upload


class Late(Message, frozen=True):
    """Party → server: the bell rang before a single step was done; do not wait for me."""

    plainly: ClassVar[str] = "that the party has not finished a step in time; no data"

    phase: int


class Begin(Message, frozen=True):
    """Server → party: the local phase of a round."""

    phase: int
    round: int
    following: int  # the round after it
    update: int  # k
    timeout_s: float  # until the bell; 0: there is none
    limit: int  # steps; 0: as many as fit
    scale: float  # of the party's rate; 0: only measure


class BeginWithGradient(Begin, frozen=True):
    """With labels kept: ∂ℓ/∂h of the party's block at the round's start."""

    values: Array


class Snapshot(Payload, frozen=True):
    """Φ, and the labels."""

    h: Array  # (batch, Σ widths)
    theta_0: Array
    buffers: list[Array]
    targets: Array
    task: Kind
    outputs: int


class BeginWithSnapshot(Begin, frozen=True):
    """Alg. 1 l. 9, as printed."""

    snapshot: Snapshot


class Open(Payload, frozen=True):
    """Server's job: the pass over the round's snapshot."""

    seed: int
    h: Array
    targets: Array


class Opened(Payload, frozen=True):
    """Its result: the loss, ∂ℓ/∂h, and the first local gradient of θ_0."""

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
    first: bool  # its forward pass is the upload's


class ServerStep(Payload, frozen=True):
    """Server's job: one local step against the snapshot; the first gradient is there already."""

    seed: int
    h: Array
    targets: Array
    opened: Opened | None


class LocalStepped(Receipted, frozen=True):
    """Its result."""

    gradient: Array
    buffers: list[Array]


FLEX_PAYLOADS = (
    *(Ready, Late, BeginWithGradient, BeginWithSnapshot, Snapshot, Skip),
    *(Embed, Embedded, Open, Opened, LocalStep, ServerStep, LocalStepped),
    *LEAVING_PAYLOADS,
)
