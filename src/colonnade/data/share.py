"""What one role holds: a party its features, the server its labels, each read from its own file.

All members have the same rows in the same order. Each finds the rows to hold out by itself, from the number of rows and
the settings of the split. Before they start they compare `rows` and `ids_sha256`.

    by = RowSplit(test_fraction=0.2, validation_fraction=0.1, split_seed=0)
    clinic = read_party_share("clinic.csv", name="clinic", id="patient", by=by)
    server = read_server_share("labels.csv", label="diagnosis", id="patient", by=by)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars

from colonnade.data.alignment import Alignment
from colonnade.data.block import Block, refuse_unusable
from colonnade.data.columns import check_name, columns_meant
from colonnade.data.dataset import check_table
from colonnade.data.dialect import USUAL, Dialect
from colonnade.data.encoding import Encoder
from colonnade.data.fitted import Fitted, fitted_of, scaler_with
from colonnade.data.formats import TABLES, existing
from colonnade.data.ids import digest_of_ids, digest_of_rows, ids_as_text
from colonnade.data.mapped import MappedRows, map_npy
from colonnade.data.partition import Partition
from colonnade.data.prepare import Preparation, Prepared, Rows, RowSplit, prepare
from colonnade.data.report_progress import ReportProgress, silent
from colonnade.data.scaling import Scaler, fit
from colonnade.data.suggest import listing
from colonnade.data.table import Column, Table
from colonnade.data.tables import (
    check_columns,
    column_names,
    label_column,
    notes_on_typos,
    npz_arrays,
    read_columns,
)
from colonnade.data.task import Array, Task, read_labels
from colonnade.protocol.errors import ConfigError, DataError

Labels = tuple[Task, Array, Array]  # the task, the labels to train on, and those held out


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PartyShare:
    """The features of one party, encoded and scaled."""

    name: str
    columns: tuple[str, ...]  # as in its file; a column with categories becomes several features
    train: Any  # float32 (n_train, features): an array, or rows that stay in a file (`mapped.MappedRows`)
    test: Any  # float32 (n_validation + n_test, features): the validation rows come first
    shape: tuple[int, ...]  # of one row: (features,), or the shape of its piece of an image or series
    ids_sha256: str
    notes: tuple[str, ...]
    labels: Labels | None = None  # for methods whose parties hold the labels
    prepared: Prepared | None = None  # how to encode and scale further rows, if it was read from the party's file
    read_ids: Callable[[], polars.Series] | None = None  # if the share comes from one table of all parties
    present: Rows | None = None  # bool: the rows of either part that the party has, the others are zeros; None: all
    validation: int = 0  # number of validation rows in `test`
    made_by: Fitted | None = None  # of a share that comes from one table of all parties

    @property
    def fitted(self) -> Fitted | None:
        """What the party fitted on its training rows; None: a share of an earlier release, which did not say."""
        own = self.prepared
        return self.made_by if own is None else fitted_of(own.encoder, own.scaler)

    @property
    def rows(self) -> int:
        """Training rows plus rows held out."""
        return len(self.train) + len(self.test)

    def __repr__(self) -> str:
        return f"PartyShare({self.name}: {self.rows:,} rows, {len(self.columns)} columns)"

    @property
    def ids(self) -> polars.Series | None:
        """Ids of the training rows, then of the rows held out; read on demand: only predictions need them."""
        return None if self.read_ids is None else self.read_ids()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ServerShare:
    """The server's labels."""

    task: Task
    y_train: Any  # (n_train,), class index (int64) or target (float32): an array, or rows that stay in a file
    y_test: Array
    ids_sha256: str
    notes: tuple[str, ...]
    absent: Rows | None = None  # bool (rows, parties): True where a party lacks a row of either part; None: nowhere
    validation: int = 0  # number of validation rows in `y_test`

    @property
    def rows(self) -> int:
        """Training rows plus rows held out."""
        return len(self.y_train) + len(self.y_test)

    def __repr__(self) -> str:
        return f"ServerShare({self.rows:,} rows, {self.task})"


def party_share(partition: Partition, index: int, labels: bool = False) -> PartyShare:
    """Return what one party of a partition holds, for all roles on one machine.

    It includes the labels if the method needs them.
    """
    name, ids = partition.parties[index], partition.ids
    return PartyShare(
        name=name,
        columns=partition.columns[index],
        train=partition.train[index],
        test=partition.test[index],
        shape=partition.shapes[index],
        ids_sha256=digest_of_rows(len(partition.y_train) + len(partition.y_test)),
        notes=tuple(note for note in partition.notes if note.startswith(f"{name}: ")),
        labels=(partition.task, partition.y_train, partition.y_test) if labels else None,
        read_ids=None if ids is None else lambda: ids,
        validation=partition.validation,
        made_by=partition.fitted(index),
    )


