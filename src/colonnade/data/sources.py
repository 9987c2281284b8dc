"""From `[data] source` to a table: an embedded set, a named set in a folder, or a path.

| source | where it comes from |
|---|---|
| digits, breast-cancer, wine, diabetes | scikit-learn, no file needed |
| digits-parity | the same images as digits, with another question: is the digit even or odd? |
| mnist, fashion-mnist | four IDX files in `dir` or in its subfolder of that name |
| a9a, mfeat, physionet2012, cifar10 | their files in `dir` or in its subfolder of that name |
| a path: .npz, .libsvm, .svm (.gz), .csv, .csv.gz, .parquet, or a folder of IDX files | relative to `dir`, if given |

`format` says what a path holds, if its name does not. With `format`, `source` is always a path.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import polars

from colonnade.data import cifar
from colonnade.data.dataset import Dataset
from colonnade.data.dialect import USUAL, Dialect
from colonnade.data.formats import TABLES, format_of, refuse_another
from colonnade.data.frames import PandasFrame, is_frame
from colonnade.data.images import NAMED, image_dataset, image_folder, named_images
from colonnade.data.libsvm import read_a9a, read_libsvm
from colonnade.data.mfeat import read_mfeat
from colonnade.data.physionet import read_physionet
from colonnade.data.report_progress import ReportProgress, silent
from colonnade.data.suggest import did_you_mean
from colonnade.data.tables import from_frame, read_npz, read_table
from colonnade.data.task import classification, read_labels
from colonnade.protocol.errors import ConfigError

FORMATS = ("csv", "parquet", "npz", "libsvm", "idx")  # formats that `format` may name for a path
EMBEDDED = {
    "digits": "load_digits",
    "digits-parity": "load_digits",
    "breast-cancer": "load_breast_cancer",
    "wine": "load_wine",
    "diabetes": "load_diabetes",
}
# Its reader, and the names of the file to look for: one of them must be there.
FOLDERS: dict[str, tuple[Callable[[Path, ReportProgress], Dataset], tuple[str, ...]]] = {
    "a9a": (read_a9a, ("a9a.gz",)),
    "mfeat": (read_mfeat, ("mfeat-fou.gz",)),
    "physionet2012": (read_physionet, ("set-a.tar.xz",)),
    "cifar10": (cifar.read_cifar10, cifar.FIRST),
}


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Options that only files with columns need."""

    label: str | None
    id: str | None
    categorical: tuple[str, ...]
    progress: ReportProgress
    sparse: bool = False
    dialect: Dialect = USUAL
    test: Path | None = None


def load(
    source: "str | Path | polars.DataFrame | PandasFrame",
    *,
    format: str | None = None,
    dir: str | Path | None = None,
    label: str | None = None,
    id: str | None = None,
    categorical: Sequence[str] = (),
    sparse: bool = False,
    header: bool | None = None,
    separator: str | None = None,
    decimal: str | None = None,
    missing_values: Sequence[str] = (),
    test: str | Path | None = None,
    progress: ReportProgress | None = None,
) -> Dataset:
    """Return the table that a source names, or that a DataFrame of polars or pandas holds.

    With `format` (for example "libsvm") the source is always a path. With `sparse`, LIBSVM data stay sparse and
    unscaled: only linear methods accept them.

    For CSV, Parquet and DataFrames: `label` is the column to predict, `id` a column to check and drop, `categorical`
    the columns whose numbers are codes. For CSV: `header=False` says that there is no line of names, `separator` and
    `decimal` how the file is written, and `missing_values` which further texts mean a missing value. `test` is a file
    with the test rows, of the same format. The reader calls `progress(what, part)` from time to time, with `part` from
    0 to 1.

    Examples: `load("digits")`, `load("mnist", dir="data")`, `load("patients.csv", label="outcome", id="nr")`.
    """
    if is_frame(source):
        in_files: dict[str, object] = {
            "format": format,
            "dir": dir,
            "sparse": sparse or None,
            "test": test,
            "header": header,
        }
        in_files |= {"separator": separator, "decimal": decimal, "missing_values": missing_values or None}
        for key, given in in_files.items():
            if given is not None:
                raise ConfigError(key, given, "is for files, but the source is a DataFrame; leave it out")
        return from_frame(source, label, id=id, categorical=categorical)
    if not isinstance(source, str | Path):
        raise ConfigError(
            "source", type(source).__name__, "give a name, a path or a DataFrame; for arrays use from_arrays"
        )
    source = str(source)
    kind = format_of(source, format, FORMATS, "data")
    for key, value in (("label", label), ("id", id), ("categorical", categorical or None)):
        if value is not None and kind not in TABLES:
            raise ConfigError(f"data.{key}", value, f"only CSV and Parquet have a {key} column, not {source}")
    if sparse and source != "a9a" and kind != "libsvm":
        raise ConfigError("data.sparse", sparse, f"only LIBSVM data are sparse, not {source}")
    for key, option in {
        "header": header, "separator": separator, "decimal": decimal, "missing_values": missing_values or None
    }.items():  # fmt: skip
        if option is not None and kind != "csv":
            raise ConfigError(f"data.{key}", option, f"is for CSV files, not {source}")
    if test is not None and kind not in (*TABLES, "libsvm"):
        raise ConfigError("data.test", str(test), f"only CSV, Parquet and LIBSVM take a test file, not {source}")
    dialect = Dialect(header is not False, separator, decimal or ".", tuple(missing_values))
    tested = None if test is None else _path(str(test), dir)
    table = TableOptions(label, id, tuple(categorical), progress or silent, sparse, dialect, tested)
    if format is not None:
        return _from_path(source, _path(source, dir), kind, table)
    if source in EMBEDDED:
        return _embedded(source)
    if source in NAMED:
        return named_images(source, dir)
    if source in FOLDERS:
        read, needed = FOLDERS[source]
        if sparse:
            return read_a9a(_folder(source, dir, needed), progress or silent, keep_sparse=True)
        return read(_folder(source, dir, needed), progress or silent)
    return _from_path(source, _path(source, dir), kind, table)


