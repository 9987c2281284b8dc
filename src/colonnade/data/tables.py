"""Tables from files: CSV and Parquet (with a label column), NPZ (arrays x, y, optionally x_test, y_test; or views)."""

import re
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars

from colonnade.data.dataset import Dataset, from_arrays, from_views
from colonnade.data.delimited import CsvFile, read_csv
from colonnade.data.dialect import USUAL, Dialect
from colonnade.data.formats import is_parquet
from colonnade.data.frames import PandasFrame, frame_of
from colonnade.data.ids import ids_as_text
from colonnade.data.report_progress import ReportProgress, silent
from colonnade.data.suggest import did_you_mean, listing
from colonnade.data.table import MISSING, TEXT, Coder, Column, Table, column_of
from colonnade.data.task import Array, Task, read_labels
from colonnade.protocol.errors import ConfigError, DataError

NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+\s*")
PARTS = ("x", "y", "x_test", "y_test")


def npz_arrays(path: Path, wanted: Callable[[str], bool]) -> tuple[dict[str, Any], list[str]]:
    """Return the wanted arrays of an .npz, and the names of all; refuses pickled objects, which could run code."""
    try:
        # Opened here: numpy leaves the file open if the archive is broken.
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError(f"{path}: cannot be read as .npz: it holds one array without a name")
            return {key: archive[key] for key in archive.files if wanted(key)}, list(archive.files)
    except (OSError, ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read as .npz: {error}") from error


def read_npz(path: Path) -> Dataset:
    """Read an .npz of one table, or of several views."""
    parts, found = npz_arrays(path, lambda key: key in PARTS or key.startswith("x_"))
    if views := [key for key in parts if key.startswith("x_") and not key.endswith("_test")]:
        return _views(path, parts, views)
    if missing := [key for key in ("x", "y") if key not in parts]:
        raise DataError(f"{path}: there is no array '{missing[0]}', only: {listing(found) or 'nothing'}")
    return from_arrays(**{key: parts[key] for key in PARTS if key in parts}, name=path.stem)


def _views(path: Path, parts: Mapping[str, Any], keys: Sequence[str]) -> Dataset:
    """Make views of arrays: x_bank and x_shop are the views bank and shop.

    Arrays x_bank_test and x_shop_test are their test rows.
    """
    if "x" in parts:
        raise DataError(
            f"{path}: has both an array 'x' and an array '{keys[0]}'; give either one table or several views"
        )
    if "y" not in parts:
        raise DataError(f"{path}: there is no array 'y'")
    tests = [key for key in (f"{view}_test" for view in keys) if key in parts]
    if (len(tests) not in (0, len(keys))) or bool(tests) != ("y_test" in parts):
        raise DataError(f"{path}: a test set needs y_test and, for every view, an array like {keys[0]}_test")
    return from_views(
        {key.removeprefix("x_"): parts[key] for key in keys},
        parts["y"],
        x_test={key[2:-5]: parts[key] for key in tests} if tests else None,
        y_test=parts.get("y_test"),
        name=path.stem,
    )


def read_table(
    path: Path,
    label: str | None,
    *,
    id: str | None = None,
    categorical: Sequence[str] = (),
    progress: ReportProgress = silent,
    dialect: Dialect = USUAL,
    test: Path | None = None,
) -> Dataset:
    """Read a .csv or .parquet: every column except the label and the id is a feature, a number or a category.

    The rows of `test`, a file of the same format and columns, are the test set.
    """
    if label is None:
        raise ConfigError("data.label", None, f"name the column of {path.name} to predict")
    names = column_names(path, progress, dialect)
    check_columns(path, names, label=label, id=id, categorical=categorical)
    aside = (label,) if id is None else (label, id)
    features = [name for name in names if name not in aside]
    if not features:
        raise DataError(f"{path}: it has no column besides the label")
    columns, texts = read_columns(path, features, aside, categorical, progress, dialect)
    test_rows = 0
    if test is not None:
        check_columns(test, column_names(test, progress, dialect), label=label, id=id, key="test")
        columns, texts, test_rows = _with_test_file((path, test), (columns, texts), categorical, progress, dialect)
        _refuse_new_classes(test, texts[label], test_rows)
    table = Table(list(columns.values()))
    ids = None if id is None else ids_as_text(path, texts.pop(id))
    y, task = label_column(path, texts.pop(label))
    notes = notes_on_typos(columns, categorical)
    return Dataset(path.name.split(".")[0], table, y, task, tuple(columns), test_rows, notes=notes, ids=ids)


Read = tuple[dict[str, Column], dict[str, polars.Series]]


def _with_test_file(
    files: tuple[Path, Path], first: Read, categorical: Sequence[str], progress: ReportProgress, dialect: Dialect
) -> tuple[dict[str, Column], dict[str, polars.Series], int]:
    """Join the columns of both files, test rows last; a column with text in one file has categories in both."""
    features, aside = list(first[0]), list(first[1])
    names = column_names(files[1], progress, dialect)
    if absent := [name for name in features if name not in names]:
        raise DataError(f"{files[1]}: there is no column '{absent[0]}', which {files[0].name} has")
    words = {name for name, column in first[0].items() if column.categories is not None}
    second = read_columns(files[1], features, aside, sorted(words), progress, dialect)
    found = {name for name, column in second[0].items() if column.categories is not None}
    if found > words:
        first = read_columns(files[0], features, aside, sorted({*categorical, *found}), progress, dialect)
    columns = {name: _joined(first[0][name], second[0][name]) for name in features}
    texts = {name: _below(first[1][name], second[1][name]) for name in aside}
    return columns, texts, len(next(iter(second[0].values())).values)


def _below(first: polars.Series, second: polars.Series) -> polars.Series:
    """Join labels or ids of both files; as text, if two Parquet files have different types."""
    if first.dtype != second.dtype:
        first, second = first.cast(polars.String), second.cast(polars.String)
    return polars.concat([first, second])


def _joined(first: Column, second: Column) -> Column:
    if first.categories is None or second.categories is None:
        return Column(np.concatenate([first.values, second.values]))
    every = tuple(sorted({*first.categories, *second.categories}))
    place = {category: code for code, category in enumerate(every)}
    parts = [
        np.array([place[category] for category in column.categories or ()], np.int32)[column.values]
        for column in (first, second)
    ]
    return Column(np.concatenate(parts), every)


def _refuse_new_classes(test: Path, label: polars.Series, test_rows: int) -> None:
    """Refuse classes that only the test file has: they are misspelt, or the column is a different one."""
    texts = label.cast(polars.String).str.strip_chars()
    if texts.cast(polars.Float64, strict=False).null_count() == texts.null_count():
        return  # numbers, which may be regression targets
    known, there = (set(part.drop_nulls()) for part in (texts[:-test_rows], texts[-test_rows:]))
    if new := sorted(there - known):
        raise DataError(f"{test}: label '{label.name}' has classes that no training row has: {listing(new)}")


def from_frame(
    raw: "polars.DataFrame | PandasFrame",
    label: str | None,
    *,
    id: str | None = None,
    categorical: Sequence[str] = (),
    name: str = "frame",
) -> Dataset:
    """Make a dataset of a DataFrame, with the rules for Parquet files."""
    frame, where = frame_of(raw), Path(name)  # for messages
    if label is None:
        raise ConfigError("label", None, "name the column of the DataFrame to predict")
    check_columns(where, frame.columns, label=label, id=id, categorical=categorical)
    features = [column for column in frame.columns if column not in (label, id)]
    if not features:
        raise DataError(f"{name}: it has no column besides the label")
    if not len(frame):
        raise DataError(f"{name}: there are no rows, shape (0, {len(features)})")
    try:
        columns = {column: column_of(frame[column], column in categorical) for column in features}
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    y, task = label_column(where, frame[label])
    ids = None if id is None else ids_as_text(where, frame[id])
    notes = notes_on_typos(columns, categorical)
    return Dataset(name, Table(list(columns.values())), y, task, tuple(features), 0, notes=notes, ids=ids)


def read_columns(
    path: Path,
    features: Sequence[str],
    aside: Sequence[str],
    categorical: Sequence[str],
    progress: ReportProgress,
    dialect: Dialect = USUAL,
) -> tuple[dict[str, Column], dict[str, polars.Series]]:
    """Read some columns of a .csv or .parquet: features as `Column` by name, in that order.

    Columns in `aside` are returned as they are in the file.
    """
    if is_parquet(path):
        columns, as_read = _read_parquet(path, features, aside, categorical, progress)
    else:
        columns, as_read = read_csv(path, features, aside, categorical, progress, dialect)
    rows = len(next(iter(as_read.values()))) if as_read else len(next(iter(columns.values())).values)
    if not rows:
        raise DataError(f"{path}: there are no rows, shape (0, {len(features)})")
    return columns, as_read


def notes_on_typos(columns: Mapping[str, Column], categorical: Sequence[str]) -> tuple[str, ...]:
    """Write a note on each column that would be numeric except for a few texts: a single typo makes it one-hot."""
    notes = []
    for name, column in columns.items():
        texts = [text for text in column.categories or () if text != MISSING]
        if texts and name not in categorical and all(DECIMAL_COMMA.fullmatch(text) for text in texts):
            notes.append(
                f"column '{name}' is treated as categories, because its numbers have a decimal comma: set decimal = ','"
            )
        words = [text for text in texts if not NUMBER.fullmatch(text)]
        if name not in categorical and 0 < len(words) < len(texts) / 2:
            found = listing(words)
            notes.append(
                f"column '{name}' is treated as categories, because it has texts that are not numbers: {found}"
            )
    return tuple(notes)


def column_names(path: Path, progress: ReportProgress, dialect: Dialect = USUAL) -> list[str]:
    """Return the names of all columns of a .csv or .parquet; raises DataError if two are equal."""
    if is_parquet(path):
        try:
            names = list(polars.read_parquet_schema(path))
        except (OSError, polars.exceptions.PolarsError) as error:
            raise DataError(f"{path}: cannot be read: {error}") from error
    else:
        names = CsvFile(path, progress, dialect).names
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise DataError(f"{path}: two columns have the name '{twice}'")
    return names


def check_columns(
    path: Path,
    names: Sequence[str],
    *,
    label: str | None = None,
    id: str | None = None,
    categorical: Sequence[str] = (),
    section: str = "data",
    key: str = "",
) -> None:
    """Raise ConfigError for columns that are absent, or that cannot be what a section of the config says.

    `key` is the config key for the error, if it is not the column's own key.
    """
    wanted = [("label", label), *(("categorical", name) for name in categorical), ("id", id)]
    for what, name in wanted:
        if name is not None and name not in names:
            advice = f"no such column in {path.name}{did_you_mean(name, names)}: {listing(names)}"
            if all(NUMBER.fullmatch(one) for one in names):
                advice += f"; if its first line holds values instead of names, set {section}.header = false"
            raise ConfigError(f"{section}.{key or what}", name, advice)
    if id is not None and id == label:
        raise ConfigError(f"{section}.id", id, "must not be the label as well")
    for aside in (label, id):
        if aside in categorical:
            raise ConfigError(f"{section}.categorical", aside, "is the label or the id, not a feature")


def _read_parquet(
    path: Path, features: Sequence[str], aside: Sequence[str], categorical: Sequence[str], progress: ReportProgress
) -> tuple[dict[str, Column], dict[str, polars.Series]]:
    """Read column by column, so that only one is in memory in its wider type."""
    columns: dict[str, Column] = {}
    as_read: dict[str, polars.Series] = {}
    for place, name in enumerate((*features, *aside)):
        try:
            series = polars.read_parquet(path, columns=[name], memory_map=False).to_series()
            if name in aside:
                as_read[name] = series
            else:
                columns[name] = column_of(series, name in categorical)
        except (OSError, polars.exceptions.PolarsError) as error:
            raise DataError(f"{path}: cannot be read: {error}") from error
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
        progress("reading", (place + 1) / (len(features) + len(aside)))
    return columns, as_read


def label_column(path: Path, label: polars.Series) -> tuple[Array, Task]:
    """Return class indices or regression targets from a column of a file, and the task."""
    if empty := label.null_count():
        first = label.is_null().arg_true()[0]
        raise DataError(
            f"{path}: label '{label.name}': {empty} empty values, the first in row {first} (counted from 0)"
        )
    try:
        return read_labels(_label_values(label))
    except DataError as error:
        raise DataError(f"{path}: label '{label.name}': {error}") from None


def _label_values(label: polars.Series) -> Array:
    """Return whole numbers if possible, else numbers, else text: a CSV file does not say which."""
    if label.dtype.is_decimal():
        label = label.cast(polars.Float64)
    if label.dtype.is_numeric() or label.dtype == polars.Boolean:
        return label.to_numpy()
    if label.dtype not in TEXT:
        raise DataError(f"holds {label.dtype}; it must hold numbers or text")
    texts = label.cast(polars.String)
    for dtype in (polars.Int64, polars.Float64):
        numbers = texts.str.strip_chars().cast(dtype, strict=False)
        if not numbers.null_count():
            return numbers.to_numpy()
    # Through categories: a million texts as Python objects would need more memory than the table.
    coder = Coder()
    column = coder.finish(coder.encode(texts).copy())
    return np.asarray(column.categories, dtype=np.str_)[column.values]
