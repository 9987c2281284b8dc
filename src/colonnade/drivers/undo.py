"""The previous values of a file of rows: enough to take the file back to any position that is still kept.

    STEM.undo-N   magic "CLU2" · N (8 bytes) · chain of the file before (4) · salt (8) · records
    record        length (4) · chain (4) · crc32 of both (4) · content
    chain         crc32 of the record's content, begun with the chain before it

A position is (N, bytes, chain). The chain distinguishes a position of this history from one of another history.

A record is appended before its rows are written. So a kill at any moment leaves at most a torn last record, whose rows
are still unchanged. A torn record ends with the file. Any other fault in a record is damage, and is refused.
Undoing writes the old values, newest first. It can be killed and started again.

The log leads back to the checkpoint before the last one, in case the last one is damaged.

With `power`, a record is synced before its rows are written, so that a power cut is as harmless as a kill. Without it,
nothing here is durable: after a power cut the rows may be of any time, and their digest tells (row_file.py).
"""

import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from colonnade.drivers.files import BINARY, Disk, read_at
from colonnade.protocol.errors import DamagedFile
from colonnade.protocol.formats import UNDO

__all__ = ["Position", "UndoLog"]

_MAGIC = b"CLU%d" % UNDO.newest
_HEADER = Struct("<4sQI8s")
_FRAME, _PAIR = Struct("<III"), Struct("<II")

Write = Callable[[int, list[bytes | memoryview], int], None]  # file, parts, offset; writes all parts or raises


class Position(NamedTuple):
    """The end of the log at some time."""

    number: int
    size: int
    chain: int


class _Segment(NamedTuple):
    """One file of the log, as found on the disk."""

    number: int
    before: int  # the chain of the previous file
    ends: list[Position]  # after the header, and after each complete record


