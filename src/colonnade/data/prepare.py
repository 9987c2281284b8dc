"""From the raw columns of one party to the numbers it trains and tests on, whoever else is there.

What a party gets depends on its own columns, the number of rows and the settings alone, so that it is the same
to the bit whether one process splits a whole CSV table or every party reads a file of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from colonnade.data.block import Block, refuse_unusable, training_means
from colonnade.data.dataset import check_test_rows
from colonnade.data.encoding import Encoder, check_missing, fit_categories, notes_on_tests
from colonnade.data.scaling import Scaler, check_scale, fit
from colonnade.data.table import Table
from colonnade.data.task import Array
from colonnade.protocol.errors import ConfigError, DataError

Rows = tuple[Array, Array]  # int64: to train and to test on


@dataclass(frozen=True, slots=True)
class Preparation:
    """What is done to the numbers of a party; `section` of a config is where a user says so."""

    scale: str
    missing: str
    factor: float = 1.0
    section: str = "data"

    def __post_init__(self) -> None:
        """Refuse words that nobody knows."""
        check_scale(self.scale, self.section)
        check_missing(self.missing, self.section)


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """What one party gets."""

    encoder: Encoder
    scaler: Scaler
    train: Array  # float32 (n_train, features)
    test: Array  # float32 (n_test, features)
    notes: list[str]


def prepare(
    x: Array | Table,
    index: Array,
    names: Sequence[str],
    party: str,
    rows: Rows,
    how: Preparation,
    steps: int = 1,
) -> Prepared:
    """Encode and scale the columns `index` of `x`, whose names are given; a series has its columns step by step."""
    columns = tuple(names)
    refuse_unusable(Block(x, np.arange(len(x)), index), party, columns, how.missing, how.section)
    means = training_means(Block(x, rows[0], index), party, columns) if how.missing == "mean" else None
    encoder = Encoder(columns, fit_categories(x, rows[0], index, columns, party, how.section), means)
    train = Block(x, rows[0], index, encoder)
    scaler = fit(how.scale, train, how.factor, steps)
    test = scaler.fill(Block(x, rows[1], index, encoder))
    return Prepared(encoder, scaler, scaler.fill(train), test, notes_on_tests(x, rows[1], index, encoder, party))


def split_rows(name: str, rows: int, *, test_fraction: float, seed: int, test_rows: int = 0) -> Rows:
    """Return the rows to train and to test on: the last `test_rows`, or if there are none a shuffled part."""
    if not isinstance(test_fraction, int | float) or not 0 < test_fraction < 1:
        raise ConfigError("data.test_fraction", test_fraction, "must lie between 0 and 1, both excluded")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigError("seed", seed, "must be a whole number from 0")
    if rows < 2:
        raise DataError(f"{name}: {rows} row cannot be split into one to train and one to test on")
    check_test_rows(name, rows, test_rows)
    if test_rows:
        return np.arange(rows - test_rows), np.arange(rows - test_rows, rows)
    order = np.random.Generator(np.random.PCG64(seed)).permutation(rows)
    tested = min(max(round(rows * test_fraction), 1), rows - 1)
    return order[tested:], order[:tested]
