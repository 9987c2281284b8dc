"""The server's table in a file: a row is all parties' embeddings and when each was renewed.

    row   Σwidth floats · parties int32

The file is a port that a driver opens (`protocol.ports.Rows`). A checkpoint holds a position in it, not the table.
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

__all__ = ["FileTable", "Tabled", "Tables"]

PART_BYTES = 2**26  # of looks at the whole table


class FileTable(EmbeddingTable):
    """The same in a file, once `open` says in which."""

    def __init__(self, rows: int, widths: Sequence[int], dtype: str = "float32", fill: bool = False) -> None:
        super().__init__(0, widths, dtype)
        self._rows, self._first = rows, int(fill)
        self.fill = Fill(rows, widths) if fill else None
        fields = [("values", self.dtype, (sum(self.widths),)), ("renewed", "<i4", (len(self.widths),))]
        self._row = np.dtype(fields)
        self._opened: Rows | None = None
        self._seen: tuple[Array, Array]  # the last rows looked at, sorted, and what lies there
        self._forget()

    def __len__(self) -> int:
        return self._rows

    def open(self, storage: Storage, name: str) -> None:
        """Lie there from now on: empty, or as it was left, for `load` to take back to the checkpoint."""
        smaller = '; server.table_dtype = "float16" halves the table of a new run'
        hint = smaller if self.dtype == np.float32 else ""
        self._opened = storage.rows(name, self._rows, self._row.itemsize, hint)

    @property
    def _file(self) -> Rows:
        if self._opened is None:
            raise LocalProtocolError("a table in a file is used before a driver has opened it")
        return self._opened

    # What it holds

    def gather(self, rows: Array) -> Array:
        """The newest embeddings of these rows, float32."""
        held, places = self._look(rows)
        return self._as_read(held[places], rows)

    def parts(self, start: int, stop: int) -> Iterator[Array]:
        """The rows start..stop, some at a time."""
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
        """τ of every party's block of these rows: (rows, parties)."""
        held, places = self._look(rows)
        ages: Ages = k + self._first - held["renewed"][places]
        return ages

    def ages_of(self, party: int, rows: Array, k: int) -> Ages:
        """τ of one party's block of these rows."""
        return self.ages(rows, k)[:, party]

    def newest(self) -> int:
        """The last update at which any block was renewed."""
        return max(0, max(int(self._read(rows)["renewed"].max()) for rows in self._parts(0, self._rows)) - self._first)

    def lack(self, absent: Array) -> None:
        """bool (rows, parties): blocks that their party does not have are read as NaN, whatever it sends for them."""
        self._lack(absent)

    def write(self, party: int, rows: Array, values: Array, k: int) -> None:
        """Rows of one party as of update k."""
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
        """These rows of these parties are as of update k, unchanged."""
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
        """The byte of a row at which a party's int32 begins."""
        return sum(self.widths) * self.dtype.itemsize + 4 * party

    # Checkpoints

    def save(self) -> dict[str, Any]:
        """A position to come back to; the table itself stays where it is."""
        return {"at": self._file.position(), "clipped": self.clipped} | self._saved_fill()

    def load(self, saved: dict[str, Any]) -> None:
        """The reverse of `save`: undo what was written since."""
        self.clipped = saved["clipped"]
        self._file.back_to(saved["at"])
        self._load_fill(saved)
        self._forget()

    def kept(self, saved: dict[str, Any]) -> None:
        """A checkpoint with this state is on the disk: nobody goes back to before it."""
        self._file.keep_from(saved["at"])

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
        return self._file.read(rows).reshape(-1).view(self._row)

    def _replace(self, rows: Array, before: Array, after: Array, spans: list[tuple[int, int]]) -> None:
        self._forget()
        self._file.replace(rows, _as_bytes(before), _as_bytes(after), spans)
        self._seen = rows, after


@dataclass(frozen=True, slots=True)
class Tables:
    """Where and how a server keeps its tables: `[server] table` and `table_dtype`."""

    where: str = "memory"  # or "file"
    dtype: str = "float32"  # or "float16"

    def to_train(self, rows: int, widths: Sequence[int], fill: bool = False) -> EmbeddingTable:
        """The table that VAFL and its kin learn from; `fill`: with means in place of rows that were not sent yet."""
        return self._made(rows, widths, self.dtype, fill)

    def to_judge(self, rows: int, widths: Sequence[int]) -> EmbeddingTable:
        """The rows held out: judged as they came, never rounded."""
        return self._made(rows, widths, "float32", False)

    def _made(self, rows: int, widths: Sequence[int], dtype: str, fill: bool) -> EmbeddingTable:
        return (FileTable if self.where == "file" and rows else EmbeddingTable)(rows, widths, dtype, fill)


class Tabled:
    """A server with tables that may lie in files."""

    table: EmbeddingTable
    evaluation: Evaluation

    def open(self, storage: Storage) -> None:
        """See `protocol.role.Storing`."""
        self.table.open(storage, "train")
        self.evaluation.table.open(storage, "test")

    def kept(self, state: dict[str, Any]) -> None:
        """See `protocol.role.Storing`."""
        self.table.kept(state["table"])
        self.evaluation.table.kept(state["evaluation"]["table"])


def _last_of_each(rows: Array) -> tuple[Array, Array]:
    """Sorted rows, each once, and the places of their last occurrence."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    last = np.append(ordered[1:] != ordered[:-1], True)
    return ordered[last], order[last]


def _as_bytes(rows: Array) -> Array:
    """(rows, bytes)"""
    found: Array = rows.view(np.uint8).reshape(len(rows), rows.dtype.itemsize)
    return found
