"""Find a party's rows by their ids: all rows of its files, encoded and scaled as in the training."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars

from colonnade.data.alignment import IdRules, Ids, clean_ids, normalise_all
from colonnade.data.block import Block, refuse_unusable
from colonnade.data.dialect import USUAL, Dialect
from colonnade.data.formats import TABLES, format_of
from colonnade.data.mapped import map_npy
from colonnade.data.prepare import Prepared
from colonnade.data.report_progress import silent
from colonnade.data.share import PartyShare
from colonnade.data.table import Table
from colonnade.data.tables import check_columns, column_names, npz_arrays, read_columns
from colonnade.data.task import Array
from colonnade.protocol.errors import ConfigError, DataError
from colonnade.protocol.role import WITHHELD


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Lookup:
    places: dict[str, int]  # id → row; WITHHELD: the party does not answer for this id
    x: Array  # float32 (rows, features)
    rules: IdRules = field(default_factory=IdRules)

    def find(self, ids: Sequence[str]) -> Array:
        """Return the row of each id, -1 for an unknown id, WITHHELD for one without an answer."""
        return np.array([self.places.get(id, -1) for id in normalise_all(ids, self.rules)], np.int64)


def party_lookup(
    share: PartyShare,
    files: Sequence[str | Path],
    id: str | None,
    rules: IdRules | None = None,
    format: str | None = None,
    dialect: Dialect = USUAL,
    answered: Array | None = None,
) -> Lookup:
    """Make the lookup of a share's own rows, or of the rows in a party's files.

    All files have the same format. The rules of the alignment decide which ids are equal. If two files have the same
    id, the row of the later file counts. `answered`: the rows of the first file that the party answers for; None: all.
    """
    rules = rules or IdRules()
    if share.prepared is None:
        texts = share.ids
        if texts is None:
            raise DataError(f"{share.name}: its data have no ids; train again with this release")
        ids = clean_ids(texts, rules, share.name)
        return Lookup(_places(ids, 0), np.concatenate([share.train, share.test]), rules)
    places: dict[str, int] = {}
    parts: list[Array] = []
    for file in files:
        found, x = _read(Path(file).expanduser(), share, share.prepared, id, rules, format, dialect)
        here = _places(found, sum(map(len, parts)))
        if answered is not None and not parts:
            kept = set(answered.tolist())
            here = {id: row if row in kept else WITHHELD for id, row in here.items()}
        places |= here
        parts.append(x)
    return Lookup(places, np.concatenate(parts), rules)


def _places(ids: Ids, start: int) -> dict[str, int]:
    return dict(zip(ids.texts, (ids.rows + start).tolist(), strict=True))


def _read(
    file: Path,
    share: PartyShare,
    prepared: Prepared,
    id: str | None,
    rules: IdRules,
    format: str | None,
    dialect: Dialect,
) -> tuple[Ids, Array]:
    """Return the ids and features of a file; without an id column, rows are counted from 0 as at the other members."""
    if not file.is_file():
        raise ConfigError("party.predict_data", str(file), "there is no such file")
    try:
        kind = format_of(file, format, (*TABLES, "npz", "npy"), "party")
        x, ids = _arrays(file, kind) if kind in ("npz", "npy") else _table(file, prepared, id, dialect)
        rows, index = np.arange(len(x)), np.arange(len(share.columns))
        if isinstance(x, np.ndarray):
            index = _places_of(share.columns, x.shape[1], file)
        missing = "refuse" if prepared.encoder.means is None else "mean"
        refuse_unusable(Block(x, rows, index), share.name, share.columns, missing, "party")
    except DataError as error:
        raise error if str(file) in str(error) else DataError(f"{file}: {error}") from None
    column = polars.Series("row", rows) if ids is None else ids
    found = clean_ids(column, rules, f"{share.name}: {file}")
    return found, prepared.scaler.fill(Block(x, rows, index, prepared.encoder))


def _table(file: Path, prepared: Prepared, id: str | None, dialect: Dialect) -> tuple[Table, polars.Series | None]:
    encoder = prepared.encoder
    names = column_names(file, silent, dialect)
    check_columns(file, names, id=id, section="party")
    if absent := [name for name in encoder.names if name not in names]:
        raise DataError(f"there is no column '{absent[0]}', which the party was trained with")
    categorical = [name for name, held in zip(encoder.names, encoder.categories, strict=True) if held is not None]
    columns, texts = read_columns(file, encoder.names, () if id is None else (id,), categorical, silent, dialect)
    for name, column in columns.items():
        if column.categories is not None and name not in categorical:
            raise DataError(f"column '{name}' must hold numbers, as in the training")
    return Table([columns[name] for name in encoder.names]), None if id is None else texts[id]


def _arrays(file: Path, kind: str) -> tuple[Array, polars.Series | None]:
    if kind == "npy":
        return map_npy(file)[1], None
    arrays, _ = npz_arrays(file, lambda key: key in ("x", "ids"))
    if "x" not in arrays or arrays["x"].ndim != 2:
        raise DataError("there is no array 'x' of rows and columns")
    return arrays["x"], polars.Series("ids", arrays["ids"]) if "ids" in arrays else None


def _places_of(columns: Sequence[str], width: int, file: Path) -> Array:
    """Return the places of the named columns in an .npz or .npy, whose columns are x0, x1, …"""
    places = np.array([int(name.removeprefix("x")) for name in columns], np.int64)
    if places.max() >= width:
        raise DataError(f"{width} columns, but the party was trained with '{columns[int(places.argmax())]}'")
    return places
