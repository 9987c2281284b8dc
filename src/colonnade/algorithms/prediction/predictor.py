"""What a method defines for its predictions: the roles that answer questions, and prediction without messages.

A predicting role is made from a trained one. Only the method knows what the trained role may show.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from colonnade.data.task import Task
from colonnade.models.joint import Joint
from colonnade.protocol.messages import Array, Payload
from colonnade.protocol.quota import Bucket
from colonnade.protocol.role import Role

if TYPE_CHECKING:
    from colonnade.algorithms.method import Options

__all__ = ["PredictPartySetup", "PredictServerSetup", "PredictingServer", "Predictor", "RowsById", "TrainedRoles"]

O_co = TypeVar("O_co", bound="Options", covariant=True)
S_co = TypeVar("S_co", bound=Role, covariant=True)  # the trained server
P_co = TypeVar("P_co", bound=Role, covariant=True)  # a trained party
O_contra = TypeVar("O_contra", bound="Options", contravariant=True)
S_contra = TypeVar("S_contra", bound=Role, contravariant=True)
P_contra = TypeVar("P_contra", bound=Role, contravariant=True)


class RowsById(Protocol):
    """A party's rows by id, trained on or not."""

    @property
    def x(self) -> Array:
        """Features, float32 (rows, columns)."""

    def find(self, ids: Sequence[str]) -> Array:
        """Return the row of each id; negative if the party does not have it, or withholds it (`WITHHELD`)."""


@dataclass(frozen=True, slots=True)
class PredictServerSetup(Generic[O_co, S_co]):
    """Everything that a predicting server is made from."""

    options: O_co
    trained: S_co
    parties: tuple[str, ...]
    widths: tuple[int, ...]  # of the parties' embeddings
    task: Task
    deadline_s: float  # time for the parties' answers
    away: Sequence[str] = ("refuse",)  # what may replace a party's block, in this order: see `standing_in`
    cache_rows: int = 1
    min_parties: int = 1  # least number of parties whose own blocks a prediction needs
    taught: tuple[bool, ...] = ()  # for each party: whether training taught the server a fallback
    told: Mapping[str, Array] = field(default_factory=dict)  # mean embeddings that parties sent to an earlier process


@dataclass(frozen=True, slots=True)
class PredictPartySetup(Generic[O_co, P_co]):
    """Everything that a predicting party is made from."""

    options: O_co
    trained: P_co
    parties: tuple[str, ...]  # all parties
    table: RowsById
    width: int  # of its embeddings
    train: Array | None = None  # rows for the mean embedding; None: no mean is needed, or it would have to be accounted
    quota: tuple[Bucket, ...] = ()  # how many rows the party may be asked for


@dataclass(frozen=True, slots=True)
class TrainedRoles(Generic[O_co, S_co, P_co]):
    """All roles of a run that was trained in one process. A joint method has no parties."""

    options: O_co
    task: Task
    server: S_co
    parties: tuple[P_co, ...]


class PredictingServer(Role, Protocol):
    """A predicting server. It also takes the event `Asked`, and emits `Computed` for it."""

    def means(self) -> Mapping[str, Array]:
        """Return the vector that replaces each party that is away."""


class Predictor(Generic[O_contra, S_contra, P_contra]):
    """How a method predicts. A method that trains only in one place has no `server` and no `party`."""

    payloads: ClassVar[tuple[type[Payload], ...]] = ()  # messages and jobs of its predicting roles
    peers: ClassVar[bool] = False  # whether predicting parties talk to each other
    joint: ClassVar[bool] = False  # whether `networks` gives the networks of all roles

    def server(self, setup: PredictServerSetup[O_contra, S_contra]) -> PredictingServer:
        """Return the role that answers questions."""
        raise NotImplementedError

    def party(self, setup: PredictPartySetup[O_contra, P_contra]) -> Role:
        """Return a role that the server asks; raise ConfigError if its answers would reveal too much."""
        raise NotImplementedError

    def in_one_place(
        self, roles: TrainedRoles[O_contra, S_contra, P_contra], blocks: Sequence[Array], number: int
    ) -> Array:
        """Return what the server would answer, class probabilities or values, for rows of which each party has a block.

        `number` determines the noise and must differ for any two questions.
        """
        raise NotImplementedError

    def networks(self, roles: TrainedRoles[O_contra, S_contra, P_contra]) -> Joint:
        """Return the networks of all roles, for diagnoses; raise ConfigError if one of them has no gradient."""
        raise NotImplementedError
