"""What an attacker sees of a method: the words in which a method's package says it.

An attack knows no method. It asks `Method.observations` which rows a step is about, what an upload and an answer show,
how to write an upload, and what the server learns from its own jobs. docs/attacks.md has an example.

    attacker                         uses
    a party that makes up uploads    `walk`, `asking`, `pen`, `answer`, `experiment`
    an ear on a party's wire         `walk`, `upload`, `answer`
    a curious server                 `walk`, `upload`, `sums`
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from colonnade.algorithms.batches import Rows, Walk
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
CODED: Answers = "gradients of coded sums"  # uploads are secret shares: an attacker follows the protocol and reads

O_contra = TypeVar("O_contra", contravariant=True)  # the method's options


class Batches(Protocol):
    """The rows of a party's steps; a `Walk` is one."""

    @property
    def per_epoch(self) -> int:
        """Steps that visit every row once."""

    def batch(self, position: int, /) -> Rows:
        """The rows of this step, counted from 0 through all epochs."""


@dataclass(frozen=True, slots=True)
class Upload:
    """What a party tells the server about some rows."""

    step: int
    rows: Rows
    values: Array  # (rows, width) float32
    perturbed: Array | None = None  # (directions, batch, width) float32, of methods that answer with losses
    renewed: int = 0  # the last so many rows are outside the batch: no answer is about them

    @property
    def batch(self) -> int:
        """How many rows the answer is about: the first ones."""
        return len(self.rows) - self.renewed


class Answer(NamedTuple):
    """What the server said about a step."""

    step: int
    values: Array | None  # a gradient (rows, width), or losses; None: nothing, go on
    following: int  # the step to go on with


class Seen(NamedTuple):
    """Values about these rows, one each."""

    rows: Array
    values: Array  # (rows, width)


class Pen:
    """Writes the method's messages for a party that makes up its embeddings; every attacker has a pen of its own."""

    def upload(self, upload: Upload, now: int) -> Message:
        """The message of a batch; `now` in nanoseconds."""
        raise NotImplementedError

    def note(self, message: Message, now: int) -> None:
        """The server's newest answer, before the next upload is written."""

    def reply(self, message: Message, step: int, width: int) -> Message | None:
        """What must be sent for this message so that the server goes on with this party; None: nothing."""
        return None


@dataclass(frozen=True, slots=True)
class Asking:
    """What the server takes as a question, and how many numbers it answers."""

    coordinated: bool = True  # all parties must upload the same rows
    min_batch: int = 1  # the fewest rows that are answered
    directions: int = 0  # perturbed uploads beside each, where losses are the answer
    smoothing: float = 0.0  # how far they are perturbed


@dataclass(frozen=True, slots=True)
class Summing:
    """Defaults of the model that label inference attacks: the server adds up, or averages, and has no layers."""

    aggregate: Literal["sum", "mean"] = "sum"
    party: str = "linear"
    parties: int = 2


@dataclass(frozen=True)
class Experiment(Generic[O_contra]):
    """How the method's server is made to answer as it would not for a user: what its rules are worth."""

    options: Callable[[O_contra], object]  # those that the server of the attack is made with
    switch: Callable[[Role, bool, bool], None]  # (server, rules, per_sample): keep the rules? tell a loss per row?
    told: Callable[[Message], Message]  # what every party but the attacker gets: as without the experiment


def shared_walk(training: Training, options: object, index: int) -> Batches:
    """One walk for all parties."""
    return Walk(training.rows, training.batch_size, training.seed, "batches")


def _asking(options: object) -> Asking:
    return Asking()


def _check(options: object) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Observations(Generic[O_contra]):
    """What the messages of a method show; `Method.observations`.

    `answer` reads the server's answers. A message that it does not read must be one of `silent`: the attack refuses any
    other, so that an answer that is not understood does not pass for one that tells nothing.
    """

    answers: Answers
    answer: Callable[[Message], Answer | None]
    silent: tuple[type[Message], ...]  # messages between party and server that answer no upload
    upload: Callable[[Message, Batches], Upload | None] | None = None  # None: uploads show nothing, not even their rows
    pen: Callable[[], Pen] | None = None  # None: no party can make up an upload
    walk: Callable[[Training, O_contra, int], Batches] = shared_walk  # of a party, by its number
    asking: Callable[[O_contra], Asking] = _asking
    check: Callable[[O_contra], None] = _check  # raises ConfigError if there is nothing to infer with these options
    summing: Summing = Summing()
    experiment: Experiment[O_contra] | None = None
    # (training, options, number of parties): what a job of the server shows of all parties together.
    sums: Callable[[Training, O_contra, int], Callable[[Payload], Seen | None]] | None = None
