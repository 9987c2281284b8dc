"""The journal of a node: every event for its role, appended before the role handles it.

    file      magic "CLJ6" · number (8 bytes) · boot id (16) · salt (8) · start (1) · power (1; not in "CLJ5") ·
              end of the journal before (16) · xxh3 of these (8) · records
    record    mark (4) · length (4) · checksum over header and record (8) · kind (1) · now (8) · content
    group     a record whose content is records, each after its length (4)

A node that restarts loads its checkpoint and replays the journal. Appends survive `kill -9`. Only a machine that goes
down can lose some of them, and then the boot id differs. With `power`, records are held until `write_group` writes and
syncs them, and no process knows of an event before (see `commits`); then the end is trusted after any boot.
A torn last record was never handled, or is not known to any other process, and is left out. If a whole record follows
an unreadable one, then the file is damaged; the mark finds that record.

Three files take turns and are overwritten, which costs half as much as growing a new file. The salt separates old
records from new ones. If the newest checkpoint is damaged, the node loads the one before it and replays two journals.
The header of the second tells whether the first is complete, and what the node did in between (`start`).
Secrets are not written: `Started` and `Resumed` are stored without their entropy. The result of a `repeatable` job is
not written either, since the node can compute it again: networks' gradients would be most of the journal.
"""

import itertools
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

import msgspec
from xxhash import xxh3_64, xxh3_64_intdigest

from colonnade.drivers.files import DISK, Disk
from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import CheckpointError, CodecError
from colonnade.protocol.events import Event, PeerJoined, PeerLost, Received, Started, TimerFired, WorkDone
from colonnade.protocol.formats import JOURNAL

__all__ = [
    "CONTINUED",
    "FILES",
    "NOTHING",
    "RESTARTED",
    "RESUMED",
    "Contents",
    "End",
    "Journal",
    "Parts",
    "Record",
    "read_journal",
]

_MAGIC = b"CLJ%d" % JOURNAL.newest
_HEADERS = {b"CLJ5": Struct("<4sQ16s8sBQQ"), b"CLJ6": Struct("<4sQ16s8sB?QQ")}
_HEADER, _SEAL = _HEADERS[_MAGIC], Struct("<Q")
_LENGTH = Struct("<I")
_MARKED = Struct("<4sIQ")
FILES = 3  # that take turns
CONTINUED, RESUMED, RESTARTED = range(3)  # start: after a checkpoint; after a kill; and with new conversations
_HEAD = Struct("<Bq")
_NUMBERS = Struct("<qqq")
_BOTH = Struct("<Bqqqq")
# EVALUATED: received, for evaluation. REPEATED: done, and to be computed again
STARTED, RECEIVED, DONE, TIMER, JOINED, LOST, CLOSED, EVALUATED, GROUP, REPEATED = range(10)
MAX_RECORD_BYTES = 2**31
MAX_PARTS = 512  # the system writes 1,024 at once

Parts = list[bytes | memoryview]  # of one record


class Record(msgspec.Struct, frozen=True, gc=False):
    """One event in the journal. The numbers belong to the peer's conversation."""

    now: int
    event: Event
    conversation: int = 0
    sequence: int = 0
    acknowledged: int = 0  # own messages that the peer had at that time
    size: int = 0  # of a message
    evaluation: bool = False  # it was sent for evaluation
    again: str = ""  # the kind of a repeatable job that ended: read from a journal, it has no result


class End(NamedTuple):
    """Identifies the last record of one use of a file."""

    seed: int
    size: int


NOTHING = End(0, 0)


class Contents(NamedTuple):
    """What a journal holds."""

    trusted: bool  # no record can be missing at its end
    records: list[Record]
    end: End = NOTHING
    start: int = CONTINUED
    before: End = NOTHING  # the end of the journal before this one, when this one was begun
    damage: str = ""  # names the file and the place