def server_share(partition: Partition) -> ServerShare:
    """Return what the server of a partition holds, for all roles on one machine."""
    theirs = tuple(f"{name}: " for name in partition.parties)
    return ServerShare(
        task=partition.task,
        y_train=partition.y_train,
        y_test=partition.y_test,
        ids_sha256=digest_of_rows(len(partition.y_train) + len(partition.y_test)),
        notes=tuple(note for note in partition.notes if not note.startswith(theirs)),
        validation=partition.validation,
    )


def share_without_labels(rows: int, task: Task, by: RowSplit) -> ServerShare:
    """Make the share of a server without labels and ids that knows only the number of rows.

    Its zeros are not labels.
    """
    if rows < 2:
        raise ConfigError("server.rows", rows, "must be 2 or more")
    parts, validation = by.of("server.rows", rows)
    return ServerShare(task, np.zeros(len(parts[0])), np.zeros(len(parts[1])), "", (), validation=validation)


def read_party_share(
    path: str | Path,
    *,
    name: str,
    id: str | None = None,
    label: str | None = None,
    categorical: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    scale: str | None = None,
    missing: str = "refuse",
    by: RowSplit,
    aligned: Alignment | None = None,
    progress: ReportProgress | None = None,
    format: str | None = None,
    dialect: Dialect = USUAL,
    before: Fitted | None = None,
) -> PartyShare:
    """Read a party's own .csv, .csv.gz, .parquet or .npz (array x, optionally ids).

    An .npy of floats is mapped instead.

    `format` names the format if the file's name does not; `dialect` says how a CSV file is written. Every column except
    the id and the label is a feature, or only those that `columns` names ("first..last" is a range). `scale` is
    "standard" by default. Of an aligned file only the common rows are used, in the common order. `before` is what the
    party fitted in the run that this one continues.
    """
    check_name(name, "party.name")
    earlier = {} if before is None else {name: before}
    how = Preparation("standard" if scale is None else scale, missing, section="party", before=earlier)
    file, kind = existing(path, format, (*TABLES, "npz", "npy"), "party")
    if kind == "npy":
        _refuse_beside_npy("party", {"id": id, "label": label, "aligned": aligned, "categorical": categorical or None})
        return _mapped_share(file, name, columns, how, by)
    if kind == "npz":
        if label is not None:
            raise ConfigError("party.label", label, "labels are read from CSV and Parquet only")
        raw = _from_npz(file, name, id, categorical, columns, aligned)
    else:
        raw = _from_table(file, name, id, label, categorical, columns, aligned, progress or silent, dialect)
    whole = len(raw.x) if raw.present is None else len(raw.present)
    rows, validation = by.of(str(file), whole)
    present = None if raw.present is None else (raw.present[rows[0]], raw.present[rows[1]])
    try:
        ready = prepare(raw.x, raw.index, raw.columns, name, _read_rows(rows, raw.present), how)
    except DataError as error:
        raise DataError(f"{file}: {error}") from None
    notes = (*raw.notes, *ready.notes)
    labels = None if raw.labels is None else (raw.labels[1], raw.labels[0][rows[0]], raw.labels[0][rows[1]])
    train, test = (
        (ready.train, ready.test) if present is None else map(_among_zeros, (ready.train, ready.test), present)
    )
    return PartyShare(
        name, raw.columns, train, test, train.shape[1:], raw.ids_sha256, notes, labels, ready, present=present,
        validation=validation,
    )  # fmt: skip


def _refuse_beside_npy(section: str, settings: Mapping[str, Any]) -> None:
    """Raise ConfigError for settings that need column names, which one array of numbers does not have."""
    for key, value in settings.items():
        if value is not None:
            advice = (
                "an .npy file has no ids and no column names: leave this key out, and give all members' tables the "
                "same rows in the same order"
            )
            raise ConfigError(f"{section}.{key}", value if isinstance(value, str) else "...", advice)


