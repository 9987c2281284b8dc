"""The server's own side of a training: its labels, the plan that all members agree on, its role and its folder.

A training runs the role. Predictions read the state that the training left.
"""

import secrets
from pathlib import Path
from typing import Any

import msgspec

from colonnade.algorithms.method import SERVER
from colonnade.config.continuing import member_of_server
from colonnade.config.resolve import make_plan, method_of, parties_of
from colonnade.config.schema import Config, from_dict, read_toml
from colonnade.config.settle import settled
from colonnade.config.shared import SHARED_NETWORK
from colonnade.data import ServerShare, load_server_share, read_server_share, share_without_labels
from colonnade.deployment.own_side import SHARE, OwnSide, alignment_of, continuation_of, limits_of, refuse_joint
from colonnade.deployment.terms import Terms, shared_part
from colonnade.drivers.files import replace_file
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.node import Keeper, Node
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.role import Scaling, Trained
from colonnade.results.folder import RunFolder
from colonnade.results.trained import write_models

__all__ = ["ServerSide", "load_share"]


class ServerSide(OwnSide):
    """Made before anything runs; raises ConfigError for every mistake that a config can contain."""

    def __init__(self, config: Config, out: Path, log: Log, continues: Path | None = None) -> None:
        super().__init__(config, out, log)
        self.before = before = continuation_of(out, continues, SERVER)
        self.share = share = load_share(config)
        self.parties = parties = parties_of(config)
        self.config = config = settled(config, len(share.y_train), share.validation)
        self.plan = make_plan(config, parties, len(share.y_train), share.task, share.validation)
        refuse_joint(self.plan)
        if share.absent is not None:
            self.plan.refuse_lacking()
            lacking = (share.absent[0].sum(0) + share.absent[1].sum(0)).tolist()
            who = ", ".join(f"{name} {count}" for name, count in zip(parties, lacking, strict=True) if count)
            log.info("some parties lack rows", rows=share.rows, lacking=who)
        assert self.plan.method.server is not None
        setup = self.plan.server(share.task, share.y_train, share.y_test, share.absent)
        self.setup = setup if before is None else before.server(setup)
        self.role = self.plan.method.server(self.setup)
        self.shared = shared_part(config, self.authority)

    def make_node(self, keeper: Keeper | None = None) -> Node:
        """A node that keeps the role's state in this folder."""
        payloads, limits = self.plan.method.payloads, limits_of(self.config)
        return Node(self.role, payloads, self.out / "state", self.parties, limits, self.log, keeper)

    def read(self) -> bool:
        """Load the state that the training left, without writing; returns whether a training has ended here."""
        node = self.make_node()
        return node.read() and node.finished != ""

    def terms(self, shared: dict[str, Any]) -> Terms:
        """What a party's HELLO must contain, besides the shared part."""
        widths = dict(zip(self.parties, self.plan.widths, strict=True))
        return Terms(shared, self.share.rows, self.share.ids_sha256, widths, self.before)

    def folder(self) -> RunFolder:
        """A new run folder, or the one of the run that continues."""
        return self.reopened() or RunFolder.create(self.out, self.config, self.before)

    def reopened(self) -> RunFolder | None:
        """The folder of an earlier run; None if there is none.

        Only addresses, paths and own limits in `[network]`, and `[predict]`, may have changed since. Another change
        raises CheckpointError.
        """
        if not (self.out / "config.toml").is_file():
            return None
        before, now = from_dict(read_toml(self.out / "config.toml")), self.config.network
        own = {key: getattr(before.network, key) for key in now.__struct_fields__ if key not in SHARED_NETWORK}
        network = msgspec.structs.replace(now, **own)
        return RunFolder.reopen(
            self.out, msgspec.structs.replace(self.config, network=network, predict=before.predict)
        )  # fmt: skip

    def write_model(self, away: tuple[str, ...]) -> None:
        """Write the trained network, for later runs; `away` are the parties that are not here at the end."""
        role, method = self.role, self.plan.method.name
        tensors = role.trained()[SERVER] if isinstance(role, Trained) else {}
        scale = role.target_scale() if isinstance(role, Scaling) else (0.0, 1.0)
        write_models(self.out, self.run_id(), [member_of_server(self.setup, method, tensors, scale, away)])

    def run_id(self) -> str:
        """An id that is unique to this run. A server that continues the run keeps it."""
        path = self.out / "run_id"
        if not path.is_file():
            replace_file(path, [secrets.token_hex(16).encode()], 0o600)
        return path.read_text(encoding="ascii")


def load_share(config: Config) -> ServerShare:
    """The labels. If the parties have the labels, only the number of rows."""
    server, (method, options) = config.server, method_of(config.protocol)
    if method.capabilities.party_labels and server.data is None:
        if server.rows is None:
            advice = f"{method.name}: the parties have the labels; give the number of rows of their tables"
            raise ConfigError("server.rows", None, advice)
        assert options.task is not None  # the method defines what its parties predict
        return share_without_labels(server.rows, options.task, config.data.rows(server.test_rows))
    if server.data is None:
        raise ConfigError("server.data", None, "name the file with the labels")
    if server.data.endswith(SHARE):
        return load_server_share(Path(server.data))
    return read_server_share(
        Path(server.data),
        label=server.label,
        id=server.id,
        aligned=alignment_of(server.aligned, SERVER, "server"),
        parties=parties_of(config),
        by=config.data.rows(),
        format=server.format,
        dialect=server.dialect,
    )
