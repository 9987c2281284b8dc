"""A party's own side of a training: its columns, the plan that all members agree on, its role and its folder.

A training runs the role. Predictions read the state that the training left.
"""

import json
import threading
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from colonnade import __version__
from colonnade.algorithms.method import SERVER, PartySetup
from colonnade.config.continuing import member_of_party, used
from colonnade.config.resolve import (
    Plan,
    find_optimiser,
    make_plan,
    parties_of,
    refuse_dropped,
    refuse_fitted,
    scale_of,
)
from colonnade.config.schema import Config, difference
from colonnade.config.settle import auto_rate, settled
from colonnade.data import Fitted, PartyShare, load_party_share, read_party_share
from colonnade.deployment.own_side import SHARE, OwnSide, alignment_of, continuation_of, limits_of, refuse_joint
from colonnade.deployment.terms import CONTINUES, DTYPE, shared_difference, shared_part
from colonnade.drivers.files import replace_file
from colonnade.drivers.ledger_file import LedgerFile
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.node import Keeper, Node
from colonnade.drivers.processes.wire import OLDEST_OFFER, Hello, Position
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.role import Releasing, Role, Trained
from colonnade.results.trained import keep_continuation, write_models

__all__ = ["PartySide", "features_digest", "load_share", "plan_and_role"]

MOST_DIGESTED = 100_000  # rows; of a larger table only blocks are digested
DIGESTED_BLOCKS, DIGESTED_ROWS = 64, 64


class PartySide(OwnSide):
    """Made before anything runs; raises ConfigError for every mistake that a config can contain."""

    def __init__(self, config: Config, name: str, out: Path, log: Log, continues: Path | None = None) -> None:
        self.name, self.parties = name, parties_of(config)
        if name not in self.parties:
            raise ConfigError("--party", name, f"network.parties has {', '.join(self.parties)}")
        super().__init__(config, out, log)
        if self.identity.name != name:
            raise ConfigError(
                "network.certificate",
                config.network.certificate,
                f"is the certificate of {self.identity.name}, not of {name}",
            )
        self.before = continuation_of(out, continues, name)
        self.continues = continues
        self.share = share = load_share(config, name, used(self.before).get(name))
        self.plan, setup = _plan_and_setup(config, name, share)
        self.setup = self._continued(setup)
        assert self.plan.method.party is not None
        self.role = self.plan.method.party(self.setup)
        self.guard = self.role.guard if isinstance(self.role, Releasing) else None
        self.width = self.plan.widths[self.parties.index(name)]
        self.shared = shared_part(settled(config, len(share.train), share.validation), self.authority)
        for note in self.plan.privacy.notes(len(share.train)):
            log.warning(note)

    def _continued(self, setup: PartySetup[Any]) -> PartySetup[Any]:
        """The setup with the party's earlier weights, if it continues a run."""
        share, before, config = self.share, self.before, self.config
        if before is None:
            refuse_dropped(config)
            return setup
        before.check_dropped(config.party.drop_columns, [self.name])
        if share.fitted is not None:
            refuse_fitted(config, share.fitted.scaler.fitted, "party.scale", config.party.scale)
        return before.party(setup, share.fitted, config.party.drop_columns)

    def write_model(self) -> None:
        """Write the trained network, for later runs; not if the server has only said that the run is over."""
        path = self.out / "state" / "run_id"
        if isinstance(self.role, Trained) and path.is_file():
            run, tensors = path.read_text(encoding="ascii"), self.role.trained()[self.name]
            write_models(
                self.out, run, [member_of_party(self.setup, self.plan.method.name, tensors, self.share.fitted)]
            )

    @property
    def others(self) -> list[str]:
        """The other parties, if the method's parties talk to each other; else none."""
        return [name for name in self.parties if name != self.name] if self.plan.method.capabilities.peers else []

    def make_node(self, keeper: Keeper | None = None) -> Node:
        """A node that keeps the role's state in this folder."""
        payloads, limits = self.plan.method.payloads, limits_of(self.config)
        return Node(self.role, payloads, self.out / "state", (SERVER,), limits, self.log, keeper, far=self.others)

    def read(self) -> None:
        """Load the state that the training left, without writing."""
        self.make_node().read()

    def open_ledger(self) -> None:
        """Open the ledger with the releases of earlier starts, which count."""
        if self.guard is not None and not self.guard.is_kept:
            self.guard.keep(LedgerFile(self.out / "ledger.jsonl", threading.Lock()))

    def close_ledger(self) -> None:
        """Close the ledger, so that another process can write it."""
        if self.guard is not None:
            self.guard.close()

    def hello(self, shared: dict[str, Any], instance: int, position: Position) -> Hello:
        """The party's HELLO."""
        share = self.share
        return Hello(
            OLDEST_OFFER, __version__, shared, share.rows, share.ids_sha256, self.width, DTYPE, instance, position
        )

    def refuse_others_state(self) -> None:
        """Raise ConfigError if the state was made with another config or other data; else record both."""
        share = self.share
        made_with = {
            "shared": self.shared,
            "rows": share.rows,
            "ids": share.ids_sha256,
            "columns": share.train.shape[1],
            "features": features_digest(share),
            "optimiser": self.config.party.optimiser,
        }
        if self.before is not None:
            made_with[CONTINUES] = self.before.run
        made_with, path = json.loads(json.dumps(made_with)), self.out / "state" / "made_with.json"
        differs = _difference(json.loads(path.read_text(encoding="utf-8")), made_with) if path.is_file() else None
        if differs:
            advice = f"holds a run with other settings ({differs}); choose another --out, or remove the folder"
            raise ConfigError("--out", str(self.out), advice)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        keep_continuation(self.out, self.before)
        replace_file(path, [json.dumps(made_with).encode()], 0o600)

    def meet(self, run: str) -> None:
        """Raise ConfigError for another run id: a state that one server trained does not fit another server's model."""
        path = self.out / "state" / "run_id"
        before = path.read_text(encoding="ascii") if path.is_file() else run
        if before != run:
            advice = (
                "holds another run of this federation: choose another --out, remove the folder, or start the server "
                "of that run"
            )
            raise ConfigError("--out", str(self.out), advice)
        if not path.is_file():
            replace_file(path, [run.encode()], 0o600)


