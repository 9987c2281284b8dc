"""From the raw columns of one party to features: numbers stay numbers, categories become one-hot.

Each party fits its encoder on its own training rows:

| raw | becomes |
|---|---|
| a number | itself |
| a missing number | refused, or the mean of the column's training rows with `data.missing = "mean"` |
| a category of the training rows | a 1 in its column "name=category"; categories are in sorted order |
| any other category | zeros |
| an empty cell of a categorical column | the category "missing", by the two rules above |
| a text of a column in `data.text` | the numbers of its first words: see texts.py |
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from colonnade.data.suggest import did_you_mean, listing
from colonnade.data.table import Table
from colonnade.data.task import Array
from colonnade.data.texts import NO_TEXTS, Texts, tokens, vocabulary_of
from colonnade.protocol.errors import ConfigError, DataError

POLICIES = ("refuse", "mean")
MOST_CATEGORIES = 1000

Categories = tuple[tuple[str, ...] | None, ...]  # per raw column; None: the column holds numbers


@dataclass(frozen=True, slots=True, eq=False)
class Encoder:
    """What one party learned from its training rows about categories and missing numbers."""

    names: tuple[str, ...]  # of the raw columns
    categories: Categories  # the categories that have a feature; of a text column its vocabulary
    means: Array | None  # (raw columns,) float64, replace missing numbers; None: missing numbers are refused
    lengths: tuple[int, ...] = ()  # per raw column: the words of a text column, 0 for others; (): there is no text
    features: tuple[str, ...] = field(init=False)
    numeric: Array = field(init=False)  # (features,) bool: True for a number, False for part of a one-hot
    places: Array = field(init=False)  # (raw columns,) int64: the first feature of each

    def __post_init__(self) -> None:
        """Derive the names and places of the features."""
        lengths = self.lengths or (0,) * len(self.names)
        widths = [
            1 if held is None else length or len(held) for held, length in zip(self.categories, lengths, strict=True)
        ]
        features: list[str] = []
        for name, held, length in zip(self.names, self.categories, lengths, strict=True):
            if length:
                features.extend(f"{name}[{place}]" for place in range(length))
            else:
                features.extend([name] if held is None else [f"{name}={category}" for category in held])
        numeric = np.repeat([held is None for held in self.categories], widths)
        for key, value in (
            ("features", tuple(features)),
            ("numeric", numeric),
            ("places", np.cumsum([0, *widths[:-1]])),
        ):
            object.__setattr__(self, key, value)

    @property
    def changes_nothing(self) -> bool:
        """Whether the features are the raw columns."""
        return self.means is None and all(held is None for held in self.categories)

    def lookups(self, table: Array | Table, columns: Array) -> list[Array | None]:
        """Return for each raw column: code in that table → place among the fitted categories, -1 for others.

        Of a text column: code → its features, (codes, words).
        """
        found: list[Array | None] = []
        lengths = self.lengths or (0,) * len(self.names)
        for held, length, place in zip(self.categories, lengths, columns, strict=True):
            if held is None:
                found.append(None)
            elif length:
                found.append(tokens(categories_of(table, place), held, length))
            else:
                found.append(_lookup(categories_of(table, place), held))
        return found

    def encode(self, raw: Array, lookups: Sequence[Array | None]) -> Array:
        """Turn rows with codes (rows, raw columns) into features (rows, features), float64."""
        encoded = np.zeros((len(raw), len(self.features)))
        numbers = np.array([lookup is None for lookup in lookups])
        values = raw[:, numbers]
        if self.means is not None:
            values = np.where(np.isnan(values), self.means[numbers], values)
        encoded[:, self.numeric] = values
        for j, lookup in enumerate(lookups):
            if lookup is not None and lookup.ndim == 2:
                first = self.places[j]
                encoded[:, first : first + lookup.shape[1]] = lookup[raw[:, j].astype(np.intp)]
            elif lookup is not None:
                found = lookup[raw[:, j].astype(np.intp)]
                known = np.flatnonzero(found >= 0)
                encoded[known, self.places[j] + found[known]] = 1.0
        return encoded


def _lookup(codes: tuple[str, ...], fitted: tuple[str, ...]) -> Array:
    place = {category: place for place, category in enumerate(fitted)}
    return np.array([place.get(category, -1) for category in codes], dtype=np.int64)


def categories_of(x: Array | Table, place: int) -> tuple[str, ...]:
    """Return the categories of one column; () for numbers."""
    return (x.column(place).categories or ()) if isinstance(x, Table) else ()


def check_missing(missing: str, section: str = "data") -> None:
    """Raise ConfigError for an unknown policy."""
    if missing not in POLICIES:
        advice = f"unknown{did_you_mean(missing, POLICIES)}; known are {', '.join(POLICIES)}"
        raise ConfigError(f"{section}.missing", missing, advice)


def fit_categories(
    x: Array | Table,
    rows: Array,
    columns: Array,
    names: Sequence[str],
    party: str,
    section: str = "data",
    texts: Texts = NO_TEXTS,
) -> Categories:
    """Return the categories of each column that occur in the training rows; None for numbers.

    Of a text column, return its vocabulary.
    """
    if not isinstance(x, Table):
        return (None,) * len(columns)
    found: list[tuple[str, ...] | None] = []
    for place, name in zip(columns, names, strict=True):
        every = x.column(place).categories
        if every is None:
            found.append(None)
            continue
        counts = _counts(x, place, rows)
        if name in texts.columns:
            found.append(vocabulary_of(every, counts, texts.size))
            continue
        held = tuple(category for category, count in zip(every, counts, strict=True) if count)
        if len(held) > MOST_CATEGORIES:
            raise DataError(
                f"{party}: column '{name}' has {len(held)} different texts ({listing(held[:3])}, ...), and each "
                f"would become a feature; the limit is {MOST_CATEGORIES}. Leave the column out, set "
                f"{section}.id if it holds ids, or name it in data.text if it holds documents (in simulations)"
            )
        found.append(held)
    return tuple(found)


def _counts(table: Table, place: int, rows: Array) -> Array:
    """Count how often each category occurs in these rows."""
    column = table.column(place)
    return np.bincount(column.values[rows], minlength=len(column.categories or ()))


def notes_on_tests(x: Array | Table, rows: Array, columns: Array, encoder: Encoder, party: str) -> list[str]:
    """Write a note for each column with categories that occur only in validation or test rows."""
    notes = []
    for place, name, lookup in zip(columns, encoder.names, encoder.lookups(x, columns), strict=True):
        if lookup is None or lookup.ndim == 2:
            continue
        assert isinstance(x, Table)
        unseen = _counts(x, place, rows) * (lookup < 0)
        if unseen.any():
            names = listing(categories_of(x, place)[code] for code in np.flatnonzero(unseen))
            notes.append(
                f"{party}: column '{name}': {np.count_nonzero(unseen)} categories ({names}) occur only in "
                f"held-out rows, {unseen.sum()} of them; those rows get zeros"
            )
    return notes
