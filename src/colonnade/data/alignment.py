"""Make ids comparable, and keep the common order of the rows that all members have.

    ids = clean_ids(read_id_column("clinic.csv", "patient", "party"), IdRules(case="fold"), "clinic: clinic.csv")
    ids.texts[i], ids.rows[i]      an id, and the row of the file (counted from 0) that it stands in

`algorithms.alignment` finds the common ids without showing the others. Each member keeps the result as an `Alignment`.
Errors and notes here contain counts, never ids.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np
import polars

from colonnade.data.dialect import USUAL, Dialect
from colonnade.data.formats import TABLES, existing
from colonnade.data.ids import as_text, digest_of_ids
from colonnade.data.report_progress import ReportProgress, silent
from colonnade.data.suggest import listing
from colonnade.data.tables import check_columns, column_names, npz_arrays, read_columns
from colonnade.data.task import Array
from colonnade.protocol.errors import ConfigError, DataError

__all__ = ["Alignment", "IdRules", "Ids", "clean_ids", "normalise", "normalise_all", "read_id_column"]


class IdRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[align]`: when two texts are the same id, and what happens to rows without a unique id.

    All members use the same rules.

    `normalise` applies them in this order: unicode, case, unicode again (folding may undo it), trim, leading zeros.
    """

    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        "unicode": ("NFC", "NFKC", "keep"),
        "case": ("keep", "fold"),
        "leading_zeros": ("keep", "drop"),
        "duplicates": ("refuse", "drop"),
        "empty": ("refuse", "drop"),
    }

    unicode: str = "NFC"
    trim: bool = True  # removes white space at both ends
    case: str = "keep"
    leading_zeros: str = "keep"  # "drop": only for ids that consist of digits
    duplicates: str = "refuse"  # "drop": the first row of an id stays
    empty: str = "refuse"
    min_parties: int = 0  # keep rows that the server and at least this many parties have; 0: rows that all members have

    def __post_init__(self) -> None:
        if self.min_parties < 0:
            raise ConfigError("align.min_parties", self.min_parties, "must be a number of parties; 0 means all")
        for key, words in self.CHOICES.items():
            if getattr(self, key) not in words:
                advice = f"use one of {', '.join(map(repr, words))}"
                raise ConfigError(f"align.{key}", getattr(self, key), advice)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ids:
    """The ids that one member brings to the alignment, each once."""

    texts: list[str]
    rows: Array  # int64 (ids,): the row of the file in which each id stands
    sha256: str  # of the id column as it is in the file
    empty: int  # dropped rows without an id
    repeated: int  # dropped rows whose id an earlier row has


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Alignment:
    """The rows that the members have in common, in the order that all of them use."""

    name: str  # of the member that holds this alignment
    members: tuple[str, ...]  # the members whose ids were compared
    rows: Array  # int64 (rows in common,): the place of each row in the member's own file; -1: not there
    sha256: str  # the same for all members of one alignment
    ids_sha256: str  # of the member's own id column when it was aligned
    presence: Array | None = None  # bool (rows in common, members): which member has which row; None: unknown here

    def rows_of(self, file: Path, ids: polars.Series) -> Array:
        """Return the places of the common rows in the member's file; raises DataError if its ids have changed since."""
        if digest_of_column(ids) != self.ids_sha256:
            raise DataError(
                f"{file}: the ids of {self.name} have changed since the alignment ({len(ids)} rows now): "
                "all members must run colonnade align again"
            )
        return self.rows

    def absent(self, parties: Sequence[str]) -> Array | None:
        """Return bool (rows in common, parties), True where a party lacks a row.

        Returns None if no row is known to be lacking.
        """
        if self.presence is None:
            return None
        strangers = [name for name in parties if name not in self.members]
        if strangers:
            raise DataError(
                f"{', '.join(strangers)} took no part in the alignment: all members must run colonnade align again"
            )
        lacks = ~self.presence[:, [self.members.index(name) for name in parties]]
        return lacks if lacks.any() else None


