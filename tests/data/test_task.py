"""Labels: classes, targets, and values that can be neither."""

import numpy as np
import pytest

from colonnade.data import Task
from colonnade.data.task import read_labels
from colonnade.protocol.errors import DataError


@pytest.mark.parametrize(
    ("labels", "kind", "classes", "indices"),
    [
        (np.array([1, -1, 1]), "binary", ("-1", "1"), [1, 0, 1]),
        (np.array([7, 3, 5], dtype=np.uint8), "multiclass", ("3", "5", "7"), [2, 0, 1]),
        (np.array([True, False]), "binary", ("False", "True"), [1, 0]),
        (np.array(["no", "yes", "no"]), "binary", ("no", "yes"), [0, 1, 0]),
        (np.array(["b", "a"], dtype=object), "binary", ("a", "b"), [1, 0]),
        (np.array([2.0, 0.0, 1.0]), "multiclass", ("0", "1", "2"), [2, 0, 1]),
    ],
)
def test_classes(labels, kind, classes, indices):
    y, task = read_labels(labels)
    assert task == Task(kind, classes)
    assert y.dtype == np.int64
    assert y.tolist() == indices


@pytest.mark.parametrize("labels", [np.array([0.5, 1.0]), np.arange(21.0), np.array([0.5, 1], np.float16)])
def test_targets(labels):
    y, task = read_labels(labels)
    assert task == Task("regression", ())
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, labels)


def test_twenty_whole_floats_are_still_classes():
    assert len(read_labels(np.arange(20.0))[1].classes) == 20


def test_outputs():
    assert Task("binary", ("a", "b")).outputs == 1
    assert Task("regression", ()).outputs == 1
    assert Task("multiclass", ("a", "b", "c")).outputs == 3


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.zeros(4, dtype=int), "needs two or more classes"),
        (np.array(["same", "same"]), "'same'"),
        (np.full(3, 0.25), "0.25 in every row"),
        (np.zeros((2, 1)), r"1-D, not have shape \(2, 1\)"),
        (np.zeros(0), r"shape \(0,\)"),
        (np.array([0.5, np.nan, np.inf]), "2 labels are NaN.* row 1 "),
        (np.array([0.5, 1e300]), "row 1 "),
        (np.array([1, "a"], dtype=object), "numbers or text"),
        (np.array([1j, 2j]), "numbers or text"),
    ],
)
def test_refused(labels, message):
    with pytest.raises(DataError, match=message):
        read_labels(labels)
