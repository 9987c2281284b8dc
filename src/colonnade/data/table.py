"""A table of columns, each in its own memory: 32-bit numbers, or codes of categories.

A table may fill half of the memory. Its columns can be freed one by one while the parties' blocks are made from them. A
two-dimensional array does not allow that.
"""

import mmap
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars

from colonnade.data.frames import frame_of, is_frame
from colonnade.data.task import Array
from colonnade.protocol.errors import DataError

MISSING = "missing"  # the category of an empty cell
WHOLE = re.compile(r"^(-?\d+)\.0+$")
TEXT = (polars.String, polars.Categorical, polars.Enum, polars.Boolean)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Column:
    """Numbers (float32, NaN where missing), or int32 codes of the given categories."""

    values: Array  # (rows,)
    categories: tuple[str, ...] | None = None


class Table:
    """Columns of equal length, in the order of the dataset's names."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns: list[Column | None] = list(columns)
        self._rows = len(columns[0].values) if columns else 0

    def __len__(self) -> int:
        return self._rows

    @property
    def shape(self) -> tuple[int, int]:
        return self._rows, len(self._columns)

    def column(self, place: int) -> Column:
        """Return one column; raises DataError if it was released."""
        found = self._columns[place]
        if found is None:
            raise DataError(
                f"column {place} of this dataset was released when the dataset was split with release=True; load "
                "it again"
            )
        return found

    def take(self, rows: Array, places: Array) -> Array:
        """Return some rows and columns as float64: numbers as they are, categories as their codes."""
        taken = np.empty((len(rows), len(places)))
        for j, place in enumerate(places):
            taken[:, j] = self.column(place).values[rows]
        return taken

    def release(self, places: Array) -> None:
        """Free the memory of these columns."""
        for place in places:
            self._columns[place] = None


def own_memory(rows: int, dtype: type[np.generic]) -> Array:
    """Return an array of zeros whose memory returns to the operating system as soon as the array is dropped.

    malloc would keep freed blocks of up to 32 MiB for itself. Pages that were never written cost nothing here.
    """
    return np.frombuffer(mmap.mmap(-1, max(rows, 1) * np.dtype(dtype).itemsize), dtype)[:rows]


class Coder:
    """Gives each category a code while a column comes in pieces; `finish` sorts the categories by name."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def encode(self, series: polars.Series) -> Array:
        """Return codes in the order of first appearance."""
        if series.dtype.is_float():
            series = series.fill_nan(None)
        texts = series.cast(polars.String).fill_null(MISSING)
        if texts.is_empty():
            return np.empty(0, np.int32)
        codes = {}
        for text in texts.unique(maintain_order=True):
            codes[text] = self._codes.setdefault(category_name(text), len(self._codes))
        return texts.replace_strict(codes, return_dtype=polars.Int32).to_numpy()

    def finish(self, codes: Array) -> Column:
        """Sort the categories, and change the codes in place to match."""
        categories = tuple(sorted(self._codes))
        place = np.empty(len(categories), np.int32)
        for rank, text in enumerate(categories):
            place[self._codes[text]] = rank
        if len(codes):
            np.take(place, codes, out=codes, mode="clip")  # the default mode makes a copy first
        return Column(codes, categories)


def category_name(text: str) -> str:
    """Return the same name for all sources: 1.0 becomes 1, and booleans are lower case (true)."""
    if text in ("True", "False"):
        return text.lower()
    return WHOLE.sub(r"\1", text)


def column_of(series: polars.Series, categorical: bool) -> Column:
    """Return one column of a typed table; text, booleans and columns that are declared categorical become codes."""
    if categorical or series.dtype in TEXT:
        coder = Coder()
        return coder.finish(coder.encode(series).copy())
    if not (series.dtype.is_numeric() or series.dtype == polars.Null):
        raise DataError(f"column '{series.name}' holds {series.dtype}, which are not numbers or categories")
    values = own_memory(len(series), np.float32)
    values[:] = series.cast(polars.Float32).fill_null(float("nan")).to_numpy()
    return Column(values)


def rows_of(raw: Any, names: Sequence[str], categorical: Sequence[bool], party: str) -> Table:
    """Turn new raw rows (a DataFrame, {column: values} or a list of {column: value}) into a table of these columns."""
    frame = _frame(raw, names, party)
    columns = []
    for name, is_category in zip(names, categorical, strict=True):
        series = frame[name]
        if not is_category and series.dtype in (polars.String, polars.Boolean):
            raise DataError(f"{party}: column '{name}' must hold numbers, not {series.dtype}")
        columns.append(column_of(series, is_category))
    return Table(columns)


def _frame(raw: Any, names: Sequence[str], party: str) -> polars.DataFrame:
    if is_frame(raw):
        frame = frame_of(raw)
        absent = [name for name in names if name not in frame.columns]
        if not absent:
            return frame.select(names)
    elif isinstance(raw, Mapping):
        absent = [name for name in names if name not in raw]
        if not absent:
            values = {name: raw[name] for name in names}
            plain = {name: value.to_list() if hasattr(value, "to_list") else value for name, value in values.items()}
            return _checked(plain, party)
    elif isinstance(raw, Sequence) and raw and all(isinstance(row, Mapping) for row in raw):
        absent = [name for name in names if any(name not in row for row in raw)]
        if not absent:
            return _checked({name: [row[name] for row in raw] for name in names}, party)
    else:
        raise DataError(f"{party}: rows must be an array, a table or a list of {{column: value}}, not {type(raw)}")
    raise DataError(f"{party}: the rows have no column '{absent[0]}'")


def _checked(columns: Mapping[str, Any], party: str) -> polars.DataFrame:
    try:
        return polars.DataFrame(columns)
    except (polars.exceptions.PolarsError, TypeError, ValueError) as error:
        raise DataError(f"{party}: the rows cannot be read as a table: {error}") from error