class Journal:
    """A journal that is open for writing."""

    def __init__(
        self,
        path: Path,
        codec: Codec,
        number: int = 0,
        start: int = CONTINUED,
        before: End = NOTHING,
        disk: Disk = DISK,
        power: bool = False,
    ) -> None:
        self.path, self._codec, self._disk, self._power = path, codec, disk, power
        self._held: list[Parts] = []
        self.held_bytes = 0  # of records that `write_group` has not got yet
        header = _HEADER.pack(_MAGIC, number, disk.boot_id(), os.urandom(8), start, power, *before)
        self._seed = xxh3_64_intdigest(header)
        self._mark = _mark(self._seed)
        header += _SEAL.pack(self._seed)
        self._file = disk.open(path, os.O_WRONLY | os.O_CREAT)
        self.size = 0
        try:
            self._put([header])
            if power:  # a checkpoint will say that this journal follows it
                self.sync()
        except CheckpointError:
            self.close()
            raise

    @property
    def end(self) -> End:
        """The place after the last record."""
        return End(self._seed, self.size)

    def append(self, record: Record, frame: bytes | memoryview = b"") -> None:
        """Write one event, or hold it for a group. `frame` is the message's bytes. Raises CheckpointError."""
        now, event = record.now, record.event
        parts: Parts
        match event:
            case Received(sender=sender):
                kind = EVALUATED if record.evaluation else RECEIVED
                head = _BOTH.pack(kind, now, record.conversation, record.sequence, record.acknowledged)
                parts = [head + _name(sender), frame]
            case WorkDone(token=token) if record.again:
                parts = [_HEAD.pack(REPEATED, now), _NUMBERS.pack(token, 0, 0), _name(record.again)]
            case WorkDone(token=token, result=result):
                parts = [_HEAD.pack(DONE, now), _NUMBERS.pack(token, 0, 0), *self._codec.encode(result).parts()]
            case TimerFired(name=name, due=due):
                parts = [_HEAD.pack(TIMER, now), _NUMBERS.pack(due, 0, 0), _name(name)]
            case PeerJoined(peer=peer, reset=reset):
                numbers = _NUMBERS.pack(record.conversation, reset, 0)
                parts = [_HEAD.pack(JOINED, now), numbers, _name(peer)]
            case PeerLost(peer=peer):
                parts = [_HEAD.pack(LOST, now), _NUMBERS.pack(0, 0, 0), _name(peer)]
            case _:
                parts = [_HEAD.pack(STARTED, now)]
        if self._power:
            self._held.append(parts)
            self.held_bytes += sum(map(len, parts))
        else:
            self._write(parts)

    def take_group(self) -> list[Parts]:
        """The records that are held, for `write_group`."""
        group, self._held, self.held_bytes = self._held, [], 0
        return group

    def write_group(self, group: list[Parts]) -> None:
        """Write these records as one and sync; raises CheckpointError. May run in another thread, one at a time."""
        if len(group) == 1:
            self._write(group[0])
        else:
            sized = [[_LENGTH.pack(sum(map(len, parts))), *parts] for parts in group]
            self._write([_HEAD.pack(GROUP, 0), *itertools.chain(*sized)])
        self.sync()

    def mark_closed(self) -> None:
        """Mark a clean stop and sync: nothing is missing, even if the machine goes down afterwards."""
        self._write([_HEAD.pack(CLOSED, 0)])
        self.sync()

    def _write(self, parts: Parts) -> None:
        if len(parts) > MAX_PARTS:
            parts = [b"".join(parts)]
        checksum, length = xxh3_64(seed=self._seed), 0
        for part in parts:
            checksum.update(part)
            length += len(part)
        self._put([_MARKED.pack(self._mark, length, checksum.intdigest()), *parts])

    def _put(self, parts: Parts) -> None:
        wanted = sum(map(len, parts))
        try:
            written = self._disk.write(self._file, parts, self.size)
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be written: {error.strerror}") from None
        if written != wanted:
            raise CheckpointError(f"{self.path}: only {written} of {wanted} bytes could be written")
        self.size += written

    def sync(self) -> None:
        """Make everything that was written survive a power cut; raises CheckpointError."""
        try:
            self._disk.sync_data(self._file)
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be synced: {error.strerror}") from None

    def close(self) -> None:
        self._disk.close(self._file)


@lru_cache(256)
def _name(name: str) -> bytes:
    text = name.encode()
    return len(text).to_bytes(2, "little") + text


def _mark(seed: int) -> bytes:
    return seed.to_bytes(8, "little")[:4]


