"""Multiple Features (UCI "mfeat"): handwritten digits in six views; 200 rows per digit, in the order of the digits."""

import gzip
import warnings
import zlib
from pathlib import Path

import numpy as np

from colonnade.data.dataset import Dataset, from_views
from colonnade.data.report_progress import ReportProgress
from colonnade.data.task import Array
from colonnade.protocol.errors import DataError

VIEWS = ("fou", "fac", "kar", "pix", "zer", "mor")
DIGITS = 10


def read_mfeat(folder: Path, progress: ReportProgress) -> Dataset:
    """Read mfeat-fou.gz and the others; each is a view."""
    views = {}
    for place, view in enumerate(VIEWS):
        views[view] = _read(folder / f"mfeat-{view}.gz")
        progress("reading", (place + 1) / len(VIEWS))
    rows = len(views[VIEWS[0]])
    for view, block in views.items():
        if len(block) != rows or rows % DIGITS:
            raise DataError(f"{folder / f'mfeat-{view}.gz'}: {len(block)} rows, not the same number for each digit")
    return from_views(views, np.repeat(np.arange(DIGITS), rows // DIGITS), name="mfeat")


def _read(path: Path) -> Array:
    try:
        with gzip.open(path, "rt", encoding="ascii") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about an empty file, which is refused below
            block: Array = np.loadtxt(file, dtype=np.float32, ndmin=2)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read as numbers separated by blanks: {error}") from error
    if not block.size:
        raise DataError(f"{path}: there are no rows")
    return block
