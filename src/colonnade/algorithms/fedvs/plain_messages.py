"""Messages between the plaintext baselines' roles, and the jobs of the roles."""

from typing import ClassVar

from colonnade.algorithms.fedvs.messages import Gradient, Stepped
from colonnade.privacy.guard import Receipted, Released
from colonnade.protocol.messages import Array, Message, Payload

__all__ = ["PLAIN_PAYLOADS", "Average", "Averaged", "BeginRound", "Embed", "Embedded", "Learn", "Upload"]


class BeginRound(Message, frozen=True):
    """Server → party: continue at this round."""

    round: int


class Upload(Message, frozen=True):
    """Party → server: the embeddings of a round's batch, clipped and perturbed if the mechanism is on."""

    plainly: ClassVar[str] = "for each row of a batch, the numbers that the party's network makes of it"

    round: int
    values: Array  # (batch, width) float32


class Embed(Released, frozen=True):
    """Party's job: embed a batch. Its release is of rows that are clipped and perturbed."""

    round: int
    x: Array


class Embedded(Receipted, frozen=True):
    """Result of `Embed`."""

    round: int
    values: Array


class Learn(Released, frozen=True):
    """Party's job: the gradient of its network from ∇_{H_n}; its release names the noise of the upload."""

    round: int
    update: int
    x: Array
    values: Array


class Average(Payload, frozen=True):
    """Server's job: one pass through its network."""

    h: Array  # (rows, width), the average over the parties
    targets: Array
    seed: int


class Averaged(Payload, frozen=True):
    """Result of `Average`."""

    loss: float
    h: Array  # ∇_H
    theta_0: Array
    buffers: list[Array]


PLAIN_PAYLOADS = (BeginRound, Upload, Gradient, Embed, Embedded, Learn, Stepped, Average, Averaged)