class UndoLog:
    """One log, in one file or in several consecutive files."""

    def __init__(self, stem: Path, write: Write, disk: Disk, *, empty: bool, power: bool = False) -> None:
        self._stem, self._write, self._disk, self._power = stem, write, disk, power
        self._file = -1
        self._kept = 0  # the number of the file that the last checkpoint needs
        self.end = Position(-1, 0, 0)  # until `back_to`
        if empty:
            for number in self._numbers():
                disk.unlink(self._path(number))
            self._begin(0, 0)

    def append(self, content: list[bytes | memoryview]) -> None:
        """Append one record. The caller writes its rows afterwards."""
        number, size, chain = self.end
        for part in content:
            chain = crc32(part, chain)
        length = sum(map(len, content))
        self._write(self._file, [_FRAME.pack(length, chain, _check(length, chain)), *content], size)
        if self._power:
            self._disk.sync_data(self._file)
        self.end = Position(number, size + _FRAME.size + length, chain)

    def keep_from(self, position: Position) -> None:
        """Remove the files that only lead back to before the previous position of this call."""
        if position == self.end:
            self._begin(position.number + 1, position.chain)  # first: one of the two always tells what came before
            position = self.end
        for number in self._numbers():
            if number < self._kept:
                self._disk.unlink(self._path(number))
        self._kept = position.number

    def back_to(self, position: Position, undo: Callable[[bytes], None], verify: Callable[[], None]) -> None:
        """Call `undo` with each record after the position, newest first, then `verify`; then remove these records."""
        segments = self._found(position)
        for segment in reversed(segments):
            for content in self._contents_after(segment, position):
                undo(content)
        verify()
        self._forget(segments, position)
        self._kept = self.end.number

    def _found(self, position: Position) -> list[_Segment]:
        """The files from the position on; raises DamagedFile if they do not lead back to it."""
        read = [self._read(number) for number in self._numbers() if number >= position.number]
        segments = [segment for segment in read if segment is not None]
        first = segments[0] if segments else None
        here = first is not None and first.number == position.number and position in first.ends
        follows = first is not None and (first.number, first.before) == (position.number + 1, position.chain)
        if not here and not follows:
            raise DamagedFile(
                f"{self._stem}.undo-*: these files do not lead back to the checkpoint: it belongs to another "
                "run, or was used since. Start a new run in another folder"
            )
        for one, other in pairwise(segments):
            if (other.number, other.before) != (one.number + 1, one.ends[-1].chain):
                raise DamagedFile(f"{self._path(one.number)}: damaged: its end is missing")
        return segments

    def _contents_after(self, segment: _Segment, position: Position) -> Iterator[bytes]:
        file = os.open(self._path(segment.number), os.O_RDONLY | BINARY)
        try:
            for before, end in reversed(list(zip(segment.ends, segment.ends[1:], strict=False))):
                if end.number == position.number and end.size <= position.size:
                    return
                start = before.size + _FRAME.size
                content = bytearray(end.size - start)
                found = read_at(file, [memoryview(content)], start)
                yield bytes(content[:found])
        finally:
            os.close(file)

    def _forget(self, segments: list[_Segment], position: Position) -> None:
        """Remove the newest file first: after a kill, the files that are left can still undo the rest."""
        self.close()  # Windows cannot remove an open file
        for segment in reversed(segments[1:]):
            self._disk.unlink(self._path(segment.number))
        first = segments[0]
        self._leave(first.number, position if first.number == position.number else first.ends[0])
        for number in self._numbers():
            if number > first.number:
                self._disk.unlink(self._path(number))
        if self._power:
            self._disk.sync_folder(self._stem.parent)  # a file that came back would not follow the next records

    def _leave(self, number: int, end: Position) -> None:
        self._file, self.end = self._disk.open(self._path(number), os.O_RDWR), end
        self._disk.truncate(self._file, end.size)

    def _begin(self, number: int, before: int) -> None:
        header = _HEADER.pack(_MAGIC, number, before, os.urandom(8))
        file = self._disk.open(self._path(number), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            self._write(file, [header], 0)
            if self._power:
                self._disk.sync_data(file)
                self._disk.sync_folder(self._stem.parent)
        except BaseException:
            self._disk.close(file)
            raise
        self.close()
        self._file, self.end = file, Position(number, len(header), crc32(header))

    def _read(self, number: int) -> _Segment | None:
        """None if a kill interrupted the writing of the header."""
        with self._path(number).open("rb") as file:
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size:
                return None
            magic, found, before, _ = _HEADER.unpack(header)
            if magic != _MAGIC and magic[:3] == _MAGIC[:3]:
                UNDO.check(magic[3] - ord("0"), self._path(number))
            if (magic, found) != (_MAGIC, number):
                raise DamagedFile(f"{self._path(number)}: damaged, or not an undo file")
            ends = [Position(number, len(header), crc32(header))]
            while True:
                frame = file.read(_FRAME.size)
                if len(frame) < _FRAME.size:
                    return _Segment(number, before, ends)
                length, chain, check = _FRAME.unpack(frame)
                if check != _check(length, chain):
                    raise self._damaged(ends[-1])
                content = file.read(length)
                if len(content) < length:
                    return _Segment(number, before, ends)  # torn: its rows were not written yet
                if crc32(content, ends[-1].chain) != chain:
                    raise self._damaged(ends[-1])
                ends.append(Position(number, ends[-1].size + _FRAME.size + length, chain))

    def _damaged(self, end: Position) -> DamagedFile:
        return DamagedFile(f"{self._path(end.number)}: damaged: the record at byte {end.size} fails its checksum")

    def _path(self, number: int) -> Path:
        return self._stem.with_name(f"{self._stem.name}.undo-{number}")

    def _numbers(self) -> list[int]:
        names = self._stem.parent.glob(f"{self._stem.name}.undo-*")
        return sorted(int(path.name.rpartition("-")[2]) for path in names)

    def close(self) -> None:
        if self._file >= 0:
            self._disk.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self.close()


def _check(length: int, chain: int) -> int:
    return crc32(_PAIR.pack(length, chain))
