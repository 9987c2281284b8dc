"""What a method is to the rest of Colonnade: its name, its paper, its options, and how its roles are made.

A server is made from labels and the parties' widths, a party from its own columns: neither ever sees the
other's data, whether they live in one simulator or in two organisations.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from colonnade.algorithms.table_file import Tables
from colonnade.algorithms.training import Training
from colonnade.data import Task
from colonnade.models import Factory
from colonnade.privacy.accountant import THEOREM_6
from colonnade.privacy.guard import Guard
from colonnade.privacy.settings import Budget, PrivacySettings
from colonnade.protocol.messages import Array, Payload
from colonnade.protocol.role import SERVER, Coordinating, Role

__all__ = ["SERVER", "Method", "Options", "PartySetup", "ServerSetup", "Top"]


@dataclass(frozen=True, slots=True)
class Top:
    """The server's half as far as all agree upon it: enough to build it, without its parameters."""

    model: Factory
    aggregate: str
    widths: tuple[int, ...]


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A method's own fields of `[protocol]`; subclasses check themselves in `check`."""

    @property
    def reveals(self) -> str:
        """What whom learns with this very choice, where that depends on it; else what the method says."""
        return ""

    @property
    def mechanism(self) -> PrivacySettings | None:
        """Of a method that perturbs by itself; None: `[privacy]` says."""
        return None

    @property
    def claim(self) -> str:
        """By which name the summary tells what the paper counts, beside the account."""
        return THEOREM_6

    def check(self, parties: int) -> None:
        """Raise ConfigError for a combination that cannot work."""


@dataclass(frozen=True, slots=True)
class ServerSetup:
    """What a server is made from."""

    options: Any
    training: Training
    parties: tuple[str, ...]
    widths: tuple[int, ...]  # of the parties' embeddings
    model: Factory
    aggregate: str
    task: Task
    y_train: Array
    y_test: Array
    device: str = "cpu"  # of its network
    absent: tuple[Array, Array] | None = None  # bool (rows, parties): who lacks which row to train, to test on
    tables: Tables = field(default_factory=Tables)


@dataclass(frozen=True, slots=True)
class PartySetup:
    """What a party is made from."""

    options: Any
    training: Training
    name: str
    index: int
    parties: int
    width: int
    model: Factory
    train: Any  # (rows, columns); scipy CSR for methods that are `sparse`
    test: Any
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


@dataclass(frozen=True)
class Method:
    """One entry of `colonnade protocols`."""

    name: str
    paper: str
    summary: str
    reveals: str  # what whom learns beyond the trained model
    options: type[Options]
    payloads: tuple[type[Payload], ...]
    server: Callable[[ServerSetup], Coordinating] | None
    party: Callable[[PartySetup], Role] | None
    joint: Callable[[ServerSetup, list[PartySetup]], Role] | None = None  # an oracle that sees everything
    scale: str | None = None  # of the data, unless the config says otherwise; None: the dataset's own
    check: Callable[[ServerSetup, Sequence[PartySetup]], tuple[str, ...]] | None = None  # refuses; or notes for people
    party_labels: bool = False  # the labels are with every party, and not with the server
    sparse: bool = False  # takes blocks in CSR
    peers: bool = False  # parties talk to each other, and are told of each other's coming and going
    party_dropout: bool = False  # its server can learn to do without a party
    local_updates: tuple[str, ...] = ()  # which of `privacy.local_updates` its parties have; none: no mechanism at all
    lacking: bool = False  # and to train on rows that some parties lack (align.min_parties)