def _mapped_share(file: Path, name: str, columns: Sequence[str] | None, how: Preparation, by: RowSplit) -> PartyShare:
    """Make a share whose rows stay in their file; only a fitted scaling reads the whole file, once, in order."""
    mapping, x = map_npy(file)
    check_table(str(file), x)
    if x.dtype not in (np.float32, np.float16):
        raise DataError(f"{file}: an .npy file is read as it is, so it must hold float32 or float16, not {x.dtype}")
    if how.missing != "refuse":
        raise ConfigError(
            "party.missing",
            how.missing,
            "fill in the missing values of an .npy file beforehand, and leave this key out",
        )
    index, used = _numbered(file, x.shape[1], name, columns)
    rows, validation = by.of(str(file), len(x))
    parts = [part.astype(np.int32 if len(x) < 2**31 else np.int64) for part in rows]
    encoder = Encoder(used, (None,) * len(used), None)
    scaler = _fit_in_order(file, x, np.sort(parts[0]), index, used, name, how)
    before = how.before.get(name)
    scaler = scaler if before is None else scaler_with(before, encoder, scaler, name)
    mapping.give_back()
    mapping.at_random()

    def take(rows: Array) -> Array:
        values = scaler.fill(Block(x, rows, index))
        if not np.isfinite(values).all():
            row, column = np.argwhere(~np.isfinite(values))[0]
            raise DataError(f"{file}: row {rows[row]}, column '{used[column]}' (counted from 0) is NaN or infinite")
        return values

    train, test = (MappedRows(x, part, take, len(used)) for part in parts)
    prepared = Prepared(encoder, scaler, train, test, [])
    return PartyShare(
        name, used, train, test, (len(used),), digest_of_rows(len(x)), (), prepared=prepared, validation=validation
    )


def _fit_in_order(
    file: Path, x: Array, rows: Array, index: Array, names: tuple[str, ...], party: str, how: Preparation
) -> Scaler:
    """Sum in the file's order, not the split's: the last digits may differ from those of a table in memory."""
    if how.scale != "none":
        try:
            refuse_unusable(Block(x, np.arange(len(x)), index), party, names, how.missing, how.section)
        except DataError as error:
            raise DataError(f"{file}: {error}") from None
    return fit(how.scale, Block(x, rows, index), how.factor)


def _read_rows(rows: Rows, present: Array | None) -> Rows:
    """Return the rows of either part that the file has, as places among the rows that were read."""
    if present is None:
        return rows
    places = np.cumsum(present) - 1
    train, test = (places[part[present[part]]] for part in rows)
    if not len(train):
        raise DataError(
            "this party has none of the training rows: run colonnade align again with a larger align.min_parties"
        )
    return train, test


def _among_zeros(values: Array, present: Array) -> Array:
    """Fill the rows that the party lacks with zeros; the server replaces their embeddings."""
    spread = np.zeros((len(present), *values.shape[1:]), values.dtype)
    spread[present] = values
    return spread


def read_server_share(
    path: str | Path,
    *,
    label: str | None,
    id: str | None = None,
    by: RowSplit,
    aligned: Alignment | None = None,
    parties: Sequence[str] = (),
    progress: ReportProgress | None = None,
    format: str | None = None,
    dialect: Dialect = USUAL,
) -> ServerShare:
    """Read only the label and the id column of the server's own .csv, .csv.gz or .parquet.

    An .npy holds nothing but the labels. `parties`: the parties whose lacking rows to report, if the alignment knows
    them.
    """
    file, kind = existing(path, format, (*TABLES, "npy"), "server")
    if kind == "npy":
        _refuse_beside_npy("server", {"id": id, "label": label, "aligned": aligned})
        y, task = _labels_of(file)
        rows, validation = by.of(str(file), len(y))
        return ServerShare(task, y[rows[0]], y[rows[1]], digest_of_rows(len(y)), (), validation=validation)
    if label is None:
        raise ConfigError("server.label", None, f"name the column of {file.name} to predict")
    check_columns(file, column_names(file, progress or silent, dialect), label=label, id=id, section="server")
    aside = (label,) if id is None else (label, id)
    _, texts = read_columns(file, (), aside, (), progress or silent, dialect)
    order = _order(file, None if id is None else texts[id], len(texts[label]), aligned, "server")
    if order.present is not None:
        raise DataError(f"{file}: some rows of the alignment have no label: run colonnade align again")
    y, task = label_column(file, order.of_texts(texts[label]))
    rows, validation = by.of(str(file), len(y))
    lacks = None if aligned is None else aligned.absent(parties)
    absent = None if lacks is None else (lacks[rows[0]], lacks[rows[1]])
    return ServerShare(task, y[rows[0]], y[rows[1]], order.sha256, (), absent, validation)


