"""A dataset taken apart: columns to parties, rows to train and test, labels to the server.

The rows of all parties are in the same order. Memory: beside the dataset there is one float32 copy, made
party by party, and pieces of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from colonnade.data.block import Block, refuse_unusable
from colonnade.data.columns import assign, row_shape
from colonnade.data.dataset import Dataset
from colonnade.data.scaling import Scaler, check_scale, fit
from colonnade.data.task import Array, Task
from colonnade.protocol.errors import ConfigError, DataError


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """What the parties (features) and the server (labels) hold."""

    name: str
    parties: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]  # per party
    train: tuple[Array, ...]  # per party, float32 (n_train, d_m)
    test: tuple[Array, ...]  # per party, float32 (n_test, d_m)
    y_train: Array
    y_test: Array
    task: Task
    scalers: tuple[Scaler, ...]  # per party
    indices: tuple[Array, ...]  # per party, int64: columns of the dataset
    width: int  # columns of the dataset, some of which no party may hold
    shapes: tuple[tuple[int, ...], ...]  # per party: of one row, (columns,) or (height, width) of its piece of an image

    def blocks(self, x: Array) -> list[Array]:
        """Split and scale raw rows of the dataset's columns (rows, width), in the units of `Dataset.x`."""
        if x.ndim != 2 or x.shape[1] != self.width or x.dtype.kind not in "biuf":
            raise DataError(
                f"{self.name}: rows must be numbers of shape (rows, {self.width}), not {x.dtype} of {x.shape}"
            )
        rows = np.arange(len(x))
        held = [Block(x, rows, index) for index in self.indices]
        for block, party, names in zip(held, self.parties, self.columns, strict=True):
            refuse_unusable(block, party, names)
        return [scaler.fill(block) for scaler, block in zip(self.scalers, held, strict=True)]


def split(
    dataset: Dataset,
    *,
    parties: int | None = None,
    how: str | Mapping[str, Sequence[str]] = "even",
    scale: str | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Partition:
    """Split a dataset among parties (4, or as many as a table `how` names), by default with its own scaling.

    Examples: `split(load("digits"))`, `split(bank, how={"bank": ["age", "income"], "shop": ["visits"]})`.
    """
    scale = dataset.scale if scale is None else scale
    check_scale(scale)
    names, indices = assign(dataset, parties, how)
    columns = tuple(tuple(dataset.columns[i] for i in index) for index in indices)
    train_rows, test_rows = _rows(dataset, test_fraction, seed)
    for name, held, index in zip(names, columns, indices, strict=True):
        refuse_unusable(Block(dataset.x, np.arange(len(dataset.x)), index), name, held)
    held_train = [Block(dataset.x, train_rows, index) for index in indices]
    scalers = tuple(fit(scale, block, dataset.factor) for block in held_train)
    return Partition(
        name=dataset.name,
        parties=names,
        columns=columns,
        train=tuple(scaler.fill(block) for scaler, block in zip(scalers, held_train, strict=True)),
        test=tuple(s.fill(Block(dataset.x, test_rows, i)) for s, i in zip(scalers, indices, strict=True)),
        y_train=dataset.y[train_rows],
        y_test=dataset.y[test_rows],
        task=dataset.task,
        scalers=scalers,
        indices=indices,
        width=len(dataset.columns),
        shapes=tuple(row_shape(dataset, how, index) for index in indices),
    )


def _rows(dataset: Dataset, test_fraction: float, seed: int) -> tuple[Array, Array]:
    """Return the rows to train and to test on: the given test set, or a shuffled part."""
    if not isinstance(test_fraction, int | float) or not 0 < test_fraction < 1:
        raise ConfigError("data.test_fraction", test_fraction, "must lie between 0 and 1, both excluded")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigError("seed", seed, "must be a whole number from 0")
    rows = len(dataset.x)
    if rows < 2:
        raise DataError(f"{dataset.name}: {rows} row cannot be split into one to train and one to test on")
    if dataset.test_rows:
        return np.arange(rows - dataset.test_rows), np.arange(rows - dataset.test_rows, rows)
    order = np.random.Generator(np.random.PCG64(seed)).permutation(rows)
    tested = min(max(round(rows * test_fraction), 1), rows - 1)
    return order[tested:], order[:tested]
