"""NPZ, CSV and Parquet: what they become, and what is refused."""

import gzip

import numpy as np
import polars
import pytest

from colonnade.data import load, split
from colonnade.protocol.errors import ConfigError, DataError

CSV = "age,income,member,bought\n30,1.5,true,no\n40,2.5,false,yes\n50,3.5,true,no\n"
FRAME = polars.DataFrame({"a": [1, 2, 3], "b": [0.5, 1.5, 2.5], "y": [3.5, 1.0, 2.0]})


@pytest.fixture
def csv(tmp_path):
    def write(text, name="shop.csv"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return str(path)

    return write


@pytest.mark.parametrize("name", ["shop.csv", "shop.csv.gz", "shop.CSV"])
def test_csv(csv, name):
    dataset = load(csv(CSV, name), label="bought")
    assert (dataset.name, dataset.columns) == ("shop", ("age", "income", "member"))
    assert dataset.task.classes == ("no", "yes")
    assert dataset.y.tolist() == [0, 1, 0]
    assert dataset.x.tolist() == [[30, 1.5, 1], [40, 2.5, 0], [50, 3.5, 1]]


def test_types_are_decided_by_all_rows(csv):
    text = "a,y\n" + "".join(f"{i},{i % 2}\n" for i in range(500)) + "0.5,1\n"
    assert load(csv(text), label="y").x[-1, 0] == 0.5


def test_parquet(tmp_path):
    FRAME.write_parquet(tmp_path / "t.parquet")
    dataset = load("t.parquet", dir=tmp_path, label="y")
    assert (dataset.columns, dataset.task.kind) == (("a", "b"), "regression")
    assert dataset.y.tolist() == [3.5, 1.0, 2.0]
    assert dataset.x.tolist() == [[1, 0.5], [2, 1.5], [3, 2.5]]


def test_parquet_with_decimals_and_categories(tmp_path):
    decimal = FRAME.with_columns(polars.col("b").cast(polars.Decimal(10, 2)))
    frame = decimal.with_columns(y=polars.Series(["u", "v", "u"], dtype=polars.Categorical))
    frame.write_parquet(tmp_path / "t.parquet")
    dataset = load("t.parquet", dir=tmp_path, label="y")
    assert dataset.x[:, 1].tolist() == [0.5, 1.5, 2.5]
    assert dataset.task.classes == ("u", "v")


def test_an_empty_cell_is_found_by_its_column(csv):
    dataset = load(csv("a,b,y\n1,2,0\n3,,1\n5,6,1\n"), label="y")
    with pytest.raises(DataError, match=r"party-2: 1 of its values NaN.* column 'b', row 1 "):
        split(dataset, parties=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a,city,y\n1,Ulm,0\n2,Bonn,1\n",
            "column 'city' holds String.*one-hot encoding of categories is not there yet",
        ),
        ("a,y\n1,\n2,1\n3,\n", "label 'y': 2 empty values, the first in row 0"),
        ("a,y\n1,2020-01-01\n2,2020-01-01\n", "nothing to tell apart"),
        ("y\n1\n2\n", "no column but the label"),
        ("a,y\n", r"shape \(0, 1\)"),
        ("a,y\n1,2\n1,2,3,4\n", "shop.csv: cannot be read"),
        ("", "shop.csv: cannot be read"),
    ],
)
def test_refused_csv(csv, text, message):
    with pytest.raises(DataError, match=message):
        load(csv(text), label="y")


def test_label_must_be_named_and_there(csv):
    with pytest.raises(ConfigError, match=r"data.label = None: name the column of shop.csv"):
        load(csv(CSV))
    with pytest.raises(ConfigError, match=r"data.label = 'bougth'.*did you mean 'bought'"):
        load(csv(CSV), label="bougth")


def test_a_date_is_no_label(tmp_path):
    dates = polars.date_range(polars.date(2020, 1, 1), polars.date(2020, 1, 3), eager=True)
    FRAME.with_columns(y=dates).write_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match="label 'y' holds Date"):
        load("t.parquet", dir=tmp_path, label="y")


def test_broken_parquet(tmp_path):
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match="t.parquet: cannot be read"):
        load("t.parquet", dir=tmp_path, label="y")


def test_npz(tmp_path):
    x, y = np.arange(6, dtype=np.int16).reshape(3, 2), np.array([0, 1, 1])
    np.savez(tmp_path / "a.npz", x=x, y=y, x_test=x[:1], y_test=y[:1], other=y)
    dataset = load(str(tmp_path / "a.npz"))
    assert (dataset.name, dataset.x.dtype, dataset.test_rows) == ("a", np.int16, 1)
    assert dataset.columns == ("x0", "x1")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 2)), "z": np.zeros(2)}, "no array 'y', only: x, z"),
        ({}, "no array 'x', only: nothing"),
        ({"x": np.array([{}, []], dtype=object), "y": np.zeros(2)}, "cannot be read as .npz.*allow_pickle"),
        ({"x": np.zeros((2, 2)), "y": [0, 1], "x_test": np.zeros((1, 2))}, "both x_test and y_test"),
    ],
)
def test_refused_npz(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load(str(tmp_path / "a.npz"))


@pytest.mark.parametrize("content", [b"", b"PK\3\4 broken", b"plain text", b"\x93NUMPY"])
def test_what_is_no_npz(tmp_path, content):
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DataError, match="a.npz: cannot be read as .npz"):
        load(str(tmp_path / "a.npz"))


def test_one_plain_array_is_no_npz(tmp_path):
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match="a.npz: cannot be read as .npz"):
        load(str(tmp_path / "a.npz"))
