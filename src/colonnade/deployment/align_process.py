"""The server and a party of an alignment, each in its own process: the same nodes, streams and seals as in training.

Nothing is kept for a later start: the secrets of an alignment live in memory only, and the folder's state, which holds
raised points, is removed at the end. A line that breaks is mended; who is killed makes all begin again.
"""

import json
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from colonnade import __version__
from colonnade.algorithms.alignment import (
    BULK,
    CHUNK,
    PAYLOADS,
    POINT_BYTES,
    Aligned,
    AligningParty,
    AligningServer,
)
from colonnade.algorithms.method import SERVER
from colonnade.config.resolve import parties_of
from colonnade.config.schema import Config, PartyConfig, ServerConfig
from colonnade.data import Alignment, Ids, clean_ids, read_id_column, save_alignment
from colonnade.deployment.own_side import SHARE, limits_of, load_identity, members_of
from colonnade.deployment.party_process import PartyProcess
from colonnade.deployment.server_process import ServerProcess
from colonnade.deployment.terms import DTYPE, Terms, shared_digest, shared_part_of_alignment
from colonnade.drivers.files import replace_file
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.node import Keeper, Node
from colonnade.drivers.processes.service import Service
from colonnade.drivers.processes.switchboard import Switchboard
from colonnade.drivers.processes.wire import PROTOCOL, End, Hello, Position
from colonnade.protocol.errors import ColonnadeError, ConfigError
from colonnade.protocol.events import NANOSECONDS
from colonnade.protocol.messages import Payload
from colonnade.results.summary import traffic_fields

__all__ = ["AligningPartyProcess", "AligningServerProcess", "aligning_process"]

Bars = dict[str, tuple[int, int]]  # by member: points raised, and how many it will be


def aligning_process(
    config: Config, party: str | None, out: Callable[[str], Path], log: Callable[[str], Log]
) -> "AligningServerProcess | AligningPartyProcess":
    """This side of an alignment: the certificate says which it is."""
    name = load_identity(config).name
    if party is not None and party != name:
        raise ConfigError("--party", party, f"network.certificate is {name}'s")
    make = AligningServerProcess if name == SERVER else AligningPartyProcess
    return make(config, out(name), log(name))


class _Writer(Keeper):
    """Writes the order where training will look for it."""

    def __init__(self, name: str, members: Callable[[], tuple[str, ...]], ids: Ids, path: Path) -> None:
        self._name, self._members, self._ids, self._path = name, members, ids, path

    def emitted(self, record: Payload, node: Node) -> None:
        if isinstance(record, Aligned):
            ids, members = self._ids.sha256, self._members()
            save_alignment(
                Alignment(self._name, members, record.rows, record.sha256, ids, record.presence), self._path
            )  # fmt: skip
            lacking = int((record.rows < 0).sum())
            own = {"lacking": lacking} if lacking else {}
            node.log.info("aligned", common=len(record.rows), **own, file=self._path, digest=record.sha256[:16])


class _Node(Node):
    """Its log mends broken lines; since nothing is gone on with, there are no checkpoints."""

    def checkpoint(self) -> None:
        """None."""


class AligningPartyProcess(PartyProcess):
    """A party of an alignment: its ids, and the order that it will train in."""

    def __init__(self, config: Config, out: Path, log: Log) -> None:
        self.config, self.out, self.log = config, out, log
        parties, self.identity, pins = parties_of(config), load_identity(config), members_of(config)
        self.name = name = self.identity.name
        self.pinned = pins[SERVER]
        if name not in parties:
            raise ConfigError("network.certificate", config.network.certificate, f"is {name}'s, who is no party")
        path = _order_file(config.party, "party")
        ids = _ids(config.party, "party", config, name, log)
        role = AligningParty(name, ids, chunk_of(config))
        self.role = role
        self.shared = shared_part_of_alignment(config, pins)
        writer = _Writer(name, lambda: role.member.ring.members if role.member.ring is not None else (), ids, path)
        _forget(out)
        others = [other for other in parties if other != name]
        self.node = _Node(role, PAYLOADS, out / "state", (SERVER,), limits_of(config), log, writer, far=others)
        self._switchboard = Switchboard(self.node, self.identity, pins)
        self._run = ""

    async def run(self) -> End:
        """Until the server says that it is over."""
        try:
            return await super().run()
        finally:
            _forget(self.out)

    def bars(self) -> Bars:
        """For people who wait."""
        return {self.name: self.role.done}

    def hello(self, instance: int, position: Position) -> Hello:
        return Hello(PROTOCOL, __version__, self.shared, 0, "", 0, DTYPE, instance, position)

    def refuse_others_state(self) -> None:
        """There is none."""

    def _told_before(self) -> End | None:
        return None

    def meet(self, run: str) -> None:
        if self._run not in ("", run):
            raise ColonnadeError("the server has started again: start colonnade align again here, too")
        self._run = run