def _difference(there: dict[str, Any], here: dict[str, Any]) -> str | None:
    """The first difference between what two starts were made with; None if there is none."""
    if found := shared_difference(there["shared"], here["shared"]):
        return f"shared.{found}"
    return difference(there | {"shared": None}, here | {"shared": None})


def plan_and_role(config: Config, name: str, share: PartyShare) -> tuple[Plan, Role]:
    """What all members agree on, with this party's own settings, and its untrained role; raises ConfigError."""
    plan, setup = _plan_and_setup(config, name, share)
    assert plan.method.party is not None
    return plan, plan.method.party(setup)


def _plan_and_setup(config: Config, name: str, share: PartyShare) -> tuple[Plan, PartySetup[Any]]:
    task, parties = None if share.labels is None else share.labels[0], parties_of(config)
    plan = make_plan(config, parties, len(share.train), task, share.validation)
    plan = _with_own_settings(plan, config, name)
    refuse_joint(plan)
    if share.present is not None:
        plan.refuse_lacking()
    return plan, plan.party(parties.index(name), share.train, share.test, share.shape, share.labels)


def _with_own_settings(plan: Plan, config: Config, name: str) -> Plan:
    """The plan with this party's own optimiser and learning rate."""
    index, training = plan.parties.index(name), plan.training
    optimisers, rates, measured = list(training.party_optimisers), list(training.party_rates), training.measured
    if config.party.optimiser is not None:
        own, before = find_optimiser("party.optimiser", config.party.optimiser), optimisers[index]
        optimisers[index] = msgspec.structs.replace(own, max_norm=before.max_norm, precision=before.precision)
        if config.train.learning_rate == "auto":
            rates[index], measured = auto_rate(config.party.optimiser), False
    if config.party.learning_rate is not None:
        if not 0 <= config.party.learning_rate < float("inf"):
            raise ConfigError("party.learning_rate", config.party.learning_rate, "must be 0 or more")
        rates[index], measured = config.party.learning_rate, False
    training = replace(
        training, party_optimisers=tuple(optimisers), party_rates=tuple(rates), measured=measured
    )  # fmt: skip
    return replace(plan, training=training)


def load_share(config: Config, name: str, before: Fitted | None = None) -> PartyShare:
    party, data = config.party, config.data
    if party.data is None:
        raise ConfigError("party.data", None, "name the file with this party's columns")
    if party.data.endswith(SHARE):
        return load_party_share(Path(party.data))
    scale = scale_of(config) if party.scale is None else party.scale
    refuse_fitted(config, scale != "none", "party.scale", scale)  # left out: "standard"
    return read_party_share(
        Path(party.data),
        name=name,
        id=party.id,
        label=party.label,
        categorical=tuple(party.categorical),
        columns=party.columns,
        scale=scale,
        missing=party.missing,
        by=data.rows(),
        aligned=alignment_of(party.aligned, name, "party"),
        format=party.format,
        dialect=party.dialect,
        before=before,
    )


def features_digest(share: PartyShare) -> str:
    """A digest of the columns, because other numbers under the same ids are another table.

    Of a large table only some blocks between the first and the last row are digested. A table that differs only
    elsewhere has the same digest.
    """
    digest = sha256()
    for part in (share.train, share.test):
        if len(part) <= MOST_DIGESTED:
            digest.update(np.ascontiguousarray(part).data)
            continue
        digest.update(repr(part.shape).encode())
        for start in np.linspace(0, len(part) - DIGESTED_ROWS, DIGESTED_BLOCKS).astype(int).tolist():
            digest.update(np.ascontiguousarray(part[start : start + DIGESTED_ROWS]).data)
    return digest.hexdigest()
