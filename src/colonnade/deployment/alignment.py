"""The server's and a party's part of an alignment, with the same nodes, streams and seals as in training.

Nothing is kept for a later start. The secrets of an alignment are in memory only. The folder's state, which holds
raised points, is removed at the end. A broken connection is repaired. If a process is killed, all members must start
again.
"""

import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
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
from colonnade.deployment.application import Pace, end_of, parties_now
from colonnade.deployment.own_side import SHARE, OwnSide, limits_of, load_identity
from colonnade.deployment.party_host import PartyHost
from colonnade.deployment.party_summary import bye_of, write_summary
from colonnade.deployment.server_host import ServerHost
from colonnade.deployment.terms import DTYPE, Terms, shared_digest, shared_part_of_alignment
from colonnade.drivers.files import DISK, replace_file
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.node import Keeper, Node
from colonnade.drivers.processes.service import Service
from colonnade.drivers.processes.wire import PROTOCOL, Bye, End, Hello, Position
from colonnade.protocol.errors import ColonnadeError, ConfigError
from colonnade.protocol.events import NANOSECONDS
from colonnade.protocol.messages import Payload
from colonnade.protocol.strict_json import to_json
from colonnade.results.summary import traffic_fields

__all__ = ["PartyAlignment", "ServerAlignment", "aligning_host", "aligning_party", "aligning_server"]

Bars = dict[str, tuple[int, int]]  # by member: points raised so far, and in total


def aligning_host(
    config: Config, party: str | None, out: Callable[[str], Path], log: Callable[[str], Log]
) -> "ServerHost[ServerAlignment] | PartyHost[PartyAlignment]":
    """This member's part of an alignment. The certificate says which member it is."""
    name = load_identity(config).name
    if party is not None and party != name:
        raise ConfigError("--party", party, f"network.certificate is {name}'s")
    make = aligning_server if name == SERVER else aligning_party
    return make(config, out(name), log(name))


def aligning_server(config: Config, out: Path, log: Log) -> "ServerHost[ServerAlignment]":
    return ServerHost(ServerAlignment(OwnSide(config, out, log)))


def aligning_party(config: Config, out: Path, log: Log) -> "PartyHost[PartyAlignment]":
    return PartyHost(PartyAlignment(OwnSide(config, out, log)))


class _Writer(Keeper):
    """Writes the row order to the file that training will read.

    The new order waits in a file beside it until all members have the same one. If the alignment ends otherwise, the
    order of an earlier alignment stays.
    """

    def __init__(self, name: str, members: Callable[[], tuple[str, ...]], ids: Ids, path: Path) -> None:
        self._name, self._members, self._ids, self._path = name, members, ids, path
        self._waiting = path.with_name(f"{path.stem}-new{path.suffix}")
        self._found: Aligned | None = None

    def emitted(self, record: Payload, node: Node) -> None:
        """Keep the new order: a full disk shows before the server hears that this member is done."""
        if isinstance(record, Aligned):
            ids, members = self._ids.sha256, self._members()
            alignment = Alignment(self._name, members, record.rows, record.sha256, ids, record.presence)
            save_alignment(alignment, self._waiting)
            self._found = record

    def settle(self, status: str, log: Log) -> None:
        """The alignment has ended: use the new order if all members have it, or remove it."""
        found, self._found = self._found, None
        if found is None:
            return
        if status != "finished":
            self._waiting.unlink(missing_ok=True)
            return
        DISK.rename(self._waiting, self._path)
        DISK.sync_folder(self._path.parent)
        lacking = int((found.rows < 0).sum())
        own = {"lacking": lacking} if lacking else {}
        log.info("aligned", common=len(found.rows), **own, file=self._path, digest=found.sha256[:16])


