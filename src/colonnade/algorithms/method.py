"""A method as the rest of Colonnade sees it: its name, paper and options, and how its roles are made.

A server is made from labels and the parties' widths, a party from its own columns. Neither role sees the other's data,
in one simulator or in two organisations.
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
from colonnade.models import Factory, Objective
from colonnade.privacy.accountant import THEOREM_6
from colonnade.privacy.guard import Guard
from colonnade.privacy.ledger import Earlier
from colonnade.privacy.settings import Budget, PrivacySettings
from colonnade.protocol.messages import Array, Payload
from colonnade.protocol.role import SERVER, Coordinating, Role

__all__ = [
    "OPTIONAL_KEYS",
    "SERVER",
    "Capabilities",
    "Defaults",
    "Method",
    "Options",
    "PartySetup",
    "ServerSetup",
    "Top",
]


@dataclass(frozen=True, slots=True)
class Top:
    """The server's half that all members agree on: enough to build it, without its weights."""

    model: Factory
    aggregate: str
    widths: tuple[int, ...]


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A method's own fields of `[protocol]`. Subclasses validate them in `check`."""

    average = False  # every network averages its weights; evaluation and prediction use the average

    @property
    def reveals(self) -> str:
        """What each role learns with these options; "" if `Method.reveals` holds for all options."""
        return ""

    @property
    def exposes(self) -> str:
        """What `reveals` says, in the few words of exposure.py; "" if `Method.exposes` holds."""
        return ""

    @property
    def protects(self) -> str:
        """What the method's own protection does and does not do, in plain words; "" if it has none."""
        return ""

    @property
    def mechanism(self) -> PrivacySettings | None:
        """The mechanism of a method that perturbs by itself; None if `[privacy]` sets it."""
        return None

    @property
    def claim(self) -> str:
        """The name under which the summary lists the paper's own privacy figure, next to the accountant's."""
        return THEOREM_6

    @property
    def shares_labels(self) -> bool:
        """Whether the server sends the labels to the parties, so that they run its half too."""
        return False

    def threshold(self, parties: int) -> int:
        """How many parties' batches one update takes. The number of planned updates depends on it."""
        return parties

    @property
    def task(self) -> Task | None:
        """What the method predicts, if the options define it; None if the labels do."""
        return None

    @property
    def estimates(self) -> bool:
        """Whether parties estimate their gradients from losses, so that `estimate` gives one."""
        return False

    def estimate(self, party: int, rise: Callable[[Array], float], dimension: int, seed: bytes) -> Array:
        """Return an estimate of a party's gradient, as the method makes it, for diagnoses.

        `rise(step)` is the loss at θ_m + step, less that at θ_m. The seed determines the directions.
        """
        raise NotImplementedError

    def check(self, parties: int) -> None:
        """Raise ConfigError for a combination of options that cannot work."""


O = TypeVar("O", bound=Options)
O_co = TypeVar("O_co", bound=Options, covariant=True)  # a role that takes some options takes derived ones too


@dataclass(frozen=True, slots=True)
class ServerSetup(Generic[O_co]):
    """Everything that a server is made from."""

    options: O_co
    training: Training
    parties: tuple[str, ...]
    widths: tuple[int, ...]  # of the parties' embeddings
    model: Factory
    aggregate: str
    task: Task
    y_train: Array
    y_test: Array  # labels of the held-out rows; the first `training.validation` of them are validation rows
    device: str = "cpu"  # of its network
    absent: tuple[Array, Array] | None = (
        None  # bool (rows, parties): which party lacks which training row, and which held-out row
    )
    tables: Tables = field(default_factory=Tables)
    target_scale: tuple[float, float] | None = None  # mean and spread of a regression's targets; None: of `y_train`

    def objective(self) -> Objective:
        """Return the loss that the config asks for."""
        return Objective(self.task, self.y_train, self.target_scale, self.training.loss)


