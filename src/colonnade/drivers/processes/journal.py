"""The journal of a node: every event for its role, appended before the role handles it.

    file      magic "CLJ4" · number (8 bytes) · boot id (16) · salt (8) · records
    record    length (4) · checksum over header and record (8) · kind (1) · now (8) · content

A node that restarts loads its checkpoint and replays the journal. Appends survive `kill -9`. Only a machine that goes
down can lose some of them, and then the boot id differs. A torn last record was never handled and is left out.

Two files take turns and are overwritten, which costs half as much as growing a new file. The salt separates old records
from new ones.
Secrets are not written: `Started` and `Resumed` are stored without their entropy.
"""

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import BinaryIO

import msgspec
from xxhash import xxh3_64, xxh3_64_intdigest

from colonnade.drivers.files import BINARY, write_at
from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import CheckpointError, CodecError
from colonnade.protocol.events import Event, PeerJoined, PeerLost, Received, Started, TimerFired, WorkDone

__all__ = ["Journal", "Record", "boot_id", "read_journal"]

_MAGIC = b"CLJ4"
_HEADER = Struct("<4sQ16s8s")
_FRAME = Struct("<IQ")
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


def boot_id() -> bytes:
    """An id that changes when the machine restarts; zeros if the system gives none."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        return bytes.fromhex(text.strip().replace("-", ""))[:16].ljust(16, b"\0")
    except (OSError, ValueError):
        return bytes(16)  # not Linux: a restart cannot be detected, so every boot looks the same


class Journal:
    """A journal that is open for writing."""

    def __init__(self, path: Path, codec: Codec, number: int = 0) -> None:
        self.path, self._codec = path, codec
        header = _HEADER.pack(_MAGIC, number, boot_id(), os.urandom(8))
        self._seed = xxh3_64_intdigest(header)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | BINARY, 0o600)
        write_at(self._file, [header], 0)
        self.size = len(header)

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
        frame = _FRAME.pack(length, checksum.intdigest())
        try:
            written = write_at(self._file, [frame, *parts], self.size)
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be written: {error.strerror}") from None
        if written != len(frame) + length:
            raise CheckpointError(f"{self.path}: only {written} of {len(frame) + length} bytes could be written")
        self.size += written

    def sync(self) -> None:
        """Make everything so far survive a power cut."""
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


@lru_cache(256)
def _name(name: str) -> bytes:
    text = name.encode()
    return len(text).to_bytes(2, "little") + text


def read_journal(path: Path, codec: Codec, number: int = 0) -> tuple[bool, list[Record]]:
    """Whether no record can be missing, and all complete records of the journal with this number."""
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:  # killed while the file was made
            return False, []
        magic, found, boot, _ = _HEADER.unpack(header)
        if magic != _MAGIC:
            raise CheckpointError(f"{path}: not a journal of this release")
        if found != number:
            return False, []
        seed = xxh3_64_intdigest(header)
        records = list(_records(file, codec, seed))
        damaged = _whole(file, seed) is not None  # an unreadable record with a complete one after it
    closed = bool(records) and records[-1] is None
    trusted = closed or (boot == boot_id() and not damaged)
    return trusted, [record for record in records if record is not None]


def _records(file: BinaryIO, codec: Codec, seed: int) -> Iterator[Record | None]:
    """Yield records until the first one that is torn or left over from an earlier use of the file."""
    while (content := _whole(file, seed)) is not None:
        try:
            yield _read(memoryview(content), codec)
        except (CodecError, StructError, ValueError) as error:
            raise CheckpointError(f"{file.name}: byte {file.tell() - len(content)}: {error}") from None


def _whole(file: BinaryIO, seed: int) -> bytes | None:
    """The next record; None if it is not complete."""
    frame = file.read(_FRAME.size)
    if len(frame) < _FRAME.size:
        return None
    length, checksum = _FRAME.unpack(frame)
    content = file.read(length) if length <= MAX_RECORD_BYTES else b""
    return content if len(content) == length and xxh3_64_intdigest(content, seed) == checksum else None


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
