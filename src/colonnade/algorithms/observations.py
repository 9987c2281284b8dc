"""What an attacker sees of a method, as the method's package describes it.

An attack knows no method. It asks `Method.observations` which rows a step is about, what an upload and an answer show,
how to write an upload, and what the server learns from its own jobs. docs/attacks.md has an example.

    attacker                         uses
    a party that makes up uploads    `walk`, `asking`, `pen`, `answer`, `experiment`
    an eavesdropper on a wire        `walk`, `upload`, `answer`
    a curious server                 `walk`, `upload`, `sums`
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from colonnade.algorithms.batches import Rows, walk_of
from colonnade.algorithms.training import Training
from colonnade.protocol.messages import Array, Message, Payload
from colonnade.protocol.role import Role

__all__ = [
    "CODED",
    "GRADIENTS",
    "LOSSES",
    "Answer",
    "Answers",
    "Asking",
    "Batches",
    "Experiment",
    "Observations",
    "Pen",
    "Seen",
    "Summing",
    "Upload",
    "shared_walk",
]

Answers = Literal["losses", "gradients", "gradients of coded sums"]
LOSSES: Answers = "losses"
GRADIENTS: Answers = "gradients"
CODED: Answers = "gradients of coded sums"  # uploads are secret shares: an attacker can only comply and read

O_contra = TypeVar("O_contra", contravariant=True)  # the method's options


class Batches(Protocol):
    """The rows of a party's steps; a `Walk` is one."""

    @property
    def per_epoch(self) -> int:
        """How many steps visit every row once."""

    def batch(self, position: int, /) -> Rows:
        """Return the rows of step `position`, counted from 0 through all epochs."""


@dataclass(frozen=True, slots=True)
class Upload:
    """One party's embeddings of some rows, as the server receives them."""

    step: int
    rows: Rows
    values: Array  # (rows, width) float32
    perturbed: Array | None = None  # (directions, batch, width) float32, for methods that answer with losses
    renewed: int = 0  # this many rows at the end are outside the batch: no answer is about them

    @property
    def batch(self) -> int:
        """How many rows the answer is about: the first ones of `rows`."""
        return len(self.rows) - self.renewed


class Answer(NamedTuple):
    """What the server's message says about a step."""

    step: int
    values: Array | None  # a gradient (rows, width), or losses; None: the answer has no values, the party continues
    following: int  # the step that the party continues with


class Seen(NamedTuple):
    """One vector of values for each of these rows."""

    rows: Array
    values: Array  # (rows, width)


class Pen:
    """Writes a method's messages for a party that makes up its embeddings. Every attacker has its own pen."""

    def upload(self, upload: Upload, now: int) -> Message:
        """Return the message that uploads a batch; `now` is in nanoseconds."""
        raise NotImplementedError

    def note(self, message: Message, now: int) -> None:
        """Note the server's newest answer, before the next upload is written."""

    def reply(self, message: Message, step: int, width: int) -> Message | None:
        """Return what the party must send for this message so that the server continues with it; None: nothing."""
        return None


@dataclass(frozen=True, slots=True)
class Asking:
    """What the server accepts as a question, and how many numbers it answers."""

    coordinated: bool = True  # all parties must upload the same rows
    min_batch: int = 1  # the server answers no smaller batch
    directions: int = 0  # perturbed uploads with each batch, if the server answers with losses
    smoothing: float = 0.0  # the size of the perturbation


@dataclass(frozen=True, slots=True)
class Summing:
    """Default model of the label inference attack: the server sums or averages embeddings and has no layers."""

    aggregate: Literal["sum", "mean"] = "sum"
    party: str = "linear"
    parties: int = 2


@dataclass(frozen=True)
class Experiment(Generic[O_contra]):
    """Makes the method's server answer as it would not answer a user, to measure what its rules protect."""

    options: Callable[[O_contra], object]  # the options of the attacked server
    switch: Callable[[Role, bool, bool], None]  # (server, rules, per_sample): keep the rules? send a loss per row?
    told: Callable[[Message], Message]  # what every other party receives: the message without the experiment


def shared_walk(training: Training, options: object, index: int) -> Batches:
    """Return the walk that all parties share."""
    return walk_of(training, None)


def _asking(options: object) -> Asking:
    return Asking()


def _check(options: object) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Observations(Generic[O_contra]):
    """What the messages of a method show; `Method.observations`.

    `answer` reads the server's answers. Every other message must be of a type in `silent`, or the attack refuses it.
    So the attack never mistakes an answer that it cannot read for one that says nothing.
    """

    answers: Answers
    answer: Callable[[Message], Answer | None]
    silent: tuple[type[Message], ...]  # messages between party and server that answer no upload
    upload: Callable[[Message, Batches], Upload | None] | None = None  # None: uploads show nothing, not even rows
    pen: Callable[[], Pen] | None = None  # None: no party can make up an upload
    walk: Callable[[Training, O_contra, int], Batches] = shared_walk  # the batches of party number int
    asking: Callable[[O_contra], Asking] = _asking
    check: Callable[[O_contra], None] = _check  # raises ConfigError if an attack can infer nothing with these options
    summing: Summing = Summing()
    experiment: Experiment[O_contra] | None = None
    # (training, options, number of parties) → reader of what a job of the server shows of all parties together.
    sums: Callable[[Training, O_contra, int], Callable[[Payload], Seen | None]] | None = None