@dataclass(frozen=True, slots=True)
class PartySetup(Generic[O_co]):
    """Everything that a party is made from."""

    options: O_co
    training: Training
    name: str
    index: int
    parties: int
    width: int
    model: Factory
    train: Any  # (rows, columns); scipy CSR for methods that are `sparse`
    test: Any  # the held-out rows, in the order of `y_test`
    shape: tuple[int, ...]  # shape of one row, as the model sees the columns
    device: str = "cpu"  # of its network
    top: Top | None = None  # for methods whose parties also run the server's half
    names: tuple[str, ...] = ()  # names of all parties, for methods whose parties talk to each other
    task: Task | None = None  # set, with the labels, for methods with `party_labels`
    y_train: Array | None = None
    y_test: Array | None = None
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    budget: Budget | None = None  # the party's own
    earlier: Earlier | None = None  # the account of the run that this one continues

    def guard(self) -> Guard:
        """Return the guard that checks everything that leaves this party's network."""
        rows = self.train.shape[0], self.test.shape[0]
        return Guard(self.privacy, self.budget, self.name, *rows, self.options.claim, self.earlier)


OPTIONAL_KEYS = ("loss", "sampling", "server_regulariser")  # of [train]: a method's roles must obey them themselves


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a method can do and what it needs."""

    party_labels: bool = False  # every party has the labels; the server has none
    sparse: bool = False  # takes blocks in CSR format
    peers: bool = False  # parties talk to each other, and the driver tells them when another party comes or goes
    party_dropout: bool = False  # its server can learn to do without a party
    local_updates: tuple[str, ...] = ()  # the `privacy.local_updates` of its parties; empty: no mechanism at all
    lacking: bool = False  # it can train on rows that some parties lack (align.min_parties)
    party_models: tuple[str, ...] = ()  # the kinds of model.party that it supports, e.g. "polynomial"; empty: all
    aggregates: tuple[str, ...] = ()  # the values of model.aggregate that it supports; empty: all
    train_keys: tuple[str, ...] = ()  # the keys of OPTIONAL_KEYS that its roles obey; the config may set no others


@dataclass(frozen=True, slots=True)
class Defaults:
    """A method's values for keys that the config leaves out; benchmarks/defaults.py found them on development data."""

    scale: str | None = None  # None: the dataset's own scale
    party: str | None = "mlp:64"  # None: the method has no networks
    embedding: int = 32
    server: str = "linear"
    aggregate: str = "concat"
    batch_size: int = 64  # upper limit; smaller for datasets with few rows
    optimiser: str | dict[str, Any] = "adam"
    # One rate, or (server, parties); "auto": the method measures how large its steps may be.
    learning_rate: float | tuple[float, float] | Literal["auto"] = 0.01
    epochs: float = 20.0
    evaluations: int = 40  # in a run of `epochs` epochs
    patience: int = 10  # a run ends after this many evaluations without improvement; 0: it runs to its limit


@dataclass(frozen=True)
class Method(Generic[O]):
    """One entry of `colonnade protocols`."""

    name: str
    paper: str
    summary: str
    reveals: str  # what each role learns beyond the trained model
    options: type[O]
    payloads: tuple[type[Payload], ...]
    server: Callable[[ServerSetup[O]], Coordinating] | None
    party: Callable[[PartySetup[O]], Role] | None
    joint: Callable[[ServerSetup[O], list[PartySetup[O]]], Coordinating] | None = None  # an oracle that sees all data
    # Raises ConfigError for what cannot work; returns notes for the results.
    check: Callable[[ServerSetup[O], Sequence[PartySetup[O]]], tuple[str, ...]] | None = None
    predictor: Predictor[O, Any, Any] | None = None  # None: the method cannot predict at its level of privacy
    capabilities: Capabilities = Capabilities()
    defaults: Defaults = Defaults()
    page: str = ""  # its description: a file of docs/methods, or a URL
    exposes: str = ""  # what crosses, in the words of exposure.py; methods with the same words are listed together
    observations: Observations[Any] | None = None  # what an attacker sees; None: `colonnade attack` refuses the method
