"""What the plaintext baselines' roles say to each other, and the jobs they give themselves."""

from colonnade.algorithms.fedvs.messages import Gradient, Stepped, Take
from colonnade.protocol.messages import Array, Message, Payload

__all__ = ["PLAIN_PAYLOADS", "Average", "Averaged", "Begin", "Embed", "Embedded", "Upload"]


class Begin(Message, frozen=True):
    """Server → party: go on at this round."""

    round: int


class Upload(Message, frozen=True):
    """Party → server: the embeddings of a round's batch; clipped and perturbed, if need be."""

    round: int
    values: Array  # (batch, width) float32


class Embed(Payload, frozen=True):
    """Party's job."""

    round: int
    x: Array
    noise: int  # the number of the draw; 0: none


class Embedded(Payload, frozen=True):
    """Its result."""

    round: int
    values: Array
    shrunk: Array  # by how much each row was clipped


class Average(Payload, frozen=True):
    """Server's job: one pass through its network."""

    h: Array  # (rows, width): averaged
    targets: Array
    seed: int


class Averaged(Payload, frozen=True):
    """Its result."""

    loss: float
    h: Array  # ∇_H
    theta_0: Array
    buffers: list[Array]


PLAIN_PAYLOADS = (Begin, Upload, Gradient, Embed, Embedded, Take, Stepped, Average, Averaged)
