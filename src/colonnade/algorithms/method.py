"""What a method is to the rest of Colonnade: its name, its paper, its options, and how its roles are made.

A server is made from labels and the parties' widths, a party from its own columns: neither ever sees the
other's data, whether they live in one simulator or in two organisations.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import msgspec

from colonnade.algorithms.observations import Observations
from colonnade.algorithms.prediction.predictor import Predictor
from colonnade.algorithms.table_file import Tables
from colonnade.algorithms.training import Training
from colonnade.data.task import Task
from colonnade.models import Factory
from colonnade.privacy.accountant import THEOREM_6
from colonnade.privacy.guard import Guard
from colonnade.privacy.settings import Budget, PrivacySettings
from colonnade.protocol.messages import Array, Payload
from colonnade.protocol.role import SERVER, Coordinating, Role

__all__ = ["SERVER", "Capabilities", "Defaults", "Method", "Options", "PartySetup", "ServerSetup", "Top"]


@dataclass(frozen=True, slots=True)
class Top:
    """The server's half as far as all agree upon it: enough to build it, without its parameters."""

    model: Factory
    aggregate: str
    widths: tuple[int, ...]


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A method's own fields of `[protocol]`; subclasses check themselves in `check`."""

    average = False  # every network keeps an average of its weights, which evaluation and prediction use

    @property
    def reveals(self) -> str:
        """What whom learns with this very choice, where that depends on it; else what the method says."""
        return ""

    @property
    def exposes(self) -> str:
        """The same in a few words, as in exposure.py."""
        return ""

    @property
    def protects(self) -> str:
        """What a protection of the method's own does and does not do, in plain words; "": it has none."""
        return ""

    @property
    def mechanism(self) -> PrivacySettings | None:
        """Of a method that perturbs by itself; None: `[privacy]` says."""
        return None

    @property
    def claim(self) -> str:
        """By which name the summary tells what the paper counts, beside the account."""
        return THEOREM_6

    @property
    def shares_labels(self) -> bool:
        """Whether the server tells the parties the labels, so that they run its half, too."""
        return False

    def threshold(self, parties: int) -> int:
        """How many parties' batches one update takes: the number of planned updates follows from it."""
        return parties

    @property
    def task(self) -> Task | None:
        """What is predicted, where the options say it; None: the labels do."""
        return None

    def check(self, parties: int) -> None:
        """Raise ConfigError for a combination that cannot work."""


O = TypeVar("O", bound=Options)
O_co = TypeVar("O_co", bound=Options, covariant=True)  # a role that takes some options takes those derived from them


@dataclass(frozen=True, slots=True)
class ServerSetup(Generic[O_co]):
    """What a server is made from."""

    options: O_co
    training: Training
    parties: tuple[str, ...]
    widths: tuple[int, ...]  # of the parties' embeddings
    model: Factory
    aggregate: str
    task: Task
    y_train: Array
    y_test: Array  # of the rows held out: the first `training.validation` are to validate on
    device: str = "cpu"  # of its network
    absent: tuple[Array, Array] | None = (
        None  # bool (rows, parties): who lacks which row to train on, and which held out
    )
    tables: Tables = field(default_factory=Tables)


@dataclass(frozen=True, slots=True)
class PartySetup(Generic[O_co]):
    """What a party is made from."""

    options: O_co
    training: Training
    name: str
    index: int
    parties: int
    width: int
    model: Factory
    train: Any  # (rows, columns); scipy CSR for methods that are `sparse`
    test: Any  # the rows held out, in the order of `y_test`
    shape: tuple[int, ...]  # of one row: what the columns are to the model
    device: str = "cpu"  # of its network
    top: Top | None = None  # for methods whose parties run the server's half, too
    names: tuple[str, ...] = ()  # of all parties, for methods whose parties talk to each other
    task: Task | None = None  # and the labels, for methods with `party_labels`
    y_train: Array | None = None
    y_test: Array | None = None
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    budget: Budget | None = None  # the party's own

    def guard(self) -> Guard:
        """What stands between this party's network and the wire."""
        rows = self.train.shape[0], self.test.shape[0]
        return Guard(self.privacy, self.budget, self.name, *rows, self.options.claim)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a method can do, and what it needs."""

    party_labels: bool = False  # the labels are with every party, and not with the server
    sparse: bool = False  # takes blocks in CSR
    peers: bool = False  # parties talk to each other, and are told of each other's coming and going
    party_dropout: bool = False  # its server can learn to do without a party
    local_updates: tuple[str, ...] = ()  # which of `privacy.local_updates` its parties have; none: no mechanism at all
    lacking: bool = False  # it can train on rows that some parties lack (align.min_parties)
    party_models: tuple[str, ...] = ()  # the kinds of model.party that it can use, e.g. "polynomial"; none named: all
    aggregates: tuple[str, ...] = ()  # the values of model.aggregate that it can use; none named: all


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a method takes where the config says nothing; found on development data by benchmarks/defaults.py."""

    scale: str | None = None  # None: the dataset's own
    party: str | None = "mlp:64"  # None: the method has no networks
    embedding: int = 32
    server: str = "linear"
    aggregate: str = "concat"
    batch_size: int = 64  # at most; fewer where there are few rows
    optimiser: str | dict[str, Any] = "adam"
    # Of all, or of the server and the parties; "auto": the method measures how large its steps may be.
    learning_rate: float | tuple[float, float] | Literal["auto"] = 0.01
    epochs: float = 20.0
    evaluations: int = 40  # of a run of that length
    patience: int = 10  # evaluations without a better one, after which a run ends; 0: it goes on to its limit


@dataclass(frozen=True)
class Method(Generic[O]):
    """One entry of `colonnade protocols`."""

    name: str
    paper: str
    summary: str
    reveals: str  # what whom learns beyond the trained model
    options: type[O]
    payloads: tuple[type[Payload], ...]
    server: Callable[[ServerSetup[O]], Coordinating] | None
    party: Callable[[PartySetup[O]], Role] | None
    joint: Callable[[ServerSetup[O], list[PartySetup[O]]], Coordinating] | None = None  # an oracle that sees everything
    # Refuses what cannot work; or notes for the results.
    check: Callable[[ServerSetup[O], Sequence[PartySetup[O]]], tuple[str, ...]] | None = None
    predictor: Predictor[O, Any, Any] | None = None  # None: it cannot predict at its level of privacy
    capabilities: Capabilities = Capabilities()
    defaults: Defaults = Defaults()
    page: str = ""  # its description: a file of docs/methods, or an address
    exposes: str = ""  # what crosses, in a few words (exposure.py): methods with the same words are listed together
    observations: Observations[Any] | None = None  # what an attacker sees; None: `colonnade attack` refuses it
