"""The server's table in a file. A row holds all parties' embeddings and the update at which each was renewed.

    row   Σwidth floats · parties int32

A driver opens the file as a port (`protocol.ports.Rows`). A checkpoint holds a position in the file, not the table.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from colonnade.algorithms.evaluation import Evaluation
from colonnade.algorithms.table import Ages, EmbeddingTable, Fill, blank
from colonnade.protocol.errors import LocalProtocolError
from colonnade.protocol.messages import Array
from colonnade.protocol.ports import Rows, Storage

__all__ = ["FileTable", "Tables", "TablesInFiles"]

PART_BYTES = 2**26  # size of one part when the whole table is read


class FileTable(EmbeddingTable):
    """An `EmbeddingTable` in a file. A driver must call `open` before use; other calls raise LocalProtocolError."""

    def __init__(self, rows: int, widths: Sequence[int], dtype: str = "float32", fill: bool = False) -> None:
        super().__init__(0, widths, dtype)
        self._rows, self._first = rows, int(fill)
        self.fill = Fill(rows, widths) if fill else None
        fields = [("values", self.dtype, (sum(self.widths),)), ("renewed", "<i4", (len(self.widths),))]
        self._row = np.dtype(fields)
        self._opened: Rows | None = None
        self._seen: tuple[Array, Array]  # the last rows read, sorted, and their records
        self._forget()

    def __len__(self) -> int:
        return self._rows

    def open(self, storage: Storage, name: str) -> None:
        """Use the file `name` of `storage`: a new one, or an old one that `load` takes back to the checkpoint."""
        smaller = '; server.table_dtype = "float16" halves the table of a new run'
        hint = smaller if self.dtype == np.float32 else ""
        self._opened = storage.rows(name, self._rows, self._row.itemsize, hint)

    @property
    def _file(self) -> Rows:
        if self._opened is None:
            raise LocalProtocolError("the table file was used before a driver opened it")
        return self._opened

    # What it holds

    def gather(self, rows: Array) -> Array:
        """Return the newest embeddings of these rows, float32 (rows, Σ widths)."""
        held, places = self._look(rows)
        return self._as_read(held[places], rows)

    def parts(self, start: int, stop: int) -> Iterator[Array]:
        """Yield the rows start..stop as float32, PART_BYTES of the file at a time."""
        for rows in self._parts(start, stop):
            yield self._as_read(self._read(rows), rows)

    def _parts(self, start: int, stop: int) -> Iterator[Array]:
        step = max(1, PART_BYTES // self._row.itemsize)
        return (np.arange(first, min(first + step, stop)) for first in range(start, stop, step))

    def _as_read(self, held: Array, rows: Array) -> Array:
        values: Array = held["values"].astype(np.float32)
        if self.fill is not None and self.fill.missing.any():
            self.fill.put(values, held["renewed"] == 0, self.widths)
        if self._absent is not None:
            blank(values, self._absent[rows], self.blocks)
        return values

    def ages(self, rows: Array, k: int) -> Ages:
        """Return τ of every party's block of these rows: (rows, parties)."""
        held, places = self._look(rows)
        ages: Ages = k + self._first - held["renewed"][places]
        return ages

    def ages_of(self, party: int, rows: Array, k: int) -> Ages:
        """Return τ of one party's block of these rows: (rows,)."""
        return self.ages(rows, k)[:, party]

    def newest(self) -> int:
        """Return the last update at which any block was renewed. Reads the whole file."""
        return max(0, max(int(self._read(rows)["renewed"].max()) for rows in self._parts(0, self._rows)) - self._first)

    def mark_absent(self, absent: Array) -> None:
        """Read blocks that their party lacks as NaN, whatever it sends; `absent` is bool (rows, parties)."""
        self._note_absent(absent)

    def write(self, party: int, rows: Array, values: Array, k: int) -> None:
        """Store one party's rows as of update k."""
        if not len(rows):
            return
        if self.fill is not None and self.fill.missing[party]:
            held, places = self._look(rows)
            self._learn(self.fill, party, rows, values, held["renewed"][places, party] == 0)
        rows, last = _last_of_each(rows)
        before, _ = self._look(rows)
        after, block = before.copy(), self.blocks[party]
        after["values"][:, block] = self.held(np.asarray(values)[last])
        after["renewed"][:, party] = k + self._first
        start = self._renewed_at(party)
        item = self.dtype.itemsize
        self._replace(rows, before, after, [(block.start * item, block.stop * item), (start, start + 4)])

    def renew(self, parties: Sequence[int], rows: Array, k: int) -> None:
        """Mark these parties' blocks of these rows as renewed at update k, with unchanged values."""
        rows = np.unique(rows[(self.ages(rows, k)[:, parties] != 0).any(1)])
        if not len(rows):
            return
        before, _ = self._look(rows)
        after = before.copy()
        after["renewed"][:, parties] = k + self._first
        self._replace(
            rows, before, after, [(self._renewed_at(min(parties)), self._renewed_at(max(parties) + 1))]
        )  # fmt: skip

    def _renewed_at(self, party: int) -> int:
        """Return the byte of a record at which a party's int32 begins."""
        return sum(self.widths) * self.dtype.itemsize + 4 * party

    # Checkpoints

    def save(self) -> dict[str, Any]:
        """Return a position to go back to. The table itself stays in the file."""
        return {"at": self._file.position(), "clipped": self.clipped} | self._saved_fill()

    def load(self, saved: dict[str, Any]) -> None:
        """Undo all writes since `save`."""
        self.clipped = saved["clipped"]
        self._file.back_to(saved["at"])
        self._load_fill(saved)
        self._forget()

    def checkpointed(self, saved: dict[str, Any]) -> None:
        """Release what is older than this state: its checkpoint is on the disk, so no role goes back further."""
        self._file.keep_from(saved["at"])

    # The file

    def _look(self, rows: Array) -> tuple[Array, Array]:
        """Return the records of these rows, sorted, and each row's place among them. Remembers the last call."""
        wanted, places = np.unique(rows, return_inverse=True)
        if not np.array_equal(wanted, self._seen[0]):
            self._seen = wanted, self._read(wanted)
        return self._seen[1], places

    def _forget(self) -> None:
        self._seen = np.zeros(0, np.int64), np.zeros(0, self._row)

    def _read(self, rows: Array) -> Array:
        """Read the records of sorted rows."""
        return self._file.read(rows).reshape(-1).view(self._row)

    def _replace(self, rows: Array, before: Array, after: Array, spans: list[tuple[int, int]]) -> None:
        self._forget()
        self._file.replace(rows, _as_bytes(before), _as_bytes(after), spans)
        self._seen = rows, after


