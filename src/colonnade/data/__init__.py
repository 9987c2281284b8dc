"""Data: where a table comes from, and what part of it each party holds.

    dataset = load("digits")                    # or a file, a folder, from_arrays(x, y), from_views({"bank": x}, y)
    partition = split(dataset, parties=4)       # columns to parties, rows to train and test, scaled

The modules, from the bottom: `task` (what a label is), `table` (columns), `dataset` (a table with its label), `idx`,
`images`, `delimited`, `tables`, `libsvm`, `mfeat` and `physionet` (file formats), `sources` (names and paths to
tables), `columns` (who holds which), `encoding`, `block` and `scaling` (one party's numbers), `partition` (all of it).
"""

from colonnade.data.dataset import Dataset, View, from_arrays, from_views
from colonnade.data.encoding import Encoder
from colonnade.data.partition import Partition, split
from colonnade.data.scaling import Scaler
from colonnade.data.sources import load
from colonnade.data.task import Task

__all__ = [
    "Dataset",
    "Encoder",
    "Partition",
    "Scaler",
    "Task",
    "View",
    "from_arrays",
    "from_views",
    "load",
    "split",
]
