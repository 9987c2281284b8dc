"""Whose rows are the same: ids made comparable, and the order in which all owners hold the rows they have in common.

    ids = clean_ids(read_id_column("clinic.csv", "patient", "party"), IdRules(case="fold"), "clinic: clinic.csv")
    ids.texts[i], ids.rows[i]      an id, and the row of the file (counted from 0) that it stands in

How the owners find what they have in common without showing the rest is the work of `algorithms.alignment`; what each
of them keeps of it is an `Alignment`. Errors and notes here have counts, never ids.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np
import polars

from colonnade.data.dialect import USUAL, Dialect
from colonnade.data.formats import TABLES, existing
from colonnade.data.ids import as_text, digest_of_ids
from colonnade.data.progress import Progress, silent
from colonnade.data.suggest import listing
from colonnade.data.tables import check_columns, column_names, npz_arrays, read_columns
from colonnade.data.task import Array
from colonnade.protocol.errors import ConfigError, DataError

__all__ = ["Alignment", "IdRules", "Ids", "clean_ids", "normalise", "read_id_column"]


class IdRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[align]`: when two texts are the same id, and what becomes of rows without one of their own. All agree upon it.

    In this order: unicode, case (then unicode once more, for folding may undo it), trim, leading zeros.
    """

    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        "unicode": ("NFC", "NFKC", "keep"),
        "case": ("keep", "fold"),
        "leading_zeros": ("keep", "drop"),
        "duplicates": ("refuse", "drop"),
        "empty": ("refuse", "drop"),
    }

    unicode: str = "NFC"
    trim: bool = True  # white space at both ends
    case: str = "keep"
    leading_zeros: str = "keep"  # "drop": of ids that are digits only
    duplicates: str = "refuse"  # "drop": the first row of an id stays
    empty: str = "refuse"
    min_parties: int = 0  # rows that at least so many parties and the server have; 0: that all have

    def __post_init__(self) -> None:
        if self.min_parties < 0:
            raise ConfigError("align.min_parties", self.min_parties, "is a number of parties; 0: all of them")
        for key, words in self.CHOICES.items():
            if getattr(self, key) not in words:
                advice = f"use one of {', '.join(map(repr, words))}"
                raise ConfigError(f"align.{key}", getattr(self, key), advice)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ids:
    """What one owner brings: each id once."""

    texts: list[str]
    rows: Array  # int64 (ids,): the row of the file that each stands in
    sha256: str  # of the column as it is in the file
    empty: int  # rows that were dropped because they have no id,
    repeated: int  # or one that came before


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Alignment:
    """The rows that the members have in common, in the order that all of them hold."""

    name: str  # of the owner
    members: tuple[str, ...]  # whose ids were compared
    rows: Array  # int64 (rows in common,): where each stands in the owner's file; -1: not there
    sha256: str  # the same for all members of one alignment
    ids_sha256: str  # of the owner's column of ids when it was aligned
    presence: Array | None = None  # bool (rows in common, members): who has it, for whoever was told

    def rows_of(self, file: Path, ids: polars.Series) -> Array:
        """Where the common rows stand in the owner's file, if its ids are still those of the alignment."""
        if digest_of_column(ids) != self.ids_sha256:
            raise DataError(
                f"{file}: the ids of {self.name} have changed since the alignment ({len(ids)} rows now): "
                "all members must run colonnade align again"
            )
        return self.rows

    def absent(self, parties: Sequence[str]) -> Array | None:
        """bool (rows in common, parties): who lacks which row; None: nobody lacks any, as far as its owner knows."""
        if self.presence is None:
            return None
        strangers = [name for name in parties if name not in self.members]
        if strangers:
            raise DataError(f"{', '.join(strangers)} took no part in the alignment: all must run colonnade align again")
        lacks = ~self.presence[:, [self.members.index(name) for name in parties]]
        return lacks if lacks.any() else None


def normalise(text: str, rules: IdRules) -> str:
    """An id as it is compared; an empty text is none."""
    text = _composed(text, rules)
    if rules.case == "fold":
        text = _composed(text.casefold(), rules)
    if rules.trim:
        text = text.strip()
    if rules.leading_zeros == "drop" and text.isdecimal():
        text = text.lstrip("0") or "0"
    return text


def _composed(text: str, rules: IdRules) -> str:
    return text if rules.unicode == "keep" else unicodedata.normalize(rules.unicode, text)  # type: ignore[arg-type]


def clean_ids(column: polars.Series, rules: IdRules, whose: str) -> Ids:
    """The ids of a column by the rules; rows without an id of their own are dropped or refused, with their number."""
    try:
        texts = [normalise(text, rules) for text in _texts(column)]
    except DataError as error:
        raise DataError(f"{whose}: {error}") from None
    first: dict[str, int] = {}
    empty = 0
    for row, text in enumerate(texts):
        if text.strip():  # blanks alone are no id, trimmed or not
            first.setdefault(text, row)
        else:
            empty += 1
    repeated = len(texts) - empty - len(first)
    _refuse(whose, column.name, rules, empty, repeated)
    if not first:
        raise DataError(f"{whose}: there is no id in column '{column.name}', which has {len(texts)} rows")
    return Ids(list(first), np.fromiter(first.values(), np.int64), digest_of_column(column), empty, repeated)


def _refuse(whose: str, column: str, rules: IdRules, empty: int, repeated: int) -> None:
    causes, keys = [], []
    if empty and rules.empty == "refuse":
        causes.append(f"{empty} rows have no id")
        keys.append("align.empty")
    if repeated and rules.duplicates == "refuse":
        causes.append(f"{repeated} rows have an id that came before")
        keys.append("align.duplicates")
    if causes:
        advice = f'mend the file, or let all set {" and ".join(keys)} = "drop"'
        raise DataError(f"{whose}: column '{column}': {', '.join(causes)}; {advice}")


def _texts(column: polars.Series) -> polars.Series:
    return as_text(column).fill_null("")


def digest_of_column(column: polars.Series) -> str:
    """Of the ids of a file in their order, as they are written there."""
    return digest_of_ids(_texts(column))


def read_id_column(
    path: str | Path,
    id: str | None,
    section: str,
    progress: Progress = silent,
    format: str | None = None,
    dialect: Dialect = USUAL,
) -> polars.Series:
    """The column of ids of a member's own .csv, .csv.gz, .parquet or .npz (array ids), and nothing else of it."""
    file, kind = existing(path, format, (*TABLES, "npz"), section)
    if kind == "npz":
        return ids_of_npz(file)
    if id is None:
        raise ConfigError(f"{section}.id", None, f"name the column of {file.name} with the ids")
    check_columns(file, column_names(file, progress, dialect), id=id, section=section)
    _, texts = read_columns(file, (), (id,), (), progress, dialect)
    return texts[id]


def ids_of_npz(file: Path) -> polars.Series:
    """The array ids."""
    arrays, found = npz_arrays(file, lambda key: key == "ids")
    if "ids" not in arrays:
        raise DataError(f"{file}: there is no array 'ids', only: {listing(found) or 'nothing'}")
    ids = arrays["ids"]
    if ids.ndim != 1 or ids.dtype.kind not in "iufUS":
        raise DataError(f"{file}: ids must be one row of numbers or text, not {ids.dtype} of shape {ids.shape}")
    return polars.Series("ids", ids)
