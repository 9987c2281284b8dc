"""Storage faults under a federation of nodes in one process: what is recovered was there before, or a file is refused.

    python benchmarks/storage.py --cases 1000 [--seed 0]

A case is a short training of a server and two parties, each a node of the process driver on a disk of its own. Messages
are carried by hand and jobs run in turn, so that a seed gives the same case again. One of the disks has a fault, during
a checkpoint or at another time; then the node starts again, sometimes with a second crash while it recovers.

    kill           the process dies within a write
    power cut      the machine goes down: writes and names that were not synced survive in part, by sectors
    full           the disk takes no more bytes until the next start
    flip           the process dies, and a bit of a file changes
    misdirected    a write lands elsewhere in the file, or in another file of the node; the process dies later
    lost           a write never arrives; the process dies later

After every start the state of the role must be one that this role had (by the hash chain of its events). After a lost
or misdirected write to a table in a file, the running role itself reads wrong rows: later states of this life are not
compared, because a replay of the journal gives the right rows. After a kill
or a full disk nothing may be lost. After a power cut only conversations may restart, and a table in a file may be
refused. After the other faults the newest checkpoint may be replaced by the one before it; what cannot be used is
refused with the name of the file. `sync` must end with the weights of the calm run if no conversation restarted.
"""

import argparse
import asyncio
import collections
import contextlib
import errno
import io
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

import colonnade
from colonnade.algorithms.table_file import FileTable
from colonnade.config.resolve import Federation, federation
from colonnade.config.schema import from_dict
from colonnade.drivers.files import Disk
from colonnade.drivers.processes.jobs import Jobs
from colonnade.drivers.processes.journal import Record
from colonnade.drivers.processes.limits import Limits
from colonnade.drivers.processes.logs import Log
from colonnade.drivers.processes.node import Node
from colonnade.drivers.processes.wire import open_envelope
from colonnade.drivers.simulator import Simulator
from colonnade.protocol import state
from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import CheckpointError

KINDS = ("kill", "power cut", "full", "flip", "misdirected", "lost")
SETTINGS = (("sync", "memory"), ("vafl", "memory"), ("vafl", "file"))
UPDATES, MOST_STEPS, SECTOR = 12, 4000, 512
CALM = Limits(checkpoint_s=1e6, max_log_mb=1e3, lost_after_s=1e6, heartbeat_s=1e5)


class Crash(BaseException):
    """The process ends here."""


# --- disks ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Inode:
    """A file, whatever its name is: what a power cut cannot take, and the changes since."""

    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # offset and content; None: cut off there

    def after(self, changes: list[tuple[int, bytes | None]]) -> bytes:
        data = bytearray(self.durable)
        for offset, content in changes:
            data.extend(bytes(max(0, offset + len(content or b"") - len(data))))
            if content is None:
                del data[offset:]
            else:
                data[offset : offset + len(content)] = content
        return bytes(data)


class Platter:
    """What lies on the disk under the cache of the system. The cache's view is a real folder."""

    def __init__(self) -> None:
        self.names: dict[Path, Inode] = {}
        self.durable_names: dict[Path, Inode] = {}
        self.renamed: list[tuple[Path, Inode | None]] = []  # changes of names that no sync has confirmed
        self.boots = 0

    def name(self, path: Path, inode: Inode | None) -> None:
        self.renamed.append((path, inode))
        _set(self.names, path, inode)

    def sync_names(self, folder: Path) -> None:
        for path, inode in [change for change in self.renamed if change[0].parent == folder]:
            _set(self.durable_names, path, inode)
        self.renamed = [change for change in self.renamed if change[0].parent != folder]

    def cut_power(self, draw: random.Random) -> None:
        """Leave in the folder what survives: names in order up to some moment, and any sectors."""
        self.boots += 1
        share = draw.choice((0.0, 0.5, 1.0))
        for path, inode in self.renamed[: draw.randint(0, len(self.renamed))]:
            _set(self.durable_names, path, inode)
        for path in self.names:
            path.unlink(missing_ok=True)
        for path, inode in self.durable_names.items():
            changes = [part for change in inode.pending for part in _sectors(*change) if draw.random() < share]
            path.write_bytes(inode.after(changes))
        self.settle(list(self.durable_names))

    def settle(self, paths: list[Path]) -> None:
        """Everything in the folder is on the disk: as after a kill and some minutes."""
        self.renamed = []
        self.names = {path: Inode(path.read_bytes()) for path in paths if path.exists()}
        self.durable_names = dict(self.names)


