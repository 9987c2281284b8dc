"""The journal of a node: every event for its role, appended before the role handles it.

    file      magic "CLJ5" · number (8 bytes) · boot id (16) · salt (8) · start (1) · end of the journal before (16) ·
              xxh3 of these (8) · records
    record    mark (4) · length (4) · checksum over header and record (8) · kind (1) · now (8) · content

A node that restarts loads its checkpoint and replays the journal. Appends survive `kill -9`. Only a machine that goes
down can lose some of them, and then the boot id differs. A torn last record was never handled and is left out.
If a whole record follows an unreadable one, then the file is damaged; the mark finds that record.

Three files take turns and are overwritten, which costs half as much as growing a new file. The salt separates old
records from new ones. If the newest checkpoint is damaged, the node loads the one before it and replays two journals.
The header of the second tells whether the first is complete, and what the node did in between (`start`).
Secrets are not written: `Started` and `Resumed` are stored without their entropy.
"""

import os
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

__all__ = [
    "CONTINUED",
    "FILES",
    "NOTHING",
    "RESTARTED",
    "RESUMED",
    "Contents",
    "End",
    "Journal",
    "Record",
    "read_journal",
]

_MAGIC = b"CLJ5"
_HEADER, _SEAL = Struct("<4sQ16s8sBQQ"), Struct("<Q")
_MARKED = Struct("<4sIQ")
FILES = 3  # that take turns
CONTINUED, RESUMED, RESTARTED = range(3)  # start: after a checkpoint; after a kill; and with new conversations
_HEAD = Struct("<Bq")
_NUMBERS = Struct("<qqq")
_BOTH = Struct("<Bqqqq")
STARTED, RECEIVED, DONE, TIMER, JOINED, LOST, CLOSED, EVALUATED = range(8)  # EVALUATED: received for evaluation
MAX_RECORD_BYTES = 2**31
MAX_PARTS = 512  # the system writes 1,024 at once


class Record(msgspec.Struct, frozen=True, gc=False):
    """One event in the journal. The numbers belong to the peer's conversation."""

    now: int
    event: Event
    conversation: int = 0
    sequence: int = 0
    acknowledged: int = 0  # own messages that the peer had at that time
    size: int = 0  # of a message
    evaluation: bool = False  # it was sent for evaluation


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
    ) -> None:
        self.path, self._codec, self._disk = path, codec, disk
        header = _HEADER.pack(_MAGIC, number, disk.boot_id(), os.urandom(8), start, *before)
        self._seed = xxh3_64_intdigest(header)
        self._mark = _mark(self._seed)
        header += _SEAL.pack(self._seed)
        self._file = disk.open(path, os.O_WRONLY | os.O_CREAT)
        self.size = 0
        try:
            self._put([header])
        except CheckpointError:
            self.close()
            raise

    @property
    def end(self) -> End:
        """The place after the last record."""
        return End(self._seed, self.size)

    def append(self, record: Record, frame: bytes | memoryview = b"") -> None:
        """Write one event. `frame` is the message's bytes as they arrived. Raises CheckpointError."""
        now, event = record.now, record.event
        parts: list[bytes | memoryview]
        match event:
            case Received(sender=sender):
                kind = EVALUATED if record.evaluation else RECEIVED
                head = _BOTH.pack(kind, now, record.conversation, record.sequence, record.acknowledged)
                parts = [head + _name(sender), frame]
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
        self._write(parts)

    def mark_closed(self) -> None:
        """Mark a clean stop and sync: nothing is missing, even if the machine goes down afterwards."""
        self._write([_HEAD.pack(CLOSED, 0)])
        self.sync()

    def _write(self, parts: list[bytes | memoryview]) -> None:
        if len(parts) > MAX_PARTS:
            parts = [b"".join(parts)]
        checksum, length = xxh3_64(seed=self._seed), 0
        for part in parts:
            checksum.update(part)
            length += len(part)
        self._put([_MARKED.pack(self._mark, length, checksum.intdigest()), *parts])

    def _put(self, parts: list[bytes | memoryview]) -> None:
        wanted = sum(map(len, parts))
        try:
            written = self._disk.write(self._file, parts, self.size)
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be written: {error.strerror}") from None
        if written != wanted:
            raise CheckpointError(f"{self.path}: only {written} of {wanted} bytes could be written")
        self.size += written

    def sync(self) -> None:
        """Make everything so far survive a power cut."""
        self._disk.sync(self._file)

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
    if len(data) < _HEADER.size + _SEAL.size:  # killed while the file was made
        return Contents(False, [])
    magic, found, boot, _, start, *before = _HEADER.unpack_from(data)
    seed = xxh3_64_intdigest(data[: _HEADER.size])
    if _SEAL.unpack_from(data, _HEADER.size) != (seed,):
        if magic != _MAGIC and magic[:3] == _MAGIC[:3]:
            raise CheckpointError(
                f"{path}: a journal of another release, or damaged; start a new run in another folder"
            )
        return Contents(False, [], damage=f"{path}: damaged: its header fails its checksum")
    if found != number:
        return Contents(False, [])
    view, place, records = memoryview(data), _HEADER.size + _SEAL.size, []
    while (content := _whole(view, place, seed)) is not None:
        place += _MARKED.size + len(content)
        try:
            records.append(_read(content, codec))
        except (CodecError, StructError, ValueError) as error:
            raise CheckpointError(f"{path}: byte {place - len(content)}: {error}") from None
    damage = ""
    if _whole_after(data, place, seed):
        damage = f"{path}: damaged: the record at byte {place} fails its checksum, and others follow it"
    closed = bool(records) and records[-1] is None
    trusted = not damage and (closed or boot == disk.boot_id())
    events = [record for record in records if record is not None]
    return Contents(trusted, events, End(seed, place), start, End(*before), damage)


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
    if kind == TIMER:
        return Record(now, TimerFired(name, first))
    if kind == JOINED:
        return Record(now, PeerJoined(name, bool(second)), first)
    if kind == LOST:
        return Record(now, PeerLost(name))
    raise ValueError(f"unknown kind {kind}")
