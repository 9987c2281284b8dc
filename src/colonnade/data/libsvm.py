"""Read LIBSVM text (`label index:value ...`, all other values are 0) as a dense or sparse table of 32-bit numbers.

scikit-learn does the reading. Column f7 is the one with index 7 in the file.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from colonnade.data.dataset import Dataset
from colonnade.data.formats import opened
from colonnade.data.report_progress import ReportProgress
from colonnade.data.task import read_labels
from colonnade.protocol.errors import ConfigError, DataError

MOST_BYTES = 16 * 2**30  # of the dense table; a larger one is a mistake or needs a sparse method


def read_libsvm(
    path: Path,
    test: Path | None = None,
    *,
    name: str | None = None,
    keep_sparse: bool = False,
) -> Dataset:
    """Read a file, gzipped or not; the rows of `test`, if given, are the test set.

    By default the table is not scaled: a column that is rarely nonzero has a tiny deviation, and dividing by it would
    make its few values huge.
    """
    paths = [path] if test is None else [path, test]
    parts = [_sparse(part) for part in paths]
    width = max(x.shape[1] for x, _ in parts)
    rows = sum(x.shape[0] for x, _ in parts)
    if not any(x.nnz for x, _ in parts):
        raise DataError(f"{path}: it has no index:value pair")
    if not keep_sparse and rows * width * 4 > MOST_BYTES:
        size = rows * width * 4 / 2**30
        advice = "set data.sparse = true and use a linear method such as asysqn-svrg"
        raise DataError(f"{path}: {rows} x {width} numbers are {size:.0f} GiB when dense; {advice}")
    for x, _ in parts:
        x.resize(x.shape[0], width)
    table = sparse.vstack([x for x, _ in parts], format="csr")
    if not keep_sparse:
        table = table.toarray()
    y, task = read_labels(np.concatenate([labels for _, labels in parts]))
    test_rows = parts[1][0].shape[0] if test is not None else 0
    columns = tuple(f"f{i + 1}" for i in range(width))
    return Dataset(name or path.name.split(".")[0], table, y, task, columns, test_rows, scale="none")


def _sparse(path: Path) -> tuple[Any, Any]:
    datasets: Any = import_module("sklearn.datasets")  # scikit-learn has no types, and takes a second to import
    try:
        with opened(path) as file:
            # The format counts from 1; with zero_based=True the first column would be lost.
            x, y = datasets.load_svmlight_file(file, dtype=np.float32, zero_based=False)
    except (OSError, EOFError, ValueError, OverflowError) as error:
        raise DataError(f"{path}: cannot be read as LIBSVM text: {error}") from error
    return x, y


def read_a9a(folder: Path, progress: ReportProgress, keep_sparse: bool = False) -> Dataset:
    """Read the adult census data in LIBSVM's form: 123 columns of 0 and 1, with a test set."""
    test = folder / "a9a.t.gz"
    if not test.is_file():
        raise ConfigError("data.dir", str(folder), "there is a9a.gz, but no a9a.t.gz")
    dataset = read_libsvm(folder / "a9a.gz", test, name="a9a", keep_sparse=keep_sparse)
    progress("reading", 1.0)
    return dataset
