"""The server's table in a file: a row is all parties' embeddings and when each was renewed.

    NAME.rows     rows × (Σwidth floats, parties int32), sparse: pages that nobody wrote take no room
    NAME.undo-N   what was there before, since the last checkpoint (undo.py)

Rows are read and written by calls (`preadv`, `pwritev`), not through a mapping: a full disk is an error with words,
where a mapped write would end the process with SIGBUS; and nothing of the table counts as this process's memory, where
one batch of 256 rows was seen to map 279 MB (the kernel maps all that its cache holds together, up to 2 MiB for a row).
What was written or read is in the system's cache as long as there is room. A checkpoint holds a position of the undo
log instead of the table.
"""

import itertools
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.algorithms.evaluation import Evaluation
from colonnade.algorithms.table import Ages, EmbeddingTable
from colonnade.algorithms.undo import Position, UndoLog
from colonnade.protocol.errors import CheckpointError
from colonnade.protocol.messages import Array

__all__ = ["FileTable", "Tabled", "Tables"]

PART_BYTES = 2**26  # of looks at the whole table


class FileTable(EmbeddingTable):
    """The same in a file of its own; one without a name until `open` says where."""

    def __init__(self, rows: int, widths: Sequence[int], dtype: str = "float32") -> None:
        super().__init__(0, widths, dtype)
        self._rows = rows
        fields = [("values", self.dtype, (sum(self.widths),)), ("renewed", "<i4", (len(self.widths),))]
        self._row = np.dtype(fields)
        self._undo: UndoLog | None = None
        self._path: Path | None = None
        self._file = -1
        self._writes = 0  # to a file without a name
        self._forget()

    def __len__(self) -> int:
        return self._rows

    # Where it lies

    def open(self, folder: Path, name: str, *, anew: bool) -> None:
        """Lie there from now on: empty, or as it was left, for `load` to take back to the checkpoint."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = path = folder / f"{name}.rows"
        if anew:
            path.unlink(missing_ok=True)
        elif not path.is_file() or path.stat().st_size != self._size:
            raise CheckpointError(f"{path}: missing, or of another run: without it the run cannot go on; start anew")
        self._use(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        self._undo = UndoLog(folder / name, self._write_all, anew=anew)

    def _use(self, file: int) -> None:
        self._file = file
        weakref.finalize(self, os.close, file)
        try:
            os.ftruncate(file, self._size)
        except OSError as error:
            raise self._full(error, self._size, file) from None

    def _ready(self) -> None:
        """Without a folder it lies where temporary files do, and goes with this process."""
        if self._file < 0:
            file, name = tempfile.mkstemp(prefix="colonnade-", suffix=".rows")
            os.unlink(name)  # noqa: PTH108 - the file stays as long as it is open
            self._use(file)

    @property
    def _size(self) -> int:
        return self._rows * self._row.itemsize

    # What it holds

    def gather(self, rows: Array) -> Array:
        """The newest embeddings of these rows, float32."""
        held, places = self._look(rows)
        return self._as_read(held[places], rows)

    def parts(self) -> Iterator[Array]:
        """All rows, some at a time."""
        for rows in self._parts():
            yield self._as_read(self._read(rows), rows)

    def _parts(self) -> Iterator[Array]:
        step = max(1, PART_BYTES // self._row.itemsize)
        return (np.arange(start, min(start + step, self._rows)) for start in range(0, self._rows, step))

    def _as_read(self, held: Array, rows: Array) -> Array:
        values: Array = held["values"].astype(np.float32)
        if self._absent is not None:
            self.blank(values, self._absent[rows])
        return values

    def ages(self, rows: Array, k: int) -> Ages:
        """τ of every party's block of these rows: (rows, parties)."""
        held, places = self._look(rows)
        ages: Ages = k - held["renewed"][places]
        return ages

    def ages_of(self, party: int, rows: Array, k: int) -> Ages:
        """τ of one party's block of these rows."""
        return self.ages(rows, k)[:, party]

    def newest(self) -> int:
        """The last update at which any block was renewed."""
        return max(int(self._read(rows)["renewed"].max()) for rows in self._parts())

    def lack(self, absent: Array) -> None:
        """bool (rows, parties): blocks that their party does not have are read as NaN, whatever it sends for them."""
        self._absent = absent

    def write(self, party: int, rows: Array, values: Array, k: int) -> None:
        """Rows of one party as of update k."""
        if not len(rows):
            return
        rows, last = _last_of_each(rows)
        before, _ = self._look(rows)
        after, block = before.copy(), self.blocks[party]
        after["values"][:, block] = self.held(np.asarray(values)[last])
        after["renewed"][:, party] = k
        start = self._renewed_at(party)
        item = self.dtype.itemsize
        self._replace(rows, before, after, [(block.start * item, block.stop * item), (start, start + 4)])

    def renew(self, parties: Sequence[int], rows: Array, k: int) -> None:
        """These rows of these parties are as of update k, unchanged."""
        rows = np.unique(rows[(self.ages(rows, k)[:, parties] != 0).any(1)])
        if not len(rows):
            return
        before, _ = self._look(rows)
        after = before.copy()
        after["renewed"][:, parties] = k
        self._replace(
            rows, before, after, [(self._renewed_at(min(parties)), self._renewed_at(max(parties) + 1))]
        )  # fmt: skip

    def _renewed_at(self, party: int) -> int:
        """The byte of a row at which a party's int32 begins."""
        return sum(self.widths) * self.dtype.itemsize + 4 * party

    # Checkpoints

    def save(self) -> dict[str, Any]:
        """A position to come back to; the table itself stays where it is."""
        where = self._writes if self._undo is None else tuple(self._undo.end)
        return {"at": where, "clipped": self.clipped}

    def load(self, saved: dict[str, Any]) -> None:
        """The reverse of `save`: undo what was written since."""
        self.clipped, where = saved["clipped"], saved["at"]
        if self._undo is not None:
            self._undo.back_to(Position(*where), self._take_back)
            self._forget()
        elif self._writes and where != self._writes:
            raise CheckpointError("a table without a run folder cannot go back; give the run an --out")
        # else: somebody reads the state of a run, and needs its networks only

    def kept(self, saved: dict[str, Any]) -> None:
        """A checkpoint with this state is on the disk: nobody goes back to before it."""
        if self._undo is not None:
            self._undo.keep_from(Position(*saved["at"]))

    def _replace(self, rows: Array, before: Array, after: Array, spans: list[tuple[int, int]]) -> None:
        """Note what was there, then write."""
        if self._undo is not None:
            old = _as_bytes(before)
            parts = [np.ascontiguousarray(old[:, start:stop]).data.cast("B") for start, stop in spans]
            head = np.array([len(rows), len(spans), *itertools.chain(*spans)], "<i8").tobytes()
            self._undo.append([head, rows.astype("<i4").data.cast("B"), *parts])
        self._writes += 1
        self._forget()
        self._put(rows, after)
        self._seen = rows, after

    def _take_back(self, content: bytes) -> None:
        """One record of the undo log."""
        count, spans = np.frombuffer(content, "<i8", 2).tolist()
        edges = np.frombuffer(content, "<i8", 2 * spans, 16).reshape(-1, 2).tolist()
        offset = 16 * (1 + spans)
        rows = np.frombuffer(content, "<i4", count, offset)
        offset += 4 * count
        values = self._read(rows)
        table = _as_bytes(values)
        for start, stop in edges:
            size = count * (stop - start)
            table[:, start:stop] = np.frombuffer(content, np.uint8, size, offset).reshape(count, -1)
            offset += size
        self._put(rows, values)

    # The file

    def _look(self, rows: Array) -> tuple[Array, Array]:
        """Rows as they lie there, sorted, and which of them is meant where; the last ones are remembered."""
        wanted, places = np.unique(rows, return_inverse=True)
        if not np.array_equal(wanted, self._seen[0]):
            self._seen = wanted, self._read(wanted)
        return self._seen[1], places

    def _forget(self) -> None:
        self._seen = np.zeros(0, np.int64), np.zeros(0, self._row)

    def _read(self, rows: Array) -> Array:
        """Sorted rows."""
        self._ready()
        values, file, preadv = np.empty(len(rows), self._row), self._file, os.preadv
        flat = values.view(np.uint8).data
        for start, stop, place in _runs(rows, self._row.itemsize):
            preadv(file, [flat[start:stop]], place)
        return values

    def _put(self, rows: Array, values: Array) -> None:
        """Sorted rows."""
        flat, file, write = values.view(np.uint8).data, self._file, self._write_all
        for start, stop, place in _runs(rows, self._row.itemsize):
            write(file, [flat[start:stop]], place)

    def _write_all(self, file: int, parts: list[bytes | memoryview], offset: int) -> None:
        wanted = sum(map(len, parts))
        try:
            written = os.pwritev(file, parts, offset)
            while written < wanted:  # there was room for a part of it: ask for the rest, to hear why not
                written += os.pwrite(file, b"".join(parts)[written:], offset + written)
        except OSError as error:
            raise self._full(error, wanted, file) from None

    def _full(self, error: OSError, wanted: int, file: int) -> CheckpointError:
        where, mb = self._path or Path(tempfile.gettempdir()) / "a temporary file", 1e6
        free = shutil.disk_usage(where.parent).free
        rest = max(self._size - os.fstat(self._file).st_blocks * 512, 0)
        which = where if file == self._file else where.with_suffix(".undo")
        smaller = '; server.table_dtype = "float16" halves the table of a new run' if self.dtype == np.float32 else ""
        return CheckpointError(
            f"{which}: cannot be written ({error.strerror}): {wanted / mb:.3f} MB more are needed now, up to "
            f"{rest / mb:.1f} MB for the rest of the table, and {free / mb:.1f} MB are free there; make room, then go "
            f"on from the checkpoint (--resume, or start the server again){smaller}"
        )


