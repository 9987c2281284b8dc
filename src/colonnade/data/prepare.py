"""From the raw columns of one party to the numbers that it trains and tests on, independent of the other parties.

The result depends only on the party's own columns, the number of rows and the settings. It is therefore the same to the
bit whether one process splits a whole CSV table or every party reads its own file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from colonnade.data.block import Block, refuse_unusable, training_means
from colonnade.data.dataset import check_test_rows
from colonnade.data.encoding import Encoder, check_missing, fit_categories, notes_on_tests
from colonnade.data.fitted import Fitted, encoder_with, scaler_with
from colonnade.data.scaling import Scaler, check_scale, fit
from colonnade.data.table import Table
from colonnade.data.task import Array
from colonnade.data.texts import NO_TEXTS, Texts
from colonnade.protocol.errors import ConfigError, DataError

Rows = tuple[Array, Array]  # int64: training rows, and rows held out: first the validation rows, then the test rows


@dataclass(frozen=True, slots=True)
class Preparation:
    """How a party's numbers are prepared; `section` is the section of the config that sets it, for errors."""

    scale: str
    missing: str
    factor: float = 1.0
    section: str = "data"
    before: Mapping[str, Fitted] = field(
        default_factory=dict
    )  # party → what it fitted in the run that this one continues
    texts: Texts = NO_TEXTS

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown scaling or an unknown policy for missing values."""
        check_scale(self.scale, self.section)
        check_missing(self.missing, self.section)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Prepared:
    encoder: Encoder
    scaler: Scaler
    train: Any  # float32 (n_train, features); CSR if the data are sparse
    test: Any  # float32 (n_validation + n_test, features): the rows held out
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
    """Encode and scale the columns `index` of `x`, which `names` names; the columns of a series are ordered by step."""
    columns = tuple(names)
    refuse_unusable(Block(x, np.arange(len(x)), index), party, columns, how.missing, how.section)
    means = training_means(Block(x, rows[0], index), party, columns) if how.missing == "mean" else None
    fitted = fit_categories(x, rows[0], index, columns, party, how.section, how.texts)
    encoder = Encoder(columns, fitted, means, how.texts.lengths(columns) if how.texts.columns else ())
    before = how.before.get(party)
    encoder = encoder if before is None else encoder_with(before, encoder, party)
    train = Block(x, rows[0], index, encoder)
    scaler = fit(how.scale, train, how.factor, steps)
    scaler = scaler if before is None else scaler_with(before, encoder, scaler, party)
    test = scaler.fill(Block(x, rows[1], index, encoder))
    return Prepared(encoder, scaler, scaler.fill(train), test, notes_on_tests(x, rows[1], index, encoder, party))


def prepare_sparse(
    x: Any, index: Array, names: Sequence[str], party: str, rows: Rows, how: Preparation, steps: int = 1
) -> Prepared:
    """Prepare a sparse table without making it dense; accepts only the scaling "none", which keeps zeros zero."""
    if how.scale != "none":
        advice = 'this scale would make a sparse table dense; use "none", and scale the table beforehand'
        raise ConfigError(f"{how.section}.scale", how.scale, advice)
    if not np.isfinite(x.data).all():
        raise DataError(f"{party}: there are NaN or infinite values in the sparse table")
    columns = tuple(names)
    contiguous = len(index) > 0 and bool((np.diff(index) == 1).all())
    block = (x[:, index[0] : index[-1] + 1] if contiguous else x[:, index]).astype(np.float32) * np.float32(how.factor)
    encoder = Encoder(columns, (None,) * len(columns), None)
    scaler = Scaler(np.zeros(len(columns)), np.full(len(columns), how.factor))
    return Prepared(encoder, scaler, block[rows[0]], block[rows[1]], [])


@dataclass(frozen=True, slots=True)
class RowSplit:
    """Which rows are held out; members with the same rows and the same settings find the same ones."""

    test_fraction: float
    validation_fraction: float  # of the rows that remain after the test rows; 0: none
    split_seed: int
    test_rows: int = 0  # the last rows, as many as this, are the test set, whatever `test_fraction` is

    def __post_init__(self) -> None:
        """Raise ConfigError for a fraction or a seed out of range."""
        test, validation, seed = self.test_fraction, self.validation_fraction, self.split_seed
        if not _is_number(test) or not 0 < test < 1:
            raise ConfigError("data.test_fraction", test, "must be above 0 and below 1")
        if not _is_number(validation) or not 0 <= validation < 1:
            advice = (
                "must be 0 (no validation rows) or more, and below 1: it is the fraction of the training rows to "
                "validate on"
            )
            raise ConfigError("data.validation_fraction", validation, advice)
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise ConfigError("data.split_seed", seed, "must be a whole number from 0")

    def of(self, name: str, rows: int) -> tuple[Rows, int]:
        """Return the training rows, the rows held out, and the number of validation rows among those.

        `name` is for errors.

        The test rows do not depend on the validation fraction. Without a given test set they are a shuffled part.
        """
        if rows < 2:
            raise DataError(f"{name}: {rows} row cannot be split into one to train and one to test on")
        check_test_rows(name, rows, self.test_rows)
        shuffle = np.random.Generator(np.random.PCG64(self.split_seed))
        if self.test_rows:
            train, test = np.arange(rows - self.test_rows), np.arange(rows - self.test_rows, rows)
        else:
            order = shuffle.permutation(rows)
            tested = min(max(round(rows * self.test_fraction), 1), rows - 1)
            train, test = order[tested:], order[:tested]
        if not self.validation_fraction:
            return (train, test), 0
        count = min(max(round(len(train) * self.validation_fraction), 1), len(train) - 1)
        if not count:
            cause = f"{rows} rows cannot be split into rows to train, to validate and to test on"
            raise DataError(f"{name}: {cause}; set data.validation_fraction = 0")
        if self.test_rows:  # keep the given order of the training rows
            chosen = np.zeros(len(train), np.bool_)
            chosen[shuffle.permutation(len(train))[:count]] = True
            validation, train = train[chosen], train[~chosen]
        else:  # the rows are shuffled already
            validation, train = train[:count], train[count:]
        return (train, np.concatenate([validation, test])), count


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
