"""Messages of an alignment: numbers of ids, raised points, places, and one secret among the members.

No message holds an id or a hash of an id: a point leaves its owner raised to the owner's secret exponent.
"""

from colonnade.protocol.messages import Array, Message, Payload

__all__ = [
    "PAYLOADS",
    "Aligned",
    "BeginAlignment",
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
    """Party → server: the number of ids that this party brings."""

    count: int


class BeginAlignment(Message, frozen=True):
    """Server → parties: all members are here, in the order of the ring, with the number of ids of each."""

    members: tuple[str, ...]
    counts: tuple[int, ...]


class Secret(Message, frozen=True):
    """First member → every other one, sealed: the seed of the common order."""

    seed: bytes


class Points(Message, frozen=True):
    """Member → next member of the ring, the last one → server: ids of `owner`, raised by `hops` members."""

    owner: str
    hops: int
    start: int
    last: bool
    points: Array  # uint8 (points, 32)


class Raised(Message, frozen=True):
    """Party → server: the number of points that this party has raised so far, to show progress."""

    points: int


class Places(Message, frozen=True):
    """Server → owner (of the server's own ids: back around the ring): which of its points are in common."""

    owner: str
    size: int  # number of points in common
    start: int
    last: bool
    places: Array  # int32 (points,): the place among the common points; -1: not in common


Mail = Points | Places | Secret  # messages between members


class Done(Message, frozen=True):
    """Party → server: my order is written, and this is its digest."""

    sha256: str


class Trouble(Message, frozen=True):
    """Party → server: this member broke the rules. The server then ends the alignment for all."""

    member: str
    cause: str


# Jobs, results, records


class Own(Payload, frozen=True):
    """Job: hash and raise own ids start..stop. The result is Points. (For others' ids, Points is also the job.)"""

    start: int
    stop: int


class Invalid(Payload, frozen=True):
    """Result: a point of the job is not one."""

    owner: str
    hops: int


class Match(Payload, frozen=True):
    """Job: find the points that enough sets have in common."""


class Matched(Payload, frozen=True):
    """Result: the place of every point of every set; or the member that has a point twice."""

    size: int
    places: list[Array]
    presence: Array  # bool (size, members)
    repeats: str = ""


class Aligned(Payload, frozen=True):
    """A member's result."""

    rows: Array  # int64 (in common,): row of each common id in the member's own file; -1: not in this file
    sha256: str
    presence: Array | None = None  # bool (in common, members); only the server gets it


PAYLOADS = (
    Declare, BeginAlignment, Secret, Points, Raised, Places, Done, Trouble, Own, Invalid, Match, Matched, Aligned,
)  # fmt: skip