def _set(names: dict[Path, Inode], path: Path, inode: Inode | None) -> None:
    if inode is None:
        names.pop(path, None)
    else:
        names[path] = inode


def _sectors(offset: int, content: bytes | None) -> Iterator[tuple[int, bytes | None]]:
    if content is None:
        yield offset, None
        return
    while content:
        size = SECTOR - offset % SECTOR
        yield offset, content[:size]
        offset, content = offset + size, content[size:]


class FaultyDisk(Disk):
    """The disk of one life of a process."""

    def __init__(self, platter: Platter, draw: random.Random) -> None:
        self._platter, self._draw = platter, draw
        self._open: dict[int, tuple[Path, Inode]] = {}
        self._left, self._kind = -1, ""
        self.dead = self._full = False
        self.happened = ""  # the kind of the fault that took place
        self.spoils_rows = False  # the rows that a running role reads may be wrong: they have no checksums

    def arm(self, kind: str, operations: int) -> None:
        """Let the fault happen after so many operations."""
        self._kind, self._left = kind, operations

    def crash(self) -> None:
        """The process is gone, and its descriptors with it."""
        self.dead = True
        for file in self._open:
            os.close(file)
        self._open = {}

    def _due(self, writes: bool = False) -> str:
        """The fault that happens now; some kinds wait for a write."""
        if self.dead:
            raise Crash
        if self._full and writes:
            return "full"
        if self._left < 0:
            return ""
        self._left -= 1
        if self._left >= 0 or (self._kind in ("full", "misdirected", "lost", "kill") and not writes):
            self._left = max(self._left, 0) if self._left >= 0 else 0
            return ""
        self._left = -1
        if self._kind == "later":
            self._die("")
        self.happened = self._kind
        if self._kind in ("power cut", "flip"):
            self._die(self._kind)
        return self._kind

    def _die(self, kind: str) -> None:
        self.happened = self.happened or kind
        self.dead = True
        raise Crash

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        self._due()
        new = path not in self._platter.names
        file = super().open(path, flags, mode)
        if new:
            self._platter.name(path, Inode())
        inode = self._platter.names[path]
        if flags & os.O_TRUNC:
            inode.pending.append((0, None))
        self._open[file] = path, inode
        return file

    def close(self, file: int) -> None:
        if file in self._open:  # else it is of an earlier life
            del self._open[file]
            os.close(file)

    def write(self, file: int, parts: Any, offset: int) -> int:
        if file not in self._open:
            return super().write(file, parts, offset)  # a file without a name
        content, (_, inode) = b"".join(parts), self._open[file]
        match self._due(writes=True):
            case "full":
                self._full = True
                content = content[: self._draw.randrange(len(content) + 1)]
                if not content or self._draw.random() < 0.5:
                    raise OSError(errno.ENOSPC, "No space left on device")
            case "kill":
                super().write(file, [content[: self._draw.randrange(len(content) + 1)]], offset)
                self._die("kill")
            case "lost":
                self.spoils_rows = self._is_table(file)
                self.arm("later", self._draw.randrange(30))
                return len(content)
            case "misdirected":
                self.arm("later", self._draw.randrange(30))
                self.spoils_rows = self._is_table(file)
                file = self._draw.choice(list(self._open))
                self.spoils_rows |= self._is_table(file)
                size = os.fstat(file).st_size
                offset, length = self._draw.randrange(size + 1), len(content)
                super().write(file, [content], offset)
                self._open[file][1].pending.append((offset, content))
                return length
        inode.pending.append((offset, content))
        return super().write(file, [content], offset)

    def _is_table(self, file: int) -> bool:
        return self._open[file][0].suffix == ".rows"

    def truncate(self, file: int, size: int) -> None:
        self._due()
        super().truncate(file, size)
        if file in self._open:
            inode = self._open[file][1]
            inode.pending.append((size, None) if size < len(inode.after(inode.pending)) else (size, b""))

    def sync(self, file: int) -> None:
        self._due()
        inode = self._open[file][1]
        inode.durable, inode.pending = inode.after(inode.pending), []

    def rename(self, old: Path, new: Path) -> None:
        self._due()
        super().rename(old, new)
        inode = self._platter.names[old]
        self._platter.name(new, inode)
        self._platter.name(old, None)

    def unlink(self, path: Path) -> None:
        self._due()
        super().unlink(path)
        if path in self._platter.names:
            self._platter.name(path, None)

    def sync_folder(self, folder: Path) -> None:
        self._due()
        self._platter.sync_names(folder)

    def boot_id(self) -> bytes:
        return b"%016d" % self._platter.boots


