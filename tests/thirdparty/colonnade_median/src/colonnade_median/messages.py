"""What the roles of `median` say to each other, and the jobs they give themselves."""

from colonnade.protocol.messages import Array, Message, Payload

__all__ = ["PAYLOADS", "Center", "Centered", "Embed", "Embedded", "GoOn", "Gradient", "Learn", "Learned", "Upload"]


class Upload(Message, frozen=True):
    """Party → server: h_m of a round's batch."""

    round: int
    values: Array  # (batch, width) float32


class Gradient(Message, frozen=True):
    """Server → party: ∂ℓ/∂h_m."""

    round: int
    update: int
    values: Array  # (batch, width) float32


class GoOn(Message, frozen=True):
    """Server → party: that round is over; continue with this one."""

    round: int


class Embed(Payload, frozen=True):
    """A party's job: h_m of a round's batch."""

    round: int
    x: Array


class Embedded(Payload, frozen=True):
    """The result of `Embed`: h_m."""

    values: Array


class Learn(Payload, frozen=True):
    """Party's job: the gradient of θ_m."""

    round: int
    update: int
    x: Array
    values: Array


class Learned(Payload, frozen=True):
    """The result of `Learn`."""

    update: int
    gradient: Array
    buffers: list[Array]


class Center(Payload, frozen=True):
    """Server's job: one pass through θ_0."""

    round: int
    h: Array  # (parties, batch, width)
    targets: Array


class Centered(Payload, frozen=True):
    """The result of `Center`."""

    round: int
    loss: float
    h: Array  # ∂ℓ/∂h_m of every party
    theta_0: Array
    buffers: list[Array]


PAYLOADS = (Upload, Gradient, GoOn, Embed, Embedded, Learn, Learned, Center, Centered)
