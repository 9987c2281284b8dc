"""Tables from files: NPZ (arrays x, y, optionally x_test, y_test), CSV and Parquet (with a label column)."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import polars

from colonnade.data.dataset import Dataset, from_arrays
from colonnade.data.suggest import did_you_mean, listing
from colonnade.data.task import Array
from colonnade.protocol.errors import ConfigError, DataError

PARTS = ("x", "y", "x_test", "y_test")


def read_npz(path: Path) -> Dataset:
    """Read an .npz; pickled objects in it are refused, for they could run code."""
    try:
        # Opened here: numpy leaves the file open when the archive is broken.
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError(f"{path}: cannot be read as .npz: it holds one array without a name")
            found = list(archive.files)
            parts: dict[str, Any] = {key: archive[key] for key in PARTS if key in found}
    except (OSError, ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read as .npz: {error}") from error
    if missing := [key for key in ("x", "y") if key not in parts]:
        raise DataError(f"{path}: there is no array '{missing[0]}', only: {listing(found) or 'nothing'}")
    return from_arrays(**parts, name=path.stem)


def read_table(path: Path, label: str | None) -> Dataset:
    """Read a .csv or .parquet; every column but the label is a feature and must hold numbers."""
    if label is None:
        raise ConfigError("data.label", None, f"name the column of {path.name} that is to be predicted")
    table = _read(path)
    if label not in table.columns:
        hint = did_you_mean(label, table.columns)
        raise ConfigError("data.label", label, f"no such column in {path.name}{hint}: {listing(table.columns)}")
    features = _numeric(path, table.drop(label))
    name = path.name.split(".")[0]
    x = features.to_numpy(order="c")  # by rows, as `split` reads it
    return from_arrays(x, _labels(table[label]), columns=features.columns, name=name)


def _read(path: Path) -> polars.DataFrame:
    try:
        if path.suffix.lower() == ".parquet":
            return polars.read_parquet(path)
        # All rows decide the types: an integer column may turn to fractions after any number of rows.
        return polars.read_csv(path, infer_schema_length=None)
    except (OSError, polars.exceptions.PolarsError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def _numeric(path: Path, features: polars.DataFrame) -> polars.DataFrame:
    """Refuse what is no number, and bring booleans and decimals to types that numpy has."""
    if not features.columns:
        raise DataError(f"{path}: there is no column but the label")
    if features.is_empty():
        raise DataError(f"{path}: there are no rows, shape {features.shape}")
    for name, dtype in features.schema.items():
        if not (dtype.is_numeric() or dtype == polars.Boolean):
            raise DataError(
                f"{path}: column '{name}' holds {dtype}, not numbers; one-hot encoding of categories is not"
                " there yet, so encode or drop it first"
            )
    selectors = polars.selectors
    return features.with_columns(selectors.boolean().cast(polars.UInt8), selectors.decimal().cast(polars.Float64))


def _labels(label: polars.Series) -> Array:
    if empty := label.null_count():
        first = label.is_null().arg_true()[0]
        raise DataError(f"label '{label.name}': {empty} empty values, the first in row {first} (counted from 0)")
    if label.dtype.is_decimal():
        label = label.cast(polars.Float64)
    if label.dtype.is_numeric() or label.dtype == polars.Boolean:
        return label.to_numpy()
    if label.dtype in (polars.String, polars.Categorical, polars.Enum):
        return np.asarray(label.to_list(), dtype=np.str_)
    raise DataError(f"label '{label.name}' holds {label.dtype}; it must hold numbers or text")
