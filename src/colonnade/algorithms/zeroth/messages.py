"""The messages of zeroth-order roles beyond VAFL's, and the roles' jobs."""

from typing import ClassVar

from colonnade.algorithms.vafl.messages import Batch, Embeddings
from colonnade.privacy.guard import Receipted, Released
from colonnade.protocol.messages import Array, Message, Payload

__all__ = ["ZEROTH_PAYLOADS", "Estimate", "Losses", "Perturb", "Perturbed", "Probe", "ProbedBlock", "ProbedStep",
           "ProbedStepped"]  # fmt: skip


class Probe(Embeddings, frozen=True, kw_only=True):
    """Party → server: c of a batch as in VAFL, and ĉ of the same rows at perturbed weights."""

    plainly: ClassVar[str] = (
        "for each row of a batch, its row number and the numbers that the party's network makes of it, twice or more "
        "with slightly different weights"
    )

    perturbed: Array  # (directions, batch, width) float32


class Losses(Message, frozen=True):
    """Server → party: h and, for every direction, ĥ: means over the batch, all at the same w_0."""

    step: int
    update: int
    values: Array  # (1 + directions,) float64


class Perturb(Released, frozen=True):
    """Party's job: draw directions, and compute c and ĉ of a batch."""

    draw: int
    seed: int
    batch: Array


class Perturbed(Receipted, frozen=True):
    """Result of `Perturb`. The seed `directions` reproduces the directions."""

    values: Array
    perturbed: Array
    directions: bytes
    buffers: list[Array]


class Estimate(Payload, frozen=True):
    """Party's job: Eq. (3), averaged over the directions."""

    directions: bytes
    differences: Array  # ĥ − h (directions,) float64


class ProbedBlock(Payload, frozen=True):
    """One party's perturbed block in a batch of embeddings."""

    start: int
    stop: int
    perturbed: Array


class ProbedStep(Payload, frozen=True):
    """Server's job: the losses of every probe and the step of w_0, all at the same w_0."""

    seed: int
    draw: int
    batches: list[Batch]
    probes: list[list[ProbedBlock]]  # for each batch


class ProbedStepped(Payload, frozen=True):
    """Result of `ProbedStep`."""

    losses: list[float]
    theta_0: Array
    replies: list[list[Array]]  # for each batch and probe: h, ĥ …
    buffers: list[Array]


ZEROTH_PAYLOADS = (Probe, Losses, Perturb, Perturbed, Estimate, ProbedBlock, ProbedStep, ProbedStepped)
