"""What is to be predicted (two classes, several, or a number), and how to read it from a label column.

Integers, booleans and text are classes. Floats are classes if they are all whole and have at most 20 distinct values (a
class column often passes through a float table); otherwise they are regression targets.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from colonnade.protocol.errors import DataError

Kind = Literal["binary", "multiclass", "regression"]
Array = np.ndarray[Any, np.dtype[Any]]

MOST_FLOAT_CLASSES = 20


@dataclass(frozen=True, slots=True)
class Task:
    """The kind of prediction, and the names of the classes in the order of their index; () for regression."""

    kind: Kind
    classes: tuple[str, ...]

    def __str__(self) -> str:
        return "a number to predict" if self.kind == "regression" else f"{len(self.classes)} classes"

    @property
    def outputs(self) -> int:
        """The width of a model's output: one logit for two classes, one number for regression."""
        return len(self.classes) if self.kind == "multiclass" else 1


def classification(classes: tuple[str, ...]) -> Task:
    """Return the task of telling these classes apart; raises DataError for fewer than two."""
    if len(classes) < 2:
        raise DataError(f"the label has only {list(classes)} as its value; it needs two or more classes")
    return Task("binary" if len(classes) == 2 else "multiclass", classes)


def read_labels(y: Array) -> tuple[Array, Task]:
    """Return class indices (int64) or regression targets (float32), and the task."""
    if y.ndim != 1:
        raise DataError(f"labels must be 1-D, not have shape {y.shape}")
    if y.size == 0:
        raise DataError("there are no labels: shape (0,)")
    plain = _plain(y)
    if plain.dtype.kind == "f" and not _few_whole_numbers(plain):
        return _targets(plain)
    values, index = np.unique(plain, return_inverse=True)
    return index.astype(np.int64), classification(tuple(_name(value) for value in values))


def _plain(y: Array) -> Array:
    """Convert labels to one of: bool, integer, finite float, str."""
    if y.dtype.kind in "biuU":
        return y
    if y.dtype.kind == "f":
        return _finite(y)
    if y.dtype.kind == "O" and all(isinstance(value, str) for value in y):
        return y.astype(np.str_)
    raise DataError(f"labels must be numbers or text, not have dtype {y.dtype}")


def _finite(y: Array) -> Array:
    bad = np.flatnonzero(~(np.abs(y.astype(np.float64)) <= np.finfo(np.float32).max))
    if bad.size:
        raise DataError(
            f"{bad.size} labels are NaN, infinite or too large for 32-bit floats, the first in row {bad[0]}"
            " (counted from 0)"
        )
    return y


def _few_whole_numbers(y: Array) -> bool:
    return bool(np.all(y == np.rint(y))) and np.unique(y).size <= MOST_FLOAT_CLASSES


def _targets(y: Array) -> tuple[Array, Task]:
    if np.all(y == y[0]):
        raise DataError(f"the label is {y[0]} in every row; it must vary")
    return y.astype(np.float32), Task("regression", ())


def _name(value: Any) -> str:
    return str(int(value)) if isinstance(value, np.floating) else str(value)
