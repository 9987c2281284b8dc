"""From what `[data] source` says to a table: an embedded set, a named image set in a folder, or a path.

| source | where it comes from |
|---|---|
| digits, breast-cancer, wine, diabetes | scikit-learn, no file needed |
| mnist, fashion-mnist | four IDX files in `dir` or in its subfolder of that name |
| a path: .npz, .csv, .csv.gz, .parquet, or a folder of IDX files | relative to `dir` where that is given |
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.data.dataset import Dataset
from colonnade.data.images import NAMED, image_dataset, image_folder, named_images
from colonnade.data.suggest import did_you_mean
from colonnade.data.tables import read_npz, read_table
from colonnade.data.task import classification, read_labels
from colonnade.protocol.errors import ConfigError

EMBEDDED = {
    "digits": "load_digits",
    "breast-cancer": "load_breast_cancer",
    "wine": "load_wine",
    "diabetes": "load_diabetes",
}
TABLES = (".csv", ".csv.gz", ".parquet")


def load(source: str, *, dir: str | Path | None = None, label: str | None = None) -> Dataset:
    """Return the table that a source names; `label` is the column to predict, for CSV and Parquet alone.

    Examples: `load("digits")`, `load("mnist", dir="data")`, `load("patients.csv", label="outcome")`.
    """
    if label is not None and not source.lower().endswith(TABLES):
        raise ConfigError("data.label", label, f"only CSV and Parquet have a label column, not {source}")
    if source in EMBEDDED:
        return _embedded(source)
    if source in NAMED:
        return named_images(source, dir)
    return _from_path(source, _path(source, dir), label)


def _path(source: str, dir: str | Path | None) -> Path:
    path = Path(source).expanduser()
    return path if dir is None else Path(dir).expanduser() / path


def _from_path(source: str, path: Path, label: str | None) -> Dataset:
    name = path.name.lower()
    known_suffix = name.endswith((".npz", *TABLES))
    if known_suffix and not path.is_file():
        raise ConfigError("data.source", source, f"there is no file {path}")
    if name.endswith(".npz"):
        return read_npz(path)
    if known_suffix:
        return read_table(path, label)
    if path.is_dir():
        return image_folder(path)
    known = [*EMBEDDED, *NAMED]
    raise ConfigError(
        "data.source",
        source,
        f"unknown{did_you_mean(source, known)}; known are {', '.join(known)}, a path that ends in .npz, .csv,"
        " .csv.gz or .parquet, and a folder of IDX files",
    )


def _embedded(source: str) -> Dataset:
    # By name: scikit-learn has no types, takes a second to import, and only this needs it.
    datasets: Any = import_module("sklearn.datasets")
    options = {"scaled": False} if source == "diabetes" else {}
    bunch = getattr(datasets, EMBEDDED[source])(**options)
    if source == "digits":
        return image_dataset(source, bunch.images.astype(np.uint8), bunch.target, factor=1 / 16)
    y, task = read_labels(bunch.target)
    if task.kind != "regression":
        task = classification(tuple(str(name) for name in bunch.target_names))
    return Dataset(source, bunch.data, y, task, tuple(str(name) for name in bunch.feature_names), 0)