@dataclass(frozen=True, slots=True)
class Tables:
    """The place and type of a server's tables: `[server] table` and `table_dtype`."""

    where: str = "memory"  # or "file"
    dtype: str = "float32"  # or "float16"
    device: str = "cpu"  # of the server's network

    def to_train(self, rows: int, widths: Sequence[int], fill: bool = False) -> EmbeddingTable:
        """Return the table that VAFL and related methods learn from. With `fill`, means replace unsent rows."""
        return self._made(rows, widths, self.dtype, fill)

    def to_judge(self, rows: int, widths: Sequence[int]) -> EmbeddingTable:
        """Return the table of the held-out rows. It is always float32, so evaluation uses unrounded embeddings."""
        return self._made(rows, widths, "float32", False)

    def _made(self, rows: int, widths: Sequence[int], dtype: str, fill: bool) -> EmbeddingTable:
        if self.where == "file" and rows:
            return FileTable(rows, widths, dtype, fill)
        return EmbeddingTable(rows, widths, dtype, fill, self.device)


class TablesInFiles:
    """A server whose tables may be in files."""

    table: EmbeddingTable
    evaluation: Evaluation

    def open(self, storage: Storage) -> None:
        """Open the files of both tables. See `protocol.role.Storing`."""
        self.table.open(storage, "train")
        self.evaluation.table.open(storage, "test")

    def checkpointed(self, state: dict[str, Any]) -> None:
        """Pass the saved state on to both tables. See `protocol.role.Storing`."""
        self.table.checkpointed(state["table"])
        self.evaluation.table.checkpointed(state["evaluation"]["table"])


def _last_of_each(rows: Array) -> tuple[Array, Array]:
    """Return the distinct rows, sorted, and the position of each one's last occurrence."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    last = np.append(ordered[1:] != ordered[:-1], True)
    return ordered[last], order[last]


def _as_bytes(rows: Array) -> Array:
    """View records as uint8 (rows, bytes)."""
    found: Array = rows.view(np.uint8).reshape(len(rows), rows.dtype.itemsize)
    return found