def _labels_of(file: Path) -> tuple[Array, Task]:
    try:
        return read_labels(map_npy(file)[1])
    except DataError as error:
        raise error if str(file) in str(error) else DataError(f"{file}: {error}") from None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Raw:
    """A party's file after reading, not yet encoded and scaled."""

    x: Array | Table
    index: Array  # int64: the columns that are used
    columns: tuple[str, ...]  # names of the columns that are used
    ids_sha256: str
    notes: tuple[str, ...] = ()
    labels: tuple[Array, Task] | None = None
    present: Array | None = None  # bool (common rows,): the rows that x has


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Order:
    """Which rows of a file are used, in which order, and the digest that other members compare."""

    rows: Array | None  # None: in the file's order
    sha256: str
    present: Array | None = None  # bool (common rows,): the rows that the file has; None: all

    def of(self, column: Column) -> Column:
        return column if self.rows is None else Column(column.values[self.rows], column.categories)

    def of_texts(self, column: polars.Series) -> polars.Series:
        return column if self.rows is None else column.gather(self.rows)


def _order(file: Path, ids: polars.Series | None, rows: int, aligned: Alignment | None, section: str) -> _Order:
    if aligned is None:
        return _Order(None, digest_of_rows(rows) if ids is None else digest_of_ids(ids_as_text(file, ids)))
    if ids is None:
        raise ConfigError(f"{section}.id", None, f"name the column of {file.name} that was aligned")
    places = aligned.rows_of(file, ids)
    present: Array = places >= 0
    return _Order(places[present], aligned.sha256, None if present.all() else present)


def _from_table(
    file: Path,
    party: str,
    id: str | None,
    label: str | None,
    categorical: Sequence[str],
    columns: Sequence[str] | None,
    aligned: Alignment | None,
    progress: ReportProgress,
    dialect: Dialect,
) -> _Raw:
    names = column_names(file, progress, dialect)
    check_columns(file, names, label=label, id=id, categorical=categorical, section="party")
    for name, what in ((id, "id"), (label, "label")):
        if name is not None and columns is not None and name in columns:
            raise ConfigError("party.columns", name, f"is the {what}, not a feature")
    aside = tuple(name for name in (id, label) if name is not None)
    features = tuple(name for name in names if name not in aside)
    if not features:
        raise DataError(f"{file}: it has no column besides the id{'' if label is None else ' and the label'}")
    if columns is not None:
        features = columns_meant(file.name, features, party, columns, "party.columns")
    read, texts = read_columns(file, features, aside, categorical, progress, dialect)
    order = _order(file, None if id is None else texts[id], len(read[features[0]].values), aligned, "party")
    table = Table([order.of(read[name]) for name in features])
    if label is not None and order.present is not None:
        raise ConfigError(
            "party.label",
            label,
            "this party needs the labels of all rows, but its table lacks some rows; set align.min_parties = 0, "
            "and run colonnade align again",
        )
    labels = None if label is None else label_column(file, order.of_texts(texts[label]))
    notes = notes_on_typos(read, categorical)
    return _Raw(table, np.arange(len(features)), features, order.sha256, notes, labels, order.present)


def _from_npz(
    file: Path,
    party: str,
    id: str | None,
    categorical: Sequence[str],
    columns: Sequence[str] | None,
    aligned: Alignment | None,
) -> _Raw:
    if id not in (None, "ids"):
        raise ConfigError("party.id", id, "an .npz file has its ids in an array 'ids'; leave this key out")
    if categorical:
        raise ConfigError("party.categorical", list(categorical), f"only CSV and Parquet have categories, not {file}")
    arrays, found = npz_arrays(file, lambda key: key in ("x", "ids"))
    for key in ("x",) if id is None else ("x", "ids"):
        if key not in arrays:
            raise DataError(f"{file}: there is no array '{key}', only: {listing(found) or 'nothing'}")
    x, ids = arrays["x"], arrays.get("ids")
    check_table(str(file), x)
    if ids is not None and ids.shape != (len(x),):
        raise DataError(f"{file}: x has {len(x)} rows, so ids must have shape ({len(x)},), not {ids.shape}")
    if ids is not None and ids.dtype.kind not in "iufUS":
        raise DataError(f"{file}: ids must be numbers or text, not have dtype {ids.dtype}")
    index, used = _numbered(file, x.shape[1], party, columns)
    order = _order(file, None if ids is None else polars.Series("ids", ids), len(x), aligned, "party")
    return _Raw(x if order.rows is None else x[order.rows], index, used, order.sha256, present=order.present)


def _numbered(file: Path, width: int, party: str, columns: Sequence[str] | None) -> tuple[Array, tuple[str, ...]]:
    """Return the columns of an array that are used, and their names: x0, x1, …"""
    names = tuple(f"x{i}" for i in range(width))
    used = names if columns is None else columns_meant(file.name, names, party, columns, "party.columns")
    return np.array([names.index(name) for name in used], dtype=np.int64), used