class AligningServerProcess(ServerProcess):
    """The server of an alignment: sizes, and, if it has a table itself, its own ids."""

    def __init__(self, config: Config, out: Path, log: Log) -> None:
        self.config, self.out, self.log = config, out, log
        self.identity, self.pins = load_identity(config), members_of(config)
        parties, ids = parties_of(config), None
        keeper = Keeper()
        if config.server.data is not None:
            path = _order_file(config.server, "server")
            ids = _ids(config.server, "server", config, SERVER, log)
            keeper = _Writer(SERVER, lambda: (*parties, SERVER), ids, path)
        role = AligningServer(parties, ids, chunk_of(config), _min_parties(config, parties))
        if len(role.members) < 2:
            raise ConfigError("network.parties", list(parties), "one table needs no alignment; or set server.data")
        self.role = role
        self.shared = shared_part_of_alignment(config, self.pins)
        _forget(out)
        self.node = _Node(role, PAYLOADS, out / "state", parties, limits_of(config), log, keeper)
        terms = Terms(self.shared, 0, "", dict.fromkeys(parties, 0))
        run = secrets.token_hex(16)
        self.service = Service(self.node, self.identity, self.pins, terms, self.status, run=run, relay=True)
        self._begin_watching()

    async def run(self) -> Any:
        """Until all have their order, or it cannot be."""
        self.out.mkdir(parents=True, exist_ok=True)
        try:
            return await super().run()
        finally:
            _forget(self.out)

    def bars(self) -> Bars:
        """For people who wait."""
        role = self.role
        work = role.ring.work if role.ring is not None else 0
        own = {} if role.member is None else {SERVER: (role.member.raised, work)}
        return {name: (points, work) for name, points in role.raised.items()} | own

    def status(self) -> dict[str, Any]:
        """As of any server, for `colonnade status`; and the bars."""
        waited = time.monotonic() - self._moved_at
        return {
            "protocol": "alignment",
            "state": self.node.finished or ("aligning" if self.role.ring is not None else "waiting"),
            "clock_s": round(self.node.clock() / NANOSECONDS, 1),
            "updates": self.role.done[0],
            "updates_per_s": round(self._rate, 2),
            "epochs": 0.0,
            "fraction": self.fraction(),
            "metric": None,
            "value": None,
            "waits_for": self.waits_for(),
            "waited_s": round(waited, 1),
            "digest": shared_digest(self.shared),
            "parties": self._parties(),
            "bars": self.bars(),
        }

    def fraction(self) -> float:
        """How much is done, from 0 to 1."""
        done, whole = self.role.done
        return done / whole if whole else 0.0

    def summary(self, status: str) -> dict[str, Any]:
        """summary.json: sizes, and nothing else of the ids."""
        found = self.role.summary()
        return {
            "status": status,
            "note": self.note,
            "ids": found["ids"],
            "common": found.get("common"),
            "have": found.get("have"),
            "sha256": found["weights"],
            "wall_s": round(self.node.clock() / NANOSECONDS, 3),
            **traffic_fields(self.node.traffic),
        }

    def _write(self, summary: Mapping[str, Any]) -> None:
        replace_file(self.out / "summary.json", [json.dumps(summary, indent=2).encode() + b"\n"])

    def _how_it_ended(self) -> str:
        if self.role.refusal:
            self.note = self.role.refusal
            return "refused"
        return super()._how_it_ended()

    def _say_end(self, summary: Mapping[str, Any]) -> None:
        self.log.info("ended", status=summary["status"], common=summary["common"])


def _order_file(section: PartyConfig | ServerConfig, name: str) -> Path:
    """Where the order will be written; its folder must be there before hours of work."""
    if section.aligned is None:
        raise ConfigError(f"{name}.aligned", None, f"name the file to write the common order to, e.g. aligned{SHARE}")
    path = Path(section.aligned).expanduser()
    if not path.parent.is_dir() or path.suffix != SHARE:
        raise ConfigError(f"{name}.aligned", section.aligned, f"must end in {SHARE}, in a folder that exists")
    return path


def _ids(section: PartyConfig | ServerConfig, name: str, config: Config, whose: str, log: Log) -> Ids:
    if section.data is None or section.data.endswith(SHARE):
        raise ConfigError(f"{name}.data", section.data, "name the file with the column of ids")
    column = read_id_column(section.data, section.id, name, format=section.format)
    ids = clean_ids(column, config.align, f"{whose}: {section.data}")
    log.info("ids", rows=len(column), ids=len(ids.texts), empty=ids.empty, repeated=ids.repeated)
    return ids


def _min_parties(config: Config, parties: tuple[str, ...]) -> int:
    """Only where the labels are with the server can it be said who lacks which row, and something stand in for it."""
    least = config.align.min_parties
    if least > len(parties):
        raise ConfigError("align.min_parties", least, f"there are {len(parties)} parties")
    if 0 < least < len(parties) and config.server.data is None:
        advice = (
            "rows that some lack can be trained on where the server has the labels: set server.data, or leave it out"
        )
        raise ConfigError("align.min_parties", least, advice)
    return least


def chunk_of(config: Config) -> int:
    """Points to raise at a time: so many that `BULK` times as many fit into a message."""
    return max(1, min(CHUNK, int(0.8 * limits_of(config).max_message_bytes) // (BULK * POINT_BYTES)))


def _forget(out: Path) -> None:
    shutil.rmtree(out / "state", ignore_errors=True)