def _folder(source: str, dir: str | Path | None, needed: tuple[str, ...]) -> Path:
    """Return `dir`, or its subfolder with the name of the source or of the owners' archive."""
    either = " or ".join(needed)
    if dir is None:
        raise ConfigError("data.dir", None, f"name the folder with the files of {source} ({either} and others)")
    inside = (source, "", *(cifar.FOLDERS if source == "cifar10" else ()))
    folders: list[Path] = [Path(dir).expanduser() / name for name in inside]
    found = next((folder for folder in folders for name in needed if (folder / name).is_file()), None)
    if found is None:
        advice = f"there is no {either} in this folder or in its subfolder {source}; see: colonnade data get {source}"
        raise ConfigError("data.dir", str(dir), advice)
    return found


def _path(source: str, dir: str | Path | None) -> Path:
    path = Path(source).expanduser()
    return path if dir is None else Path(dir).expanduser() / path


def _from_path(source: str, path: Path, kind: str | None, options: TableOptions) -> Dataset:
    if kind == "idx" or (kind is None and path.is_dir()):
        return image_folder(path)
    if kind is not None and not path.is_file():
        raise ConfigError("data.source", source, f"there is no file {path}")
    if options.test is not None and not options.test.is_file():
        raise ConfigError("data.test", str(options.test), "there is no such file")
    if kind == "npz":
        return read_npz(path)
    if kind == "libsvm":
        return read_libsvm(path, options.test, keep_sparse=options.sparse)
    if kind is not None:
        for file in filter(None, (path, options.test)):
            refuse_another(file, kind)
        return read_table(
            path,
            options.label,
            id=options.id,
            categorical=options.categorical,
            progress=options.progress,
            dialect=options.dialect,
            test=options.test,
        )
    if path.is_file():
        advice = f"the file name does not show the format: set data.format to one of {', '.join(FORMATS)}"
        raise ConfigError("data.source", source, advice)
    known = [*EMBEDDED, *NAMED, *FOLDERS]
    raise ConfigError(
        "data.source",
        source,
        f"unknown{did_you_mean(source, known)}; known are {', '.join(known)}, a path that ends in .npz, .csv,"
        " .csv.gz, .parquet, .libsvm or .svm (.gz), any other file with data.format, and a folder of IDX files",
    )


def _embedded(source: str) -> Dataset:
    # Imported by name: scikit-learn has no types, takes a second to import, and only this function needs it.
    datasets: Any = import_module("sklearn.datasets")
    options = {"scaled": False} if source == "diabetes" else {}
    bunch = getattr(datasets, EMBEDDED[source])(**options)
    if source.startswith("digits"):
        labels = bunch.target if source == "digits" else np.array(["even", "odd"])[bunch.target % 2]
        return image_dataset(source, bunch.images.astype(np.uint8), labels, factor=1 / 16)
    y, task = read_labels(bunch.target)
    if task.kind != "regression":
        task = classification(tuple(str(name) for name in bunch.target_names))
    return Dataset(source, bunch.data, y, task, tuple(str(name) for name in bunch.feature_names), 0)
