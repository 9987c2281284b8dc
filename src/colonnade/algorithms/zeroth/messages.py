"""What zeroth-order roles say to each other beyond VAFL, and the jobs they give themselves."""

from typing import ClassVar

from colonnade.algorithms.vafl.messages import Batch, Embeddings
from colonnade.privacy.guard import Receipted, Released
from colonnade.protocol.messages import Array, Message, Payload

__all__ = ["ZEROTH_PAYLOADS", "Estimate", "Losses", "Perturb", "Perturbed", "Probe", "ProbedBlock", "ProbedStep",
           "ProbedStepped"]  # fmt: skip


class Probe(Embeddings, frozen=True, kw_only=True):
    """Party → server: c of a batch as in VAFL, and ĉ of the same rows at perturbed parameters."""

    plainly: ClassVar[str] = (
        "for each row of a batch, its row number and the numbers that the party's network makes of it, twice or more "
        "with slightly different weights"
    )

    perturbed: Array  # (directions, batch, width) float32


class Losses(Message, frozen=True):
    """Server → party: h and, for every direction, ĥ; means over the batch, all at the same w_0."""

    step: int
    update: int
    values: Array  # (1 + directions,) float64


class Perturb(Released, frozen=True):
    """Party's job: c and ĉ of a batch, with directions that it draws."""

    draw: int
    seed: int
    batch: Array


class Perturbed(Receipted, frozen=True):
    """Its result; the seed makes the directions again."""

    values: Array
    perturbed: Array
    directions: bytes
    buffers: list[Array]


class Estimate(Payload, frozen=True):
    """Party's job: Eq. (3), averaged over the directions."""

    directions: bytes
    differences: Array  # ĥ − h (directions,) float64


class ProbedBlock(Payload, frozen=True):
    """One party's perturbed columns of a batch of embeddings."""

    start: int
    stop: int
    perturbed: Array


class ProbedStep(Payload, frozen=True):
    """Server's job: the losses of every probe and the step of w_0, all at the same w_0."""

    seed: int
    draw: int
    batches: list[Batch]
    probes: list[list[ProbedBlock]]  # per batch


class ProbedStepped(Payload, frozen=True):
    """Its result."""

    losses: list[float]
    theta_0: Array
    replies: list[list[Array]]  # per batch and probe: h, ĥ …
    buffers: list[Array]


ZEROTH_PAYLOADS = (Probe, Losses, Perturb, Perturbed, Estimate, ProbedBlock, ProbedStep, ProbedStepped)
