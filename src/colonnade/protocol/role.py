"""A role: a state machine that does no I/O.

`handle` is short, changes state and returns effects. `compute` is pure: it reads the role's parameters and
the job, changes nothing that `save` would show, and may run on another thread while `handle` goes on.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol, TypedDict, runtime_checkable

from colonnade.protocol.events import Effect, Event
from colonnade.protocol.messages import Array, Payload
from colonnade.protocol.ports import Releases, Storage

__all__ = [
    "EVALUATION",
    "SERVER",
    "Coordinating",
    "Counts",
    "Embedding",
    "Histogram",
    "PrivacySpent",
    "Releasing",
    "Role",
    "RoleSummary",
    "StalenessSummary",
    "Storing",
]

SERVER: Final = "server"  # the name of the role that all others know
EVALUATION = "evaluate"  # the kind of a job that belongs to evaluation: no time, no trace


class StalenessSummary(TypedDict):
    """Ages of the embeddings that the role used, in updates, over the whole run."""

    mean: float
    p95: float
    max: float


class Histogram(TypedDict):
    """How often embeddings of each age were used."""

    width: int  # updates in a bin
    counts: list[int]


class PrivacySpent(TypedDict):
    """A party's account: by Gaussian differential privacy, and by the claim of the method's paper."""

    mu: float
    epsilon: float
    delta: float
    releases: int
    rows: int  # released, each as often as it was
    by_kind: dict[str, int]  # releases
    claim_mu: float
    claim_epsilon: float


class RoleSummary(TypedDict, total=False):
    """What a role says of a run. A role leaves out what does not apply to it; counts are of the whole run.

    The driver writes the numbers and texts of a party, under these names, to the party's summary.json.
    """

    weights: str  # the digest of its weights; "": it has none
    # Of the role that coordinates:
    updates: int
    epochs: float
    waits_for: list[str]  # the parties that the next step needs
    note: str  # for people; "": nothing to say
    warnings: list[str]  # why the numbers may be no result
    method: dict[str, object]  # plain values that only this method has
    staleness: StalenessSummary
    staleness_counts: Histogram
    fresh_rows: int  # asked for again because of the bound on staleness
    withdrawn: dict[str, str]  # the parties that withdrew, and why
    # Of a party:
    steps: int  # of its own model
    privacy: PrivacySpent | None  # None: nothing is accounted
    dropped: int  # messages and results of another step
    skipped: int  # steps left out to catch up with the others
    late: int  # rounds that ended before its first step
    left_out: int  # rounds whose sum went on without its term
    left: str  # why it left the training; "": it has not
    answers: int  # terms that it gave for the sums of others
    abandoned: int  # own sums that came to nothing
    held_back: int  # questions that it could not answer at once
    moves: int  # extra steps, made so that it may give its term again
    clipped: int  # weights cut to ±W_max, in all steps
    test_clipped: int  # values of test rows outside the range of the code
    unfinished: int  # sums that it stopped computing because the round was over
    declined: int  # sums that it may not or cannot compute
    # Of a member of an alignment:
    ids: int | dict[str, int]  # a party: of its own table; the server: of each table
    common: int  # rows of the alignment
    have: dict[str, int]  # how many of them each table has
    # Of a role that predicts, and of an attacker:
    jobs: int  # computed
    asked: int  # questions sent


class Role(Protocol):
    """What a driver knows of a server or a party."""

    name: str

    def handle(self, event: Event, now: int) -> Sequence[Effect]:
        """Take one event and say what is to be done; if it raises RemoteProtocolError, nothing has changed."""

    def compute(self, job: Payload) -> Payload:
        """Do a job that `handle` asked for."""

    def save(self) -> Any:
        """The whole state as plain values and arrays (see `protocol.state`)."""

    def load(self, state: Any) -> None:
        """Become what `save` described; caches start empty."""

    def validate(self) -> None:
        """Raise LocalProtocolError if an invariant of the state does not hold."""

    def summary(self) -> RoleSummary:
        """What the role can say of the run when it is over."""


class Counts(Protocol):
    """How far a run is."""

    k: int  # updates of the global model
    rows: int  # party-rows processed

    @property
    def epochs(self) -> float:
        """An epoch is N·M party-rows."""


class Coordinating(Role, Protocol):
    """The role that counts, evaluates and ends the run: all that drivers ask of it."""

    @property
    def progress(self) -> Counts:
        """How far the run is."""

    def waits_for(self) -> list[str]:
        """The parties that the next step still needs: for people."""


class Embedding(Role, Protocol):
    """A party that gives embeddings of rows that are not its own training or test rows: predictions."""

    def embed(self, x: Array, rows: Array, number: int) -> Array | None:
        """These rows of x, as the server would see them, at the method's own level of privacy.

        A release that is accounted is entered under this number; None: the budget has no room for it.
        """


@runtime_checkable
class Storing(Role, Protocol):
    """A role with tables too large for a checkpoint: `save` then says where in its tables it stands."""

    def open(self, storage: Storage) -> None:
        """Use these tables from now on. The driver calls this before `load` and before any event."""

    def kept(self, state: Any) -> None:
        """The driver has written what `save` gave to the disk, and needs no older state any more."""


@runtime_checkable
class Releasing(Role, Protocol):
    """A party whose uploads may be perturbed and accounted."""

    @property
    def guard(self) -> Releases:
        """What stands between its network and the wire."""
