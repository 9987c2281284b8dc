"""What crosses when ids are aligned: numbers of ids, raised points, places, and one secret among the members.

No id and no hash of one is in any of them: a point leaves its owner raised to the owner's secret exponent.
"""

from colonnade.protocol.messages import Array, Message, Payload

__all__ = [
    "PAYLOADS",
    "Aligned",
    "Begin",
    "Declare",
    "Done",
    "Invalid",
    "Mail",
    "Match",
    "Matched",
    "Own",
    "Places",
    "Points",
    "Raised",
    "Secret",
    "Trouble",
]


class Declare(Message, frozen=True):
    """Party → server: so many ids I bring."""

    count: int


class Begin(Message, frozen=True):
    """Server → parties: all are here, in the order of the ring, with so many ids each."""

    members: tuple[str, ...]
    counts: tuple[int, ...]


class Secret(Message, frozen=True):
    """First member → every other one, sealed: what the common order is made from."""

    seed: bytes


class Points(Message, frozen=True):
    """Member → next member of the ring, the last one → server: ids of `owner`, raised by `hops` members."""

    owner: str
    hops: int
    start: int
    last: bool
    points: Array  # uint8 (points, 33)


class Raised(Message, frozen=True):
    """Party → server: so many points this party has raised so far, for people who wait."""

    points: int


class Places(Message, frozen=True):
    """Server → owner (of the server's own ids: back around the ring): which of its points are in common."""

    owner: str
    size: int  # of what all have in common
    start: int
    last: bool
    places: Array  # int32 (points,): the place among those in common, -1: not there


Mail = Points | Places | Secret  # what members send each other


class Done(Message, frozen=True):
    """Party → server: my order is written, and this is its digest."""

    sha256: str


class Trouble(Message, frozen=True):
    """Party → server: this member broke the rules; it ends the alignment for all."""

    member: str
    cause: str


# Jobs, results, records


class Own(Payload, frozen=True):
    """Hash and raise own ids start..stop; the result is Points. (Of others, the job is Points, too.)"""

    start: int
    stop: int


class Invalid(Payload, frozen=True):
    """The job's points are none."""

    owner: str
    hops: int


class Match(Payload, frozen=True):
    """Find what all sets have in common."""


class Matched(Payload, frozen=True):
    """For every set, which places its points have; or which member has a point twice."""

    size: int
    places: list[Array]
    presence: Array  # bool (size, members)
    repeats: str = ""


class Aligned(Payload, frozen=True):
    """A member's result."""

    rows: Array  # int64 (in common,): where each stands in its own file; -1: not there
    sha256: str
    presence: Array | None = None  # bool (in common, members); only the server is told


PAYLOADS = (
    Declare, Begin, Secret, Points, Raised, Places, Done, Trouble, Own, Invalid, Match, Matched, Aligned,
)  # fmt: skip