class _AlignmentNode(Node):
    """Its journal repairs broken connections and is removed at the end. There are no checkpoints."""

    def checkpoint(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Remove the state, so that no raised points stay on the disk."""
        super().close()
        _forget(self.folder)


class PartyAlignment:
    """A party's ids, and the row order in which it will train."""

    aim, peers = "alignment", True

    def __init__(self, side: OwnSide) -> None:
        config, out, log = side.config, side.out, side.log
        self.side, parties = side, parties_of(config)
        self.name = name = side.identity.name
        if name not in parties:
            raise ConfigError(
                "network.certificate",
                config.network.certificate,
                f"is the certificate of {name!r}, which is not in network.parties",
            )
        path = _order_file(config.party, "party")
        ids = _ids(config.party, "party", config, name, log)
        role = AligningParty(name, ids, chunk_of(config))
        self.role = role
        self._shared = shared_part_of_alignment(config, side.authority)
        self._writer = _Writer(
            name, lambda: role.member.ring.members if role.member.ring is not None else (), ids, path
        )  # fmt: skip
        _forget(out / "state")
        others = [other for other in parties if other != name]
        limits = limits_of(config)
        self.node = _AlignmentNode(role, PAYLOADS, out / "state", (SERVER,), limits, log, self._writer, far=others)
        self._run = ""

    def bars(self) -> Bars:
        """The progress of this party, for display."""
        return {self.name: self.role.done}

    def update(self) -> None:
        """None: an alignment has no updates."""

    def told_before(self) -> None:
        """None: an alignment starts from nothing each time."""

    def prepare(self) -> None:
        """Do nothing: there is no earlier state."""

    def say_start(self, server: str) -> None:
        """Log the address and the digest, which people compare."""
        self.side.log.info("dialling", server=server, digest=shared_digest(self._shared)[:16])

    def hello(self, instance: int, position: Position) -> Hello:
        """The HELLO without rows and width, which are not known yet."""
        return Hello(PROTOCOL, __version__, self._shared, 0, "", 0, DTYPE, instance, position)

    def meet(self, run: str) -> None:
        """Raise ColonnadeError if the server has restarted, because it has other secrets then."""
        if self._run not in ("", run):
            raise ColonnadeError("the server has restarted: run colonnade align again for this party too")
        self._run = run

    def farewell(self, end: End, relay_refused: int | None) -> Bye:
        """Write the order and the summary before the server gets the BYE and ends."""
        self._writer.settle(end.status, self.side.log)
        write_summary(self.side.out, end, self.node, relay_refused)
        return bye_of(self.node)

    def closed(self, met: bool) -> None:
        """Remove an order that the server has not confirmed. The node has removed its state."""
        self._writer.settle("", self.side.log)

    def ended(self, end: End, relay_refused: int | None) -> None:
        write_summary(self.side.out, end, self.node, relay_refused)
        self.side.log.info("ended", status=end.status)


class ServerAlignment:
    """The server's part: the members' sizes, and its own ids if it has a table."""

    aim, relay, admit_late = "alignment", True, True

    def __init__(self, side: OwnSide) -> None:
        config, log = side.config, side.log
        self.side, parties, ids = side, parties_of(config), None
        keeper: Keeper = Keeper()
        self._writer: _Writer | None = None
        if config.server.data is not None:
            path = _order_file(config.server, "server")
            ids = _ids(config.server, "server", config, SERVER, log)
            keeper = self._writer = _Writer(SERVER, lambda: (*parties, SERVER), ids, path)
        role = AligningServer(parties, ids, chunk_of(config), _min_parties(config, parties))
        if len(role.members) < 2:
            raise ConfigError(
                "network.parties", list(parties), "one table needs no alignment: add a party, or set server.data"
            )
        self.role = role
        self.shared = shared_part_of_alignment(config, side.authority)
        self.terms = Terms(self.shared, 0, "", dict.fromkeys(parties, 0))
        self.run_id = secrets.token_hex(16)
        _forget(side.out / "state")
        self.node = _AlignmentNode(role, PAYLOADS, side.out / "state", parties, limits_of(config), log, keeper)

    def attach(self, service: Service) -> None:
        """Do nothing: the service is not needed."""

    def opened(self) -> None:
        """Do nothing: an alignment starts from nothing each time."""

    @asynccontextmanager
    async def serving(self, address: str, status: Callable[[], dict[str, Any]]) -> AsyncIterator[None]:
        """Log the address; nothing else is open beside the service."""
        self.side.log.info("listening", address=address, digest=shared_digest(self.shared)[:16])
        yield

    def update(self) -> int:
        """The number of points that the parties have raised."""
        return self.role.progress.k

    def owes(self) -> dict[str, str]:
        """What the parties owe that are missing, or that have most left to do."""
        return self.role.owes()

    def bars(self) -> Bars:
        """The progress of each member, for display."""
        role = self.role
        work = role.ring.work if role.ring is not None else 0
        own = {} if role.member is None else {SERVER: (role.member.raised, work)}
        return {name: (points, work) for name, points in role.raised.items()} | own

    def status(self, pace: Pace) -> dict[str, Any]:
        """The fields of any server's status, for `colonnade status`, and the bars."""
        done, whole = self.role.done
        return {
            "protocol": "alignment",
            "state": self.node.finished or ("aligning" if self.role.ring is not None else "waiting"),
            "updates": done,
            "epochs": 0.0,
            "fraction": done / whole if whole else 0.0,
            "metric": None,
            "value": None,
            "parties": parties_now(self.node),
            "bars": self.bars(),
        }

    def measures(self) -> dict[str, Any]:
        """Nothing beside the status."""
        return {}

    def ended(self) -> End:
        """How it ended: each member has its order, or the alignment was refused."""
        end = End("refused", self.role.refusal) if self.role.refusal else end_of(self.node)
        if self._writer is not None:
            self._writer.settle(end.status, self.side.log)
        return end

    def summary(self, end: End) -> Mapping[str, Any]:
        """The content of summary.json: sizes, and nothing else about the ids."""
        found = self.role.summary()
        return {
            "status": end.status,
            "note": end.note,
            "ids": found["ids"],
            "common": found.get("common"),
            "have": found.get("have"),
            "sha256": found["weights"],
            "wall_s": round(self.node.clock() / NANOSECONDS, 3),
            **traffic_fields(self.node.traffic),
        }

    def write(self, summary: Mapping[str, Any]) -> None:
        replace_file(self.side.out / "summary.json", [to_json(summary, indent=2).encode() + b"\n"])

    def say_end(self, summary: Mapping[str, Any]) -> None:
        """Log how many rows all members have in common."""
        self.side.log.info("ended", status=summary["status"], common=summary["common"])


def _order_file(section: PartyConfig | ServerConfig, name: str) -> Path:
    """The file for the row order; raises ConfigError now, and not after hours of work, if its folder is missing."""
    if section.aligned is None:
        raise ConfigError(f"{name}.aligned", None, f"name the file to write the common order to, e.g. aligned{SHARE}")
    path = Path(section.aligned).expanduser()
    if not path.parent.is_dir() or path.suffix != SHARE:
        raise ConfigError(f"{name}.aligned", section.aligned, f"must end in {SHARE}, in a folder that exists")
    return path


def _ids(section: PartyConfig | ServerConfig, name: str, config: Config, whose: str, log: Log) -> Ids:
    if section.data is None or section.data.endswith(SHARE):
        raise ConfigError(f"{name}.data", section.data, "name the file with the column of ids")
    column = read_id_column(section.data, section.id, name, format=section.format, dialect=section.dialect)
    ids = clean_ids(column, config.align, f"{whose}: {section.data}")
    log.info("ids", rows=len(column), ids=len(ids.texts), empty=ids.empty, repeated=ids.repeated)
    return ids


def _min_parties(config: Config, parties: tuple[str, ...]) -> int:
    """The least number of parties per row.

    Below all parties, the server must have the labels: only then does it know which party lacks which row, and can it
    use a fallback for that party.
    """
    least = config.align.min_parties
    if least > len(parties):
        raise ConfigError("align.min_parties", least, f"there are {len(parties)} parties")
    if 0 < least < len(parties) and config.server.data is None:
        advice = (
            "training on rows that some parties lack needs the labels at the server: set server.data, or leave this "
            "key out"
        )
        raise ConfigError("align.min_parties", least, advice)
    return least


def chunk_of(config: Config) -> int:
    """Points to raise at a time: so many that `BULK` times as many fit into a message."""
    return max(1, min(CHUNK, int(0.8 * limits_of(config).max_message_bytes) // (BULK * POINT_BYTES)))


def _forget(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
