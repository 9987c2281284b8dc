"""Which party holds which columns: the parties' names and, for each, indices into the dataset's columns.

| `[data] split` | what a party holds |
|---|---|
| "even" | consecutive columns, in order; if the number does not divide evenly, the first parties hold one more |
| "views" | one view, by its name, of a source with several views of the same rows; "even" for time series |
| "rows", "columns" | a band of rows or columns of an image |
| "quarters" | a quarter of an image: top left, top right, bottom left, bottom right |
| {importance = 0.1}, {correlation = 0.5} | columns that chance deals: see dealing.py |
| {name = [columns]} | the named columns, or ranges of them as "first..last"; columns may be left out |
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from colonnade.data.dataset import Dataset
from colonnade.data.suggest import did_you_mean
from colonnade.data.task import Array
from colonnade.protocol.errors import ConfigError

Named = Mapping[str, Sequence[str]]
Split = str | Mapping[str, Sequence[str] | float]  # a number is for the rules of dealing.py
Assignment = tuple[tuple[str, ...], tuple[Array, ...]]

DEFAULT_PARTIES = 4
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # a name becomes part of file names, addresses and certificates


def assign(dataset: Dataset, parties: int | None, how: Split) -> Assignment:
    """Return the names of the parties, and the columns (int64) of each."""
    if isinstance(how, Mapping):
        return _named(dataset, parties, how)
    rules = {"even": _even, "rows": _bands, "columns": _upright_bands, "quarters": _quarters}
    if how == "views" or (how == "even" and dataset.series):
        return _views(dataset, parties)
    if not isinstance(how, str) or how not in rules:
        known = f"known are {', '.join(rules)}, views, {{importance = 0.1}}, {{correlation = 0.5}}, and a table of "
        known += "name = [columns]"
        raise ConfigError("data.split", how, f"unknown{did_you_mean(how, [*rules, 'views'])}; {known}")
    names = party_names(parties)
    return names, rules[how](dataset, len(names))


def party_names(parties: int | None) -> tuple[str, ...]:
    """Return party-1, party-2, …; raises ConfigError if the number is wrong."""
    count = DEFAULT_PARTIES if parties is None else parties
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigError("data.parties", count, "must be a whole number from 1")
    return tuple(f"party-{i + 1}" for i in range(count))


def _even(dataset: Dataset, parties: int) -> tuple[Array, ...]:
    width = len(dataset.columns)
    if parties > width:
        advice = f"party-{width + 1} would have no columns, because {dataset.name} has only {width}"
        raise ConfigError("data.parties", parties, advice)
    return tuple(np.array_split(np.arange(width, dtype=np.int64), parties))


def _pixels(dataset: Dataset, how: str) -> Array:
    """Return the column of each pixel, (channels, height, width); raises ConfigError if the rows are not images."""
    if dataset.image is None:
        raise ConfigError("data.split", how, f'is for images, but {dataset.name} is a table; use "even"')
    return np.arange(len(dataset.columns), dtype=np.int64).reshape(dataset.channels, *dataset.image)


def _views(dataset: Dataset, parties: int | None) -> Assignment:
    if not dataset.views:
        advice = (
            f"{dataset.name} has no views (mfeat, physionet2012 and .npz files with arrays x_NAME have them); use "
            '"even"'
        )
        raise ConfigError("data.split", "views", advice)
    names = tuple(view.name for view in dataset.views)
    if parties is not None and parties != len(names):
        advice = f"{dataset.name} has {len(names)} views ({', '.join(names)}); leave it out or split by columns"
        raise ConfigError("data.parties", parties, advice)
    for name in names:
        check_name(name)
    return names, tuple(np.arange(view.columns.start, view.columns.stop, dtype=np.int64) for view in dataset.views)


def _bands(dataset: Dataset, parties: int) -> tuple[Array, ...]:
    pixels = _pixels(dataset, "rows")
    _refuse_uneven(pixels.shape[1], "rows", parties)
    return tuple(band.ravel() for band in np.split(pixels, parties, axis=1))


def _upright_bands(dataset: Dataset, parties: int) -> tuple[Array, ...]:
    pixels = _pixels(dataset, "columns")
    _refuse_uneven(pixels.shape[2], "columns", parties)
    return tuple(band.ravel() for band in np.split(pixels, parties, axis=2))


def _refuse_uneven(length: int, what: str, parties: int) -> None:
    if length % parties:
        fit = [n for n in range(1, length + 1) if length % n == 0]
        advice = f'split = "{what}" cuts {length} {what} into equal bands, so it must be one of {fit}'
        raise ConfigError("data.parties", parties, advice)


def _quarters(dataset: Dataset, parties: int) -> tuple[Array, ...]:
    pixels = _pixels(dataset, "quarters")
    _, height, width = pixels.shape
    if parties != 4:
        raise ConfigError("data.parties", parties, 'split = "quarters" needs 4')
    if height % 2 or width % 2:
        raise ConfigError("data.split", "quarters", f"needs an even height and width, not {height} x {width}")
    halves = np.split(pixels, 2, axis=1)
    return tuple(quarter.ravel() for half in halves for quarter in np.split(half, 2, axis=2))


def _named(dataset: Dataset, parties: int | None, how: Mapping[str, Sequence[str] | float]) -> Assignment:
    if not how:
        raise ConfigError("data.split", {}, "names no party")
    if parties is not None and parties != len(how):
        raise ConfigError(
            "data.parties", parties, f"data.split names {len(how)} parties; leave one of the two keys out"
        )
    places = {column: place for place, column in enumerate(dataset.columns)}
    owner: dict[str, str] = {}
    for party, entries in how.items():
        check_name(party)
        for column in columns_meant(dataset.name, dataset.columns, party, entries):
            if column in owner:
                raise ConfigError("data.split", column, f"both {owner[column]} and {party} have this column")
            owner[column] = party
    held = {party: [places[column] for column, name in owner.items() if name == party] for party in how}
    return tuple(how), tuple(np.asarray(held[party], dtype=np.int64) for party in how)


def check_name(party: str, key: str = "data.split") -> None:
    """Refuse a name that is not valid for a party; raises ConfigError with `key`."""
    if not isinstance(party, str) or not NAME.fullmatch(party) or party == "server":
        advice = "a party's name is 1 to 64 of A-Z a-z 0-9 _ . - and not 'server'"
        raise ConfigError(key, party, advice)


def columns_meant(
    source: str, columns: Sequence[str], party: str, entries: Sequence[str] | float, key: str = "data.split"
) -> tuple[str, ...]:
    """Return the columns that a party's list means: each entry is a name, or "first..last" with both ends."""
    if isinstance(entries, str) or not isinstance(entries, Sequence):
        raise ConfigError(key, entries, f"{party} needs a list of column names")
    if not entries:
        raise ConfigError(key, [], f"{party} has no columns; name at least one")
    places = {column: place for place, column in enumerate(columns)}
    meant: dict[str, None] = {}
    for entry in entries:
        first, last = _ends(source, places, party, entry, key)
        for column in columns[places[first] : places[last] + 1]:
            if column in meant:
                raise ConfigError(key, column, f"{party} has this column twice")
            meant[column] = None
    return tuple(meant)


def _ends(source: str, places: Mapping[str, int], party: str, entry: str, key: str) -> tuple[str, str]:
    if entry in places:
        return entry, entry
    first, dots, last = str(entry).partition("..")
    for end in (first, last) if dots else (entry,):
        if end not in places:
            raise ConfigError(key, entry, f"{party}: {source} has no column '{end}'{did_you_mean(end, places)}")
    if places[first] > places[last]:
        raise ConfigError(key, entry, f"{party}: '{first}' comes after '{last}'")
    return first, last


def row_shape(dataset: Dataset, how: Split, index: Array) -> tuple[int, ...]:
    """Return the shape of one row of a party: its piece of an image or series if it has one, else (columns,)."""
    if how == "views" or (how == "even" and dataset.series):
        return next(view.shape for view in dataset.views if view.columns.start == index[0])
    if dataset.image is None or how not in ("rows", "columns", "quarters"):
        return (len(index),)
    height, width = dataset.image
    rows, columns = np.unique(index % (height * width) // width), np.unique(index % width)
    piece = (len(rows), len(columns))
    return piece if dataset.channels == 1 else (dataset.channels, *piece)