def read_journal(path: Path, codec: Codec, number: int = 0, disk: Disk = DISK) -> Contents:
    """All complete records of the journal with this number. Raises CheckpointError if it is of another release."""
    data = path.read_bytes()
    header = _header_of(data, path)
    if len(data) < header.size + _SEAL.size:  # killed while the file was made
        return Contents(False, [])
    _, found, boot, _, start, *power, before, size = header.unpack_from(data)
    seed = xxh3_64_intdigest(data[: header.size])
    if _SEAL.unpack_from(data, header.size) != (seed,):
        return Contents(False, [], damage=f"{path}: damaged: its header fails its checksum")
    if found != number:
        return Contents(False, [])
    view, place, records = memoryview(data), header.size + _SEAL.size, list[Record | None]()
    while (content := _whole(view, place, seed)) is not None:
        place += _MARKED.size + len(content)
        try:
            records += [_read(one, codec) for one in _each(content)]
        except (CodecError, StructError, ValueError) as error:
            raise CheckpointError(f"{path}: byte {place - len(content)}: {error}") from None
    damage = ""
    if _whole_after(data, place, seed):
        damage = f"{path}: damaged: the record at byte {place} fails its checksum, and others follow it"
    closed = bool(records) and records[-1] is None
    trusted = not damage and (closed or any(power) or boot == disk.boot_id())
    events = [record for record in records if record is not None]
    return Contents(trusted, events, End(seed, place), start, End(before, size), damage)


def _header_of(data: bytes, path: Path) -> Struct:
    """The header of this version; raises CheckpointError if it is of a release that this one cannot read."""
    magic = data[:4]
    if magic not in _HEADERS and magic[:3] == _MAGIC[:3] and magic[3:].isdigit():
        JOURNAL.check(int(magic[3:]), path)
    return _HEADERS.get(magic, _HEADER)


def _each(content: memoryview) -> Iterator[memoryview]:
    """The records of a group, or the one record."""
    if content[0] != GROUP:
        yield content
        return
    place = _HEAD.size
    while place < len(content):
        (length,) = _LENGTH.unpack_from(content, place)
        place += _LENGTH.size
        yield content[place : place + length]
        place += length


def _whole(data: memoryview, place: int, seed: int) -> memoryview | None:
    """The record there; None if it is not complete."""
    start = place + _MARKED.size
    if start > len(data):
        return None
    mark, length, checksum = _MARKED.unpack_from(data, place)
    if mark != _mark(seed) or length > MAX_RECORD_BYTES or length > len(data) - start:
        return None
    content = data[start : start + length]
    return content if xxh3_64_intdigest(content, seed) == checksum else None


def _whole_after(data: bytes, place: int, seed: int) -> bool:
    """Whether there is a complete record after the unreadable one at `place`."""
    mark, view = _mark(seed), memoryview(data)
    while (place := data.find(mark, place + 1)) >= 0:
        if _whole(view, place, seed) is not None:
            return True
    return False


def _read(content: memoryview, codec: Codec) -> Record | None:
    kind, now = _HEAD.unpack_from(content)
    if kind == CLOSED:
        return None
    if kind == STARTED:
        return Record(now, Started(b""))
    first, second, third = _NUMBERS.unpack_from(content, _HEAD.size)
    rest = content[_HEAD.size + _NUMBERS.size :]
    if kind == DONE:
        return Record(now, WorkDone(first, codec.decode(bytes(rest))))
    length = int.from_bytes(rest[:2], "little")
    name, frame = bytes(rest[2 : 2 + length]).decode(), rest[2 + length :]
    if kind in (RECEIVED, EVALUATED):
        received = Received(name, codec.decode(bytes(frame)))  # type: ignore[arg-type]
        return Record(now, received, first, second, third, len(frame), kind == EVALUATED)
    if kind == REPEATED:
        return Record(now, WorkDone(first, None), again=name)
    if kind == TIMER:
        return Record(now, TimerFired(name, first))
    if kind == JOINED:
        return Record(now, PeerJoined(name, bool(second)), first)
    if kind == LOST:
        return Record(now, PeerLost(name))
    raise ValueError(f"unknown kind {kind}")
