"""A role: a state machine that does no I/O.

`handle` is short, changes state and returns effects. `compute` is pure: it reads the role's parameters and the job, and
changes nothing that `save` would show. It may run on another thread while `handle` continues.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol, TypedDict, runtime_checkable

from colonnade.protocol.events import Effect, Event
from colonnade.protocol.messages import Array, Payload
from colonnade.protocol.ports import Releases, Storage

__all__ = [
    "EVALUATION",
    "SERVER",
    "WITHHELD",
    "Coordinating",
    "Counts",
    "Embedding",
    "Following",
    "Histogram",
    "PrivacySpent",
    "Releasing",
    "Role",
    "RoleSummary",
    "Scaling",
    "StalenessSummary",
    "Storing",
    "Trained",
]

SERVER: Final = "server"  # the name of the role that all other roles know
WITHHELD: Final = -2  # the row of an id that a party has and does not answer for
EVALUATION = "evaluate"  # the kind of an evaluation job: it takes no time and is not in the trace


class StalenessSummary(TypedDict):
    """Staleness of the embeddings that the role used, in updates, over the whole run."""

    mean: float
    p95: float
    max: float


class Histogram(TypedDict):
    """How often embeddings of each staleness were used."""

    width: int  # updates in a bin
    counts: list[int]


class PrivacySpent(TypedDict):
    """A party's account: by Gaussian differential privacy, and by the claim of the method's paper."""

    mu: float
    epsilon: float
    delta: float
    releases: int
    rows: int  # released rows, each counted every time
    by_kind: dict[str, int]  # number of releases
    claim_mu: float
    claim_epsilon: float


class RoleSummary(TypedDict, total=False):
    """A role's summary of a run. A role leaves out the keys that do not apply; counts cover the whole run.

    The driver writes a party's numbers and texts, under these names, to the party's summary.json.
    """

    weights: str  # the digest of its weights; "": it has none
    # For the role that coordinates:
    updates: int
    epochs: float
    waits_for: list[str]  # the parties that the next step needs
    note: str  # for the reader; "": nothing to say
    warnings: list[str]  # reasons why the numbers may not be a valid result
    method: dict[str, object]  # plain values that only this method has
    staleness: StalenessSummary
    staleness_counts: Histogram
    fresh_rows: int  # asked for again because of the bound on staleness
    withdrawn: dict[str, str]  # the parties that withdrew, and why
    # For a party:
    steps: int  # of its own model
    privacy: PrivacySpent | None  # None: nothing is accounted
    dropped: int  # messages and results of another step
    skipped: int  # steps left out to catch up with the others
    late: int  # rounds that ended before its first step
    left_out: int  # rounds whose sum went on without its term
    left: str  # why it left the training; "": it did not leave
    answers: int  # terms that it gave for sums of other parties
    abandoned: int  # its own sums that were never completed
    held_back: int  # questions that it could not answer at once
    moves: int  # extra steps, made so that it may give its term again
    clipped: int  # weights cut to ±W_max, in all steps
    test_clipped: int  # values of test rows outside the range of the code
    unfinished: int  # sums that it stopped computing because the round was over
    declined: int  # sums that it may not or cannot compute
    # For a member of an alignment:
    ids: int | dict[str, int]  # for a party: of its own table; for the server: of each table
    common: int  # rows of the alignment
    have: dict[str, int]  # how many of the common rows each table has
    # For a role that predicts, and for an attacker:
    jobs: int  # computed
    asked: int  # questions sent


class Role(Protocol):
    """The interface of a server or a party to its driver."""

    name: str

    def handle(self, event: Event, now: int) -> Sequence[Effect]:
        """Take one event and return the effects; if it raises RemoteProtocolError, the state has not changed."""

    def compute(self, job: Payload) -> Payload:
        """Do a job that `handle` asked for; changes no saved state."""

    def save(self) -> Any:
        """The whole state as plain values and arrays (see `protocol.state`)."""

    def load(self, state: Any) -> None:
        """Restore the state that `save` returned; caches start empty."""

    def validate(self) -> None:
        """Raise LocalProtocolError if an invariant of the state does not hold."""

    def summary(self) -> RoleSummary:
        """The role's summary when the run is over."""


class Counts(Protocol):
    """Progress of a run."""

    k: int  # updates of the global model
    rows: int  # party-rows processed

    @property
    def epochs(self) -> float:
        """Epochs so far; one epoch is N·M party-rows."""


class Coordinating(Role, Protocol):
    """The role that counts, evaluates and ends the run: everything that drivers ask of it."""

    @property
    def progress(self) -> Counts:
        """The run's progress."""

    def waits_for(self) -> list[str]:
        """The parties that the next step still needs, for people to read."""

    def owes(self) -> dict[str, str]:
        """What each party owes that the run waits for, in words. The words change whenever the party makes progress."""


@runtime_checkable
class Following(Role, Protocol):
    """A party that knows the newest update of the global model it has heard of."""

    @property
    def k(self) -> int:
        """The number of that update."""


class Embedding(Role, Protocol):
    """A party that embeds rows outside its own training and test rows, for predictions."""

    def embed(self, x: Array, rows: Array, number: int) -> Array | None:
        """The embeddings of these rows of x, as the server would see them, at the method's own level of privacy.

        The ledger counts an accounted release under `number`. Returns None if the budget has no room for it.
        """


@runtime_checkable
class Storing(Role, Protocol):
    """A role with tables too large for a checkpoint; `save` then includes its position in the tables."""

    def open(self, storage: Storage) -> None:
        """Use these tables from now on. The driver calls this before `load` and before any event."""

    def checkpointed(self, state: Any) -> None:
        """The driver has written the result of `save` to the disk, and no longer needs an older state."""


@runtime_checkable
class Trained(Role, Protocol):
    """A role with weights from which a later run can start."""

    def trained(self) -> dict[str, dict[str, Array]]:
        """Copies of the arrays that evaluation reads, by member and by name. Only an oracle has several members'."""


@runtime_checkable
class Scaling(Role, Protocol):
    """A server that trains on standardised targets."""

    def target_scale(self) -> tuple[float, float]:
        """The mean and the spread of the targets; (0, 1) for classes."""


@runtime_checkable
class Releasing(Role, Protocol):
    """A party whose uploads may be perturbed and accounted."""

    @property
    def guard(self) -> Releases:
        """The guard between the party's network and the wire."""
