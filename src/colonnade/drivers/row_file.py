"""Rows of bytes in a sparse file that a role can take back to a checkpoint.

    NAME.rows     the rows; pages that were never written take no disk space
    NAME.undo-N   the previous values since the last checkpoint (undo.py)

The driver reads and writes rows with calls (`read_at`, `write_at`), not through a memory mapping, for two reasons:

- A full disk raises an error with a message. A write to a mapping would end the process with SIGBUS.
- The file does not count as memory of this process. With a mapping, one batch of 256 rows mapped 279 MB, because the
  kernel maps all pages that its cache holds together, up to 2 MiB for a row.

The system's cache keeps the rows that were written or read, as long as there is room.

A digest of all rows is kept up to date with every write, and each checkpoint holds it. A run that continues reads the
table once, undoes what came after the checkpoint, and compares. The digest is Σ r(row)·Σ k(word)·word mod 2⁶⁴ with odd
r and k: a write changes it by the words that change, and rows of zeros add nothing. It finds every single flipped bit.
"""

import itertools
import math
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.drivers.files import DISK, Disk, read_at
from colonnade.drivers.undo import Position, UndoLog
from colonnade.protocol.errors import CheckpointError, DamagedFile
from colonnade.protocol.messages import Array

__all__ = ["FileStorage", "RowFile"]

PART_BYTES = 2**24  # read at once when the whole file is digested


class FileStorage:
    """Implements `protocol.ports.Storage` in a folder. Without a folder, tables are temporary files without a name."""

    def __init__(
        self, folder: Path | None = None, *, empty: bool = True, disk: Disk = DISK, power: bool = False
    ) -> None:
        self._folder, self._empty, self._disk = folder, empty, disk  # empty: discard the files that are there
        self._power = power  # survive a power cut

    def rows(self, name: str, count: int, row_bytes: int, hint: str = "") -> "RowFile":
        file = RowFile(count, row_bytes, hint, self._disk, self._power)
        if self._folder is not None:
            file.open(self._folder / "table", name, empty=self._empty)
        return file


