"""Tables from arrays, and the shapes that are refused."""

import numpy as np
import pytest

from colonnade.data import Dataset, Task, from_arrays
from colonnade.protocol.errors import DataError

X = np.arange(12.0).reshape(4, 3)
Y = np.array([0, 1, 0, 1])


def test_from_arrays_takes_the_table_as_it_is():
    dataset = from_arrays(X, Y)
    assert dataset.x is X
    assert dataset.columns == ("x0", "x1", "x2")
    assert (dataset.name, dataset.test_rows, dataset.factor, dataset.scale) == ("arrays", 0, 1.0, "standard")


def test_from_arrays_takes_lists():
    dataset = from_arrays([[1, 2], [3, 4]], ["no", "yes"], columns=["a", "b"], name="bank")
    assert (dataset.name, dataset.columns, dataset.task.classes) == ("bank", ("a", "b"), ("no", "yes"))


def test_test_rows_come_last_and_share_the_classes():
    dataset = from_arrays(X, ["a", "b", "a", "b"], x_test=X[:2] + 100, y_test=["c", "a"])
    assert dataset.test_rows == 2
    assert dataset.task.classes == ("a", "b", "c")
    assert dataset.y.tolist() == [0, 1, 0, 1, 2, 0]
    np.testing.assert_array_equal(dataset.x[-2:], X[:2] + 100)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": X[0], "y": Y}, r"2-D \(rows, columns\), not have shape \(3,\)"),
        ({"x": X.reshape(4, 3, 1), "y": Y}, r"not have shape \(4, 3, 1\)"),
        ({"x": X[:0], "y": Y[:0]}, r"empty, it has shape \(0, 3\)"),
        ({"x": X[:, :0], "y": Y}, r"empty, it has shape \(4, 0\)"),
        ({"x": X, "y": Y[:3]}, r"x has 4 rows, so y must have shape \(4,\), not \(3,\)"),
        ({"x": X.astype(str), "y": Y}, "real numbers, not dtype <U"),
        ({"x": X * 1j, "y": Y}, "real numbers, not dtype complex"),
        ({"x": [[1], [1, 2]], "y": [0, 1]}, "not an array"),
        ({"x": X, "y": Y, "columns": ["a", "b"]}, "3 columns, but 2 column names"),
        ({"x": X, "y": Y, "columns": ["a", "b", "a"]}, "two columns have the name 'a'"),
        ({"x": X, "y": Y, "x_test": X}, "both x_test and y_test"),
        ({"x": X, "y": Y, "x_test": X[:, :2], "y_test": Y}, r"x_test has \(4, 2\)"),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y[:1]}, r"\(test\): x has 4 rows, but y has shape \(1,\)"),
        ({"x": X, "y": Y, "x_test": X, "y_test": ["a"] * 4}, "y_test has <U1"),
    ],
)
def test_refused_arrays(arguments, message):
    with pytest.raises(DataError, match=message):
        from_arrays(**arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test_rows": 4}, "no row to train on"),
        ({"test_rows": -1}, "no row to train on"),
        ({"image": (2, 2)}, r"not an image of \(2, 2\)"),
        ({"y": np.array([0, 1, 2, 0])}, "class indices from 0 to 1"),
        ({"y": np.array([0.0, 1, 0, 1])}, "class indices"),
    ],
)
def test_refused_datasets(change, message):
    given = {"name": "t", "x": X, "y": Y, "task": Task("binary", ("0", "1")), "columns": ("a", "b", "c")}
    with pytest.raises(DataError, match=message):
        Dataset(**{"test_rows": 0, **given, **change})