@dataclass(frozen=True, slots=True)
class Tables:
    """Where and how a server keeps its tables: `[server] table` and `table_dtype`."""

    where: str = "memory"  # or "file"
    dtype: str = "float32"  # or "float16"

    def to_train(self, rows: int, widths: Sequence[int]) -> EmbeddingTable:
        """The table that VAFL and its kin learn from."""
        return self._made(rows, widths, self.dtype)

    def to_judge(self, rows: int, widths: Sequence[int]) -> EmbeddingTable:
        """The test rows: judged as they came, never rounded."""
        return self._made(rows, widths, "float32")

    def _made(self, rows: int, widths: Sequence[int], dtype: str) -> EmbeddingTable:
        return (FileTable if self.where == "file" and rows else EmbeddingTable)(rows, widths, dtype)


class Tabled:
    """A server with tables that may lie in files."""

    table: EmbeddingTable
    evaluation: Evaluation

    def open(self, folder: Path, *, anew: bool) -> None:
        """See `protocol.role.KeepsFiles`."""
        self.table.open(folder / "table", "train", anew=anew)
        self.evaluation.table.open(folder / "table", "test", anew=anew)

    def kept(self, state: dict[str, Any]) -> None:
        """See `protocol.role.KeepsFiles`."""
        self.table.kept(state["table"])
        self.evaluation.table.kept(state["evaluation"]["table"])


def _last_of_each(rows: Array) -> tuple[Array, Array]:
    """Sorted rows, each once, and the places of their last occurrence."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    last = np.append(ordered[1:] != ordered[:-1], True)
    return ordered[last], order[last]


def _runs(rows: Array, size: int) -> Iterator[tuple[int, int, int]]:
    """Sorted rows of so many bytes that follow each other: from where to where in memory, and where in the file."""
    if not len(rows):
        return iter(())
    edges = np.concatenate([[0], np.flatnonzero(np.diff(rows) != 1) + 1, [len(rows)]])
    places = rows[edges[:-1]].astype(np.int64) * size
    bytes = (edges * size).tolist()
    return zip(bytes, bytes[1:], places.tolist(), strict=False)


def _as_bytes(rows: Array) -> Array:
    """(rows, bytes)"""
    found: Array = rows.view(np.uint8).reshape(len(rows), rows.dtype.itemsize)
    return found