# --- nodes ---------------------------------------------------------------------------------------------------------


class HandJobs(Jobs):
    """Jobs that run when they are told to."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.ready: list[Any] = []

    def _run(self, work: Any, loop: Any) -> None:
        self.ready.append(work)

    def _timed(self, work: Any) -> tuple[Any, int, int]:
        return self._compute(work.job), 0, 0  # times would make each run of a case another

    def run_one(self) -> None:
        self._run_here(self.ready.pop(0))


class HandNode(Node):
    """A node whose clock counts events, and which remembers the states that it was in."""

    def __init__(self, history: dict[bytes, int | None], *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.jobs.close()
        self.jobs: HandJobs = HandJobs(self.role.compute, self._work_done, self.fail)
        self.history = history

    def clock(self) -> int:
        return self.now + 1000

    def _handle(self, record: Record) -> None:
        whole = False
        try:
            super()._handle(record)
            whole = True
        finally:
            if self._loop is not None:  # a table that cannot be written stops the role half-way; a replay goes on
                known = whole and not (isinstance(self._disk, FaultyDisk) and self._disk.spoils_rows)
                self.history[self.trace.digest] = self.picture() if known else None

    def _recover(self) -> bool:
        found = super()._recover()
        if found and self.history.get(self.trace.digest, 0) not in (None, self.picture()):
            raise AssertionError(f"{self.role.name}: recovered a state that it was never in")
        return found

    def picture(self) -> int:
        """A hash of the role, its tables, its jobs and timers."""
        saved: Any = self.role.save()
        for table, place in self._tables(saved):
            rows = np.arange(len(table))
            place["table"] = [table.gather(rows), table.ages(rows, 0), table.clipped]
        jobs = sorted(work.token for work in self.jobs.pending)
        return xxh3_64_intdigest(state.pack([saved, jobs, sorted(self.timers.items())]))

    def _tables(self, saved: dict[str, Any]) -> list[tuple[FileTable, dict[str, Any]]]:
        table = vars(self.role).get("table")
        if not isinstance(table, FileTable):
            return []
        return [(table, saved), (self.role.evaluation.table, saved["evaluation"])]  # type: ignore[attr-defined]


@cache
def setting(method: str, table: str) -> Federation:
    draw = np.random.default_rng(0)
    x = draw.standard_normal((40, 4)).astype(np.float32)
    data = colonnade.split(colonnade.from_arrays(x, (x.sum(1) > 0).astype(np.int64)), parties=2)
    tables = {
        "protocol": {"name": method},
        "server": {"table": table},
        "model": {"party": "linear", "embedding": 2, "server": "linear"},
        "train": {"updates": UPDATES, "batch_size": 8, "learning_rate": 0.1, "eval_every": 5},
    }
    return federation(from_dict(tables), data)


@cache
def calm_weights(method: str) -> list[str]:
    found = setting(method, "memory")
    simulator = Simulator(found.roles(), Codec(found.method.payloads), found.config.clock, found.config.train.seed)
    simulator.run()
    return [str(node.role.summary()["weights"]) for node in simulator.nodes]


@dataclass
class Outcome:
    """How a case ended."""

    kind: str
    happened: bool = False
    refused: str = ""  # the message, which names a file
    damaged: int = 0  # files that were found damaged and done without
    resets: int = 0  # conversations that restarted
    exact: bool = False  # compared with the calm run
    problem: str = ""


class Case:
    """One federation and one fault."""

    def __init__(self, seed: int, folder: Path, kind: str | None = None) -> None:
        self.draw = draw = random.Random(seed)
        self.kind = kind or draw.choice(KINDS)
        self.method, self.table = draw.choice(SETTINGS)
        self.setting, self.folder = setting(self.method, self.table), folder
        self.names = ["server", *self.setting.data.parties]
        self.victim = "server" if draw.random() < 0.6 else draw.choice(self.names[1:])
        self.history: dict[str, dict[bytes, int | None]] = {name: {} for name in self.names}
        self.platters = {name: Platter() for name in self.names}
        self.disks: dict[str, FaultyDisk] = {}
        self.nodes: dict[str, HandNode] = {}
        self.outcome = Outcome(f"{self.kind}, {self.method}, {self.table}")
        self.conversations = 0

    def run(self) -> Outcome:
        with contextlib.suppress(_Refused):
            try:
                asyncio.run(self._run())
            except Exception as error:
                self.outcome.problem = f"{type(error).__name__}: {error}"
        for disk in self.disks.values():
            disk.crash()
        return self.outcome

    async def _run(self) -> None:
        for name in self.names:
            self._start(name)
        for name in self.names[1:]:
            self._meet(name)
        strikes_at = self.draw.randrange(3, 90)
        for step in range(MOST_STEPS):
            if self.nodes["server"].finished:
                break
            if step == strikes_at:
                self.disks[self.victim].arm(self.kind, self.draw.randrange(24))
            self._step(step >= strikes_at and not self.outcome.happened)
            await asyncio.sleep(0)  # timers that are due
            if self.disks[self.victim].dead or self.nodes[self.victim].error is not None:
                self._restart()
        else:
            raise AssertionError("hangs")
        self._check_end()

    def _step(self, armed: bool) -> None:
        draw, busy = self.draw, [node for node in self.nodes.values() if node.jobs.ready]
        with contextlib.suppress(Crash):
            if busy and draw.random() < 0.5:
                draw.choice(busy).jobs.run_one()
            elif draw.random() < (0.5 if armed else 0.12):
                self._checkpoint(self.victim if armed else draw.choice(self.names))
            else:
                one, other = "server", draw.choice(self.names[1:])
                self._carry(*((one, other) if draw.random() < 0.5 else (other, one)), most=draw.randrange(1, 4))

    def _checkpoint(self, name: str) -> None:
        try:
            self.nodes[name].checkpoint()
        except Exception as error:
            self.nodes[name].fail(error)

    def _start(self, name: str) -> None:
        self.disks[name] = disk = FaultyDisk(self.platters[name], self.draw)
        role = next(role for role in self.setting.roles() if role.name == name)
        peers = self.names[1:] if name == "server" else ["server"]
        log = Log(name, stream=io.StringIO())
        node = HandNode(
            self.history[name], role, self.setting.method.payloads, self.folder / name, peers, CALM, log, disk=disk
        )  # fmt: skip
        self.nodes[name] = node
        node.open()

    def _restart(self) -> None:
        """The victim starts again, and perhaps dies once more while it recovers."""
        name, node, disk = self.victim, self.nodes[self.victim], self.disks[self.victim]
        self.outcome.happened = True
        if node.error is not None:
            named = isinstance(node.error, CheckpointError) and str(self.folder / name) in str(node.error)
            unchecked = self.table == "file" and self.kind in ("misdirected", "lost")  # rows that a running role reads
            if not named and not unchecked:
                raise AssertionError(f"ended with {node.error!r}")
            with contextlib.suppress(Crash):
                node.close()
        self._crash(name, disk.happened)
        for _ in range(20):
            try:
                self._start_with_trouble(name)
            except Crash:
                self._crash(name, "kill")
            else:
                break
        else:
            raise AssertionError("never starts")
        self.outcome.damaged += self.nodes[name].damaged_files
        for party in self.names[1:]:
            if name in ("server", party):
                self.outcome.resets += self._meet(party)

    def _start_with_trouble(self, name: str) -> None:
        try:
            if self.draw.random() < 0.3:
                self._arm_next(name)
            else:
                self._start(name)
        except CheckpointError as error:
            self._crash(name, "")
            files = [path.name for path in (self.folder / name).rglob("*")]
            if not any(file in str(error) for file in files) and ".undo-*" not in str(error):
                raise AssertionError(f"refused without the name of a file: {error}") from None
            self.outcome.refused = str(error)
            raise _Refused from None

    def _arm_next(self, name: str) -> None:
        """Start with a disk that dies after some operations."""
        made = FaultyDisk.__init__
        at = self.draw.randrange(16)

        def armed(disk: FaultyDisk, *arguments: Any) -> None:
            made(disk, *arguments)
            disk.arm("later", at)

        FaultyDisk.__init__ = armed  # type: ignore[method-assign]
        try:
            self._start(name)
        finally:
            FaultyDisk.__init__ = made  # type: ignore[method-assign]
        self.disks[name].arm("", -1)

    def _crash(self, name: str, happened: str) -> None:
        node, platter = self.nodes[name], self.platters[name]
        for alarm in node._alarms.values():
            alarm.cancel()
        node._journal = None
        self.disks[name].crash()
        if node._lock is not None:
            os.close(node._lock)
            node._lock = None
        if happened == "power cut":
            platter.cut_power(self.draw)
            return
        platter.settle(list(platter.names))
        if happened == "flip":
            self._flip([path for path in platter.names if path.stat().st_size])
            platter.settle(list(platter.names))

    def _flip(self, paths: list[Path]) -> None:
        path = self.draw.choice(sorted(paths))
        data = bytearray(path.read_bytes())
        data[self.draw.randrange(len(data))] ^= 1 << self.draw.randrange(8)
        path.write_bytes(data)

    def _meet(self, name: str) -> bool:
        """A stream between the server and this party opens; returns whether the conversation restarted."""
        server, party = self.nodes["server"], self.nodes[name]
        here, there = server.peers[name], party.peers["server"]
        first = here.conversation.number == there.conversation.number == 0
        resets = not here.conversation.goes_on_with(there.conversation.position())
        self.conversations += 1
        number = here.conversation.number if not resets and here.conversation.number > 0 else self.conversations
        server.joined(here, number, resets)
        here.conversation.heard(0 if resets else there.conversation.received)
        party.joined(there, number, resets)
        there.conversation.heard(here.conversation.received)
        return resets and not first

    def _carry(self, sender: str, receiver: str, most: int) -> None:
        one, other = self.nodes[sender], self.nodes[receiver]
        outgoing, peer = one.peers[receiver].conversation, other.peers[sender]
        for sequence, frame in list(outgoing.outbox)[:most]:
            envelope = open_envelope(frame, sender)
            other.received(peer, sequence, envelope.body, envelope.evaluation)
        outgoing.heard(peer.conversation.received)

    def _check_end(self) -> None:
        outcome = self.outcome
        lossless = self.kind in ("kill", "full")
        if lossless and (outcome.resets or outcome.damaged):
            raise AssertionError(f"{outcome.resets} conversations restarted, {outcome.damaged} files damaged")
        weights = [str(self.nodes[name].role.summary()["weights"]) for name in self.names]
        if self.method == "sync" and not outcome.resets:
            outcome.exact = True
            if weights != calm_weights("sync"):
                raise AssertionError("other weights than the calm run")
        for node in self.nodes.values():
            node.role.validate()


class _Refused(BaseException):
    """A file was refused by its name: the case is over."""


def run_case(seed: int, kind: str | None = None) -> Outcome:
    """Run one case in a folder of its own."""
    memory = Path("/dev/shm")  # quicker: what is lost is simulated
    folder = Path(tempfile.mkdtemp(prefix="colonnade-storage-", dir=memory if memory.is_dir() else None))
    try:
        case = Case(seed, folder, kind)
        outcome = case.run()
    finally:
        shutil.rmtree(folder)
    if outcome.refused and (case.kind in ("kill", "full") or (case.kind == "power cut" and case.table == "memory")):
        outcome.problem = f"refused: {outcome.refused}"
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS)
    options = parser.parse_args()
    began, problems = time.monotonic(), 0
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for seed in range(options.seed, options.seed + options.cases):
        outcome = run_case(seed, options.kind)
        count = counts[outcome.kind]
        count["cases"] += 1
        for name in ("happened", "refused", "damaged", "resets", "exact"):
            count[name] += bool(getattr(outcome, name))
        if outcome.problem:
            problems += 1
            print(f"seed {seed}: {outcome.kind}: {outcome.problem}")
    columns = ("cases", "happened", "refused", "damaged", "resets", "exact")
    print(f"{'fault, method, table':30}", *(f"{name:>8}" for name in columns))
    for kind, count in sorted(counts.items()):
        print(f"{kind:30}", *(f"{count[name]:8}" for name in columns))
    print(f"{options.cases} cases, {problems} problems, {time.monotonic() - began:.0f} s")
    raise SystemExit(problems > 0)


if __name__ == "__main__":
    main()
