"""One table with its label, as its source has it: not split and not scaled.

The numbers keep the type of the source (bytes for images). `split` makes the only float32 copy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars
from scipy import sparse

from colonnade.data.table import Table
from colonnade.data.task import Array, Task, read_labels
from colonnade.protocol.errors import DataError


@dataclass(frozen=True, slots=True)
class View:
    """Consecutive columns that belong together: one of several descriptions of the same rows."""

    name: str
    columns: range
    shape: tuple[int, ...]  # of one row: (columns,), or (steps, channels) of a time series, step by step


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Dataset:
    """A table: `x` (rows, columns) of numbers and one label per row."""

    name: str
    x: Any  # (rows, columns): an array of any real dtype, a Table, which may hold categories, or scipy CSR
    y: Array  # (rows,), class index (int64) or target (float32)
    task: Task
    columns: tuple[str, ...]
    test_rows: int  # the last rows, as many as this, are the given test set; 0: none is given
    factor: float = 1.0  # x is multiplied by this: 1/255 for bytes of images
    image: tuple[int, int] | None = None  # (height, width) if the columns are pixels, channel by channel, row by row
    scale: str = "standard"  # the scaling that `split` applies by default
    views: tuple[View, ...] = ()  # split = "views" gives one to each party
    notes: tuple[str, ...] = ()  # remarks about the rows for readers of the results
    ids: polars.Series | None = None  # of the rows, as text; None: rows are counted from 0
    channels: int = 1  # of an image: 3 if it has colours

    def __post_init__(self) -> None:
        """Refuse a table that cannot be split; later code trusts these shapes."""
        check_table(self.name, self.x)
        _check_labels(self.name, self.x, self.y, self.task)
        _check_columns(self.name, self.x.shape[1], self.columns)
        check_test_rows(self.name, self.x.shape[0], self.test_rows)
        if self.image is not None and self.channels * self.image[0] * self.image[1] != self.x.shape[1]:
            size = f"{self.image}" if self.channels == 1 else f"{(self.channels, *self.image)}"
            raise DataError(f"{self.name}: {self.x.shape[1]} columns are not an image of {size}")

    def __repr__(self) -> str:
        """Show sizes only: a notebook or a log must not show a row."""
        tested = f", the last {self.test_rows:,} to test on" if self.test_rows else ""
        return f"Dataset({self.name}: {self.x.shape[0]:,} rows{tested}, {len(self.columns):,} columns, {self.task})"

    @property
    def series(self) -> bool:
        """Whether the rows are time series, whose steps must stay together."""
        return any(len(view.shape) > 1 for view in self.views)


def check_table(name: str, x: Any) -> None:
    """Raise DataError if `x` is not a non-empty 2-D table of real numbers."""
    if isinstance(x, np.ndarray) and x.ndim != 2:
        raise DataError(f"{name}: x must be 2-D (rows, columns), not have shape {x.shape}")
    if 0 in x.shape:
        raise DataError(f"{name}: x is empty, it has shape {x.shape}")
    if not isinstance(x, Table) and x.dtype.kind not in "biuf":
        raise DataError(f"{name}: x must hold real numbers, not dtype {x.dtype}")


def check_test_rows(name: str, rows: int, test_rows: int) -> None:
    """Raise DataError if the given test set leaves no row to train on."""
    if not 0 <= test_rows < rows:
        raise DataError(f"{name}: {test_rows} test rows of {rows} leave no row to train on")


def _check_labels(name: str, x: Any, y: Array, task: Task) -> None:
    rows = x.shape[0]
    if y.shape != (rows,):
        raise DataError(f"{name}: x has {rows} rows, so y must have shape ({rows},), not {y.shape}")
    if task.kind == "regression":
        return
    if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= len(task.classes):
        raise DataError(f"{name}: y must hold class indices from 0 to {len(task.classes) - 1}")


def _check_columns(name: str, width: int, columns: tuple[str, ...]) -> None:
    if len(columns) != width:
        raise DataError(f"{name}: x has {width} columns, but {len(columns)} column names are given")
    if len(set(columns)) < width:
        twice = next(column for place, column in enumerate(columns) if column in columns[:place])
        raise DataError(f"{name}: two columns have the name '{twice}'")


def from_arrays(
    x: Any,
    y: Any,
    *,
    columns: Sequence[str] | None = None,
    x_test: Any = None,
    y_test: Any = None,
    name: str = "arrays",
) -> Dataset:
    """Make a dataset from arrays (or anything that numpy converts); copies `x` only if a test set is given.

    A scipy sparse `x` stays sparse; the linear methods accept it.

    Example: `from_arrays(x, y, columns=["age", "income"])`.
    """
    table, labels, test_rows = _array(name, x), _array(name, y), 0
    check_table(name, table)
    if (x_test is None) != (y_test is None):
        raise DataError(f"{name}: a test set needs both x_test and y_test")
    if x_test is not None:
        test = _array(name, x_test), _array(name, y_test)
        table, labels = _with_test(name, (table, labels), test)
        test_rows = test[0].shape[0]
    names = tuple(columns) if columns is not None else tuple(f"x{i}" for i in range(table.shape[1]))
    indices, task = read_labels(labels)
    scale = "none" if sparse.issparse(table) else "standard"
    return Dataset(name, table, indices, task, names, test_rows, scale=scale)


def from_views(
    x: Mapping[str, Array],
    y: Array,
    *,
    x_test: Mapping[str, Array] | None = None,
    y_test: Array | None = None,
    name: str = "views",
) -> Dataset:
    """Make a dataset from several arrays on the same rows, one view each.

    View "bank" has columns bank_0, bank_1, ...
    """
    columns: list[str] = []
    views: list[View] = []
    for view, block in x.items():
        check_table(f"{name}: {view}", block)
        if len(block) != len(y):
            raise DataError(f"{name}: {view} has {len(block)} rows, but there are {len(y)} labels")
        views.append(View(view, range(len(columns), len(columns) + block.shape[1]), (block.shape[1],)))
        columns.extend(f"{view}_{i}" for i in range(block.shape[1]))
    test = None
    if x_test is not None:
        for view, block in x_test.items():
            fit = (0 if y_test is None else len(y_test), x[view].shape[1])
            if block.shape != fit:
                raise DataError(f"{name}: the test rows of {view} have shape {block.shape}, not {fit}")
        test = np.concatenate(list(x_test.values()), axis=1)
    table = np.concatenate(list(x.values()), axis=1)
    dataset = from_arrays(table, y, columns=columns, x_test=test, y_test=y_test, name=name)
    return replace(dataset, views=tuple(views))


def _array(name: str, values: Any) -> Any:
    if sparse.issparse(values):
        return values.tocsr()
    try:
        return np.asarray(values)
    except ValueError as error:  # rows of unequal length
        raise DataError(f"{name}: not an array: {error}") from error


def _with_test(name: str, train: tuple[Any, Array], test: tuple[Any, Array]) -> tuple[Any, Array]:
    """Check that the test rows fit, and put them below the training rows."""
    for part, (x, y) in (("train", train), ("test", test)):
        check_table(f"{name} ({part})", x)
        if y.shape != (x.shape[0],):
            raise DataError(f"{name} ({part}): x has {x.shape[0]} rows, but y has shape {y.shape}")
    if train[0].shape[1] != test[0].shape[1]:
        raise DataError(f"{name}: x has shape {train[0].shape}, but x_test has {test[0].shape}")
    if (train[1].dtype.kind in "biuf") != (test[1].dtype.kind in "biuf"):  # numpy would turn the numbers into text
        raise DataError(f"{name}: y has dtype {train[1].dtype}, but y_test has {test[1].dtype}")
    stack = sparse.vstack if sparse.issparse(train[0]) else np.concatenate
    return stack([train[0], test[0]]), np.concatenate([train[1], test[1]])