class RowFile:
    """`rows` rows of `row_bytes` bytes, in a temporary file without a name until `open` gives a folder."""

    def __init__(self, rows: int, row_bytes: int, hint: str = "", disk: Disk = DISK, power: bool = False) -> None:
        self._rows, self._row_bytes, self._hint = rows, row_bytes, hint  # hint: what would need less space
        self._disk, self._word, self._power = disk, math.gcd(row_bytes, 4), power
        self._k = _odd(np.arange(row_bytes // self._word))
        self._digest: int | None = None  # of all rows; None until an old file was read
        self._undo: UndoLog | None = None
        self._path: Path | None = None
        self._file = -1
        self._writes = 0  # to a file without a name

    def open(self, folder: Path, name: str, *, empty: bool) -> None:
        """Use the file in this folder from now on.

        If `empty`, discard what is there. Otherwise the file holds what the last process left, and `back_to` must take
        it back to the checkpoint. Raises CheckpointError if that file is missing or has another size.
        """
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = path = folder / f"{name}.rows"
        if empty:
            self._disk.unlink(path)
            self._digest = 0
        elif not path.is_file() or path.stat().st_size != self._size:
            raise CheckpointError(
                f"{path}: is missing or belongs to another run, so the run cannot continue; start a new run"
            )
        self._use(self._disk.open(path, os.O_RDWR | os.O_CREAT))
        self._undo = UndoLog(folder / name, self._write_all, self._disk, empty=empty, power=self._power)
        if self._power:
            self._disk.sync(self._file)
            self._disk.sync_folder(folder)
            self._disk.sync_folder(folder.parent)

    def _use(self, file: int) -> None:
        self._file = file
        weakref.finalize(self, self._disk.close, file)
        try:
            self._disk.truncate(file, self._size)
        except OSError as error:
            raise self._full(error, self._size, file) from None

    def _ready(self) -> None:
        """Make a temporary file, which disappears with this process, if `open` gave no folder."""
        if self._file < 0:
            with tempfile.TemporaryFile(prefix="colonnade-", suffix=".rows") as file:
                self._use(os.dup(file.fileno()))  # the duplicate descriptor keeps the file

    @property
    def _size(self) -> int:
        return self._rows * self._row_bytes

    def position(self) -> Any:
        """The value that `back_to` and `keep_from` take. With `power`, syncs the rows, which a checkpoint rests on."""
        if self._power and self._undo is not None:
            self._disk.sync_data(self._file)
        return self._writes if self._undo is None else (*self._undo.end, self._digest)

    def back_to(self, position: Any) -> None:
        """Undo all writes since this position; raises CheckpointError if there is no undo log to do so.

        Raises DamagedFile if the rows are not those of that position; an earlier position may then still be reached.
        """
        if self._undo is not None:
            *end, digest = position
            if self._digest is None:
                self._digest = self._digest_of_all()
            self._undo.back_to(Position(*end), self._take_back, lambda: self._verify(digest))
        elif self._writes and position != self._writes:
            raise CheckpointError("a table without a run folder cannot return to a checkpoint; add --out DIR")
        # else: the caller reads the state of a run only for its networks

    def keep_from(self, position: Any) -> None:
        """Drop the undo records before this position, because its checkpoint is on the disk."""
        if self._undo is not None:
            self._undo.keep_from(Position(*position[:-1]))

    def read(self, rows: Array) -> Array:
        """Read sorted rows; uint8 (rows, row_bytes)."""
        self._ready()
        values, file, read = np.empty((len(rows), self._row_bytes), np.uint8), self._file, read_at
        flat = values.reshape(-1).data
        for start, stop, place in _runs(rows, self._row_bytes):
            read(file, [flat[start:stop]], place)
        return values

    def replace(self, rows: Array, before: Array, after: Array, spans: list[tuple[int, int]]) -> None:
        """Log the previous values of sorted rows in these spans of bytes, then write the new ones."""
        if self._undo is not None:
            parts = [np.ascontiguousarray(before[:, start:stop]).data.cast("B") for start, stop in spans]
            head = np.array([len(rows), len(spans), *itertools.chain(*spans)], "<i8").tobytes()
            self._undo.append([head, rows.astype("<i4").data.cast("B"), *parts])
            self._note(rows, before, after, spans)
        self._writes += 1
        self._put(rows, after)

    def _take_back(self, content: bytes) -> None:
        """Write back the old values of one record of the undo log."""
        count, spans = np.frombuffer(content, "<i8", 2).tolist()
        edges = np.frombuffer(content, "<i8", 2 * spans, 16).reshape(-1, 2).tolist()
        offset = 16 * (1 + spans)
        rows = np.frombuffer(content, "<i4", count, offset)
        offset += 4 * count
        table = self.read(rows)
        before = table.copy()
        for start, stop in edges:
            size = count * (stop - start)
            table[:, start:stop] = np.frombuffer(content, np.uint8, size, offset).reshape(count, -1)
            offset += size
        self._note(rows, before, table, edges)
        self._put(rows, table)

    def _note(self, rows: Array, before: Array, after: Array, spans: Iterable[Sequence[int]]) -> None:
        """Take into the digest that these rows change in these spans."""
        assert self._digest is not None
        old, new, more = self._words(before), self._words(after), np.zeros(len(rows), np.uint64)
        for start, stop in spans:
            words = slice(start // self._word, -(-stop // self._word))
            more += (new[:, words].astype(np.uint64) - old[:, words]) @ self._k[words]
        self._digest = (self._digest + int((more * _odd(rows)).sum())) % 2**64

    def _words(self, rows: Array) -> Array:
        return rows.view(f"<u{self._word}")

    def _digest_of_all(self) -> int:
        step, found = max(1, PART_BYTES // self._row_bytes), 0
        for first in range(0, self._rows, step):
            rows = np.arange(first, min(first + step, self._rows))
            words = self._words(self.read(rows)).astype(np.uint64)
            found += int((words @ self._k * _odd(rows)).sum())  # arrays of integers wrap around
        return found % 2**64

    def _verify(self, digest: int) -> None:
        if self._digest != digest:
            raise DamagedFile(f"{self._path}: damaged: its rows are not those of the checkpoint")
        if self._power:
            self._disk.sync_data(self._file)  # the log forgets what was undone

    def _put(self, rows: Array, values: Array) -> None:
        """Write sorted rows."""
        flat, file, write = values.reshape(-1).data, self._file, self._write_all
        for start, stop, place in _runs(rows, self._row_bytes):
            write(file, [flat[start:stop]], place)

    def _write_all(self, file: int, parts: list[bytes | memoryview], offset: int) -> None:
        wanted = sum(map(len, parts))
        try:
            written = self._disk.write(file, parts, offset)
            while written < wanted:  # only a part was written: the next call raises the reason
                written += self._disk.write(file, [b"".join(parts)[written:]], offset + written)
        except OSError as error:
            raise self._full(error, wanted, file) from None

    def _full(self, error: OSError, wanted: int, file: int) -> CheckpointError:
        where, mb = self._path or Path(tempfile.gettempdir()) / "a temporary file", 1e6
        free = shutil.disk_usage(where.parent).free
        rest = 0
        if sys.platform != "win32":  # Windows allocates the whole file at once
            rest = max(self._size - os.fstat(self._file).st_blocks * 512, 0)
        which = where if file == self._file else where.with_suffix(".undo")
        return CheckpointError(
            f"{which}: cannot be written ({error.strerror}): {wanted / mb:.3f} MB more are needed now, up to "
            f"{rest / mb:.1f} MB for the rest of the table, and {free / mb:.1f} MB are free there; free some "
            f"space, then continue from the checkpoint (--resume, or start the server again){self._hint}"
        )


def _odd(numbers: Array) -> Array:
    """A fixed odd factor for each number, by the finaliser of SplitMix64 (Steele et al. 2014)."""
    x = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = (x ^ (x >> np.uint64(31))) | np.uint64(1)
    return mixed


def _runs(rows: Array, size: int) -> Iterator[tuple[int, int, int]]:
    """Group sorted rows into consecutive runs: (start, stop) in memory and the place in the file, all in bytes."""
    if not len(rows):
        return iter(())
    edges = np.concatenate([[0], np.flatnonzero(np.diff(rows) != 1) + 1, [len(rows)]])
    places = rows[edges[:-1]].astype(np.int64) * size
    bytes = (edges * size).tolist()
    return zip(bytes, bytes[1:], places.tolist(), strict=False)