def normalise(text: str, rules: IdRules) -> str:
    """Return the id in the form that is compared; an empty result means "no id"."""
    text = _composed(text, rules)
    if rules.case == "fold":
        text = _composed(text.casefold(), rules)
    if rules.trim:
        text = text.strip()
    if rules.leading_zeros == "drop" and text.isdecimal():
        text = text.lstrip("0") or "0"
    return text


def normalise_all(texts: Iterable[str], rules: IdRules) -> list[str]:
    """Return `normalise` of each text."""
    if rules.case != "keep" or rules.leading_zeros != "keep":
        return [normalise(text, rules) for text in texts]
    # Text in ASCII is composed already. Most ids are, and a call for each id would take several times as long.
    if rules.trim:
        return [text.strip() if text.isascii() else normalise(text, rules) for text in texts]
    return [text if text.isascii() else normalise(text, rules) for text in texts]


def _composed(text: str, rules: IdRules) -> str:
    return text if rules.unicode == "keep" else unicodedata.normalize(rules.unicode, text)  # type: ignore[arg-type]


def clean_ids(column: polars.Series, rules: IdRules, whose: str) -> Ids:
    """Return the ids of a column after the rules; drops or refuses rows without a unique id, and counts them."""
    try:
        texts = normalise_all(_texts(column), rules)
    except DataError as error:
        raise DataError(f"{whose}: {error}") from None
    first: dict[str, int] = {}
    empty = 0
    for row, text in enumerate(texts):
        if text.strip():  # an id of blanks alone counts as empty, trimmed or not
            first.setdefault(text, row)
        else:
            empty += 1
    repeated = len(texts) - empty - len(first)
    _refuse(whose, column.name, rules, empty, repeated)
    if not first:
        raise DataError(f"{whose}: none of the {len(texts)} rows has an id in column '{column.name}'")
    return Ids(list(first), np.fromiter(first.values(), np.int64), digest_of_column(column), empty, repeated)


def _refuse(whose: str, column: str, rules: IdRules, empty: int, repeated: int) -> None:
    causes, keys = [], []
    if empty and rules.empty == "refuse":
        causes.append(f"{empty} rows have no id")
        keys.append("align.empty")
    if repeated and rules.duplicates == "refuse":
        causes.append(f"{repeated} rows repeat an earlier id")
        keys.append("align.duplicates")
    if causes:
        advice = f'correct the file, or set {" and ".join(keys)} = "drop" in the configs of all members'
        raise DataError(f"{whose}: column '{column}': {', '.join(causes)}; {advice}")


def _texts(column: polars.Series) -> polars.Series:
    return as_text(column).fill_null("")


def digest_of_column(column: polars.Series) -> str:
    """Return the digest of the ids in their order, as they are written in the file (before the rules)."""
    return digest_of_ids(_texts(column))


def read_id_column(
    path: str | Path,
    id: str | None,
    section: str,
    progress: ReportProgress = silent,
    format: str | None = None,
    dialect: Dialect = USUAL,
) -> polars.Series:
    """Read only the id column of a member's own .csv, .csv.gz, .parquet or .npz (array `ids`)."""
    file, kind = existing(path, format, (*TABLES, "npz"), section)
    if kind == "npz":
        return ids_of_npz(file)
    if id is None:
        raise ConfigError(f"{section}.id", None, f"name the column of {file.name} with the ids")
    check_columns(file, column_names(file, progress, dialect), id=id, section=section)
    _, texts = read_columns(file, (), (id,), (), progress, dialect)
    return texts[id]


def ids_of_npz(file: Path) -> polars.Series:
    arrays, found = npz_arrays(file, lambda key: key == "ids")
    if "ids" not in arrays:
        raise DataError(f"{file}: there is no array 'ids', only: {listing(found) or 'nothing'}")
    ids = arrays["ids"]
    if ids.ndim != 1 or ids.dtype.kind not in "iufUS":
        raise DataError(f"{file}: ids must be one row of numbers or text, not {ids.dtype} of shape {ids.shape}")
    return polars.Series("ids", ids)
