"""Data: where a table comes from, and what part of it each party holds.

    dataset = load("digits")                    # or a file, a folder of IDX files, from_arrays(x, y)
    partition = split(dataset, parties=4)       # columns to parties, rows to train and test, scaled

The modules, from the bottom: `task` (what a label is), `dataset` (one table), `idx`, `images` and `tables`
(file formats), `sources` (names and paths to tables), `columns` (who holds which), `block` and `scaling` (one
party's numbers), `partition` (all of it together).
"""

from colonnade.data.dataset import Dataset, from_arrays
from colonnade.data.partition import Partition, split
from colonnade.data.scaling import Scaler
from colonnade.data.sources import load
from colonnade.data.task import Task

__all__ = ["Dataset", "Partition", "Scaler", "Task", "from_arrays", "load", "split"]
