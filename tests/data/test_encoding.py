"""Categories and missing values: each party fits them on its own training rows and applies them to new rows."""

from functools import partial
from pathlib import Path

import numpy as np
import polars
import pytest
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from colonnade.data import load
from colonnade.data import split as split_rows_and_columns
from colonnade.data.dataset import Dataset
from colonnade.data.table import Table, column_of
from colonnade.data.task import Task
from colonnade.protocol.errors import ConfigError, DataError

split = partial(split_rows_and_columns, validation_fraction=0)

SHARED = Path(__file__).parents[2] / ".." / "shared" / "data"


def table(columns, test_rows, categorical=()):
    """A dataset with its last rows as test set."""
    held = [column_of(polars.Series(name, values), name in categorical) for name, values in columns.items()]
    x = Table(held)
    return Dataset("shop", x, np.arange(len(x)) % 2, Task("binary", ("0", "1")), tuple(columns), test_rows)


def test_one_hot_by_hand():
    dataset = table({"city": ["Ulm", "Bonn", "Ulm", "Bonn", "Köln"], "age": [10.0, 20.0, 30.0, 40.0, 50.0]}, 2)
    partition = split(dataset, parties=1)
    assert partition.columns == (("city", "age"),)
    assert partition.encoders[0].features == ("city=Bonn", "city=Ulm", "age")
    z = np.sqrt(1.5)  # (10, 20, 30) standardised is (-z, 0, z)
    np.testing.assert_allclose(partition.train[0], [[0, 1, -z], [1, 0, 0], [0, 1, z]], rtol=1e-6)
    np.testing.assert_allclose(partition.test[0], [[1, 0, 2 * z], [0, 0, 3 * z]], rtol=1e-6)
    assert partition.train[0].dtype == np.float32
    assert partition.shapes == ((3,),)
    assert partition.notes == (
        "party-1: column 'city': 1 categories (Köln) occur only in held-out rows, 1 of them; those rows get zeros",
    )


def test_a_missing_category_is_one_of_its_own_where_training_rows_have_it():
    there = split(table({"a": ["u", None, "v", None]}, 1), parties=1)
    assert there.encoders[0].features == ("a=missing", "a=u", "a=v")
    assert there.test[0].tolist() == [[1, 0, 0]]
    unseen = split(table({"a": ["u", "v", "u", None]}, 1), parties=1)
    assert unseen.encoders[0].features == ("a=u", "a=v")
    assert unseen.test[0].tolist() == [[0, 0]]


def test_truth_and_codes_are_categories():
    partition = split(table({"a": [True, False, True], "b": [2.0, 1.0, 2.0]}, 1, ["b"]), parties=1, scale="minmax")
    assert partition.encoders[0].features == ("a=false", "a=true", "b=1", "b=2")
    assert partition.train[0].tolist() == [[0, 1, 0, 1], [1, 0, 1, 0]]


def test_missing_numbers_are_refused_or_become_the_training_mean():
    dataset = table({"a": [1.0, 2.0, 3.0, 4.0], "b": [2.0, None, 4.0, None]}, 1)
    with pytest.raises(DataError, match=r"party-2: 2 of its values NaN.*'b', row 1 .*data.missing = \"mean\""):
        split(dataset, parties=2)
    partition = split(dataset, parties=1, scale="none", missing="mean")
    assert partition.train[0].tolist() == [[1, 2], [2, 3], [3, 4]]
    assert partition.test[0].tolist() == [[4, 3]]
    assert partition.blocks(np.array([[7.0, np.nan]]))[0].tolist() == [[7, 3]]
    with pytest.raises(DataError, match="column 'b' has no value in any training row"):
        split(table({"a": [1.0, 2.0, 3.0], "b": [None, None, 4.0]}, 1), parties=1, missing="mean")
    with pytest.raises(DataError, match="infinite.*'a', row 1"):
        split(table({"a": [1.0, float("inf"), 3.0]}, 1), parties=1, missing="mean")


def test_scikit_learn_encodes_the_same():
    generator = np.random.default_rng(0)
    codes = np.append(generator.integers(0, 4, 90), generator.integers(0, 5, 10))
    texts = np.array(["u", "v", "w", "x", "late"])[codes]
    numbers = generator.normal(5, 3, 100).astype(np.float32)
    numbers[generator.choice(100, 20, replace=False)] = np.nan
    partition = split(table({"a": texts.tolist(), "b": numbers}, 10), parties=1, missing="mean")
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(texts[:90, None])
    scaled = make_pipeline(SimpleImputer(), StandardScaler()).fit(numbers[:90, None].astype(np.float64))
    for rows, found in ((slice(90), partition.train[0]), (slice(90, 100), partition.test[0])):
        expected = one_hot.transform(texts[rows, None]), scaled.transform(numbers[rows, None].astype(np.float64))
        np.testing.assert_allclose(found, np.hstack(expected), atol=1e-6)


def test_refused_policy():
    with pytest.raises(ConfigError, match="data.missing = 'maen': unknown.*did you mean 'mean'"):
        split(load("wine"), missing="maen")


def test_a_column_of_names_is_refused_unless_no_party_holds_it():
    dataset = table({"name": [f"n{i}" for i in range(1002)], "a": np.arange(1002.0)}, 1)
    with pytest.raises(DataError, match="party-1: column 'name' has 1001 different texts .*data.id"):
        split(dataset, parties=2)
    assert split(dataset, how={"only": ["a"]}).parties == ("only",)


NEW = {"city": ["Bonn", "Rom", None], "age": [20, 30, 10], "size": [2.0, 1.0, 1.0], "code": [2, 3, 1]}


@pytest.mark.parametrize(
    "rows",
    [
        NEW,
        polars.DataFrame(NEW),
        polars.DataFrame(NEW).rows(named=True),
        polars.DataFrame(NEW).with_columns(more=1).select("more", "code", "size", "age", "city"),
    ],
)
def test_new_rows_by_name(rows):
    columns = {"city": ["Ulm", "Bonn", "Ulm"], "age": [10, 20, 30], "size": [1.0, 2.0, 3.0], "code": [1, 2, 2]}
    partition = split(table(columns, 1, ["code"]), parties=2, scale="minmax")
    left, right = partition.blocks(rows)
    assert left.tolist() == [[1, 0, 1], [0, 0, 2], [0, 0, 0]]
    assert right.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    np.testing.assert_array_equal(partition.block(1, rows), right)
    np.testing.assert_array_equal(partition.block(1, np.array([[2.0, 2.0], [1.0, 3.0], [1.0, 1.0]])), right)


def test_new_rows_that_do_not_fit():
    partition = split(table({"city": ["Ulm", "Bonn", "Ulm"], "age": [1, 2, 3]}, 1), parties=1)
    for rows, message in (
        ({"city": ["Ulm"]}, "party-1: the rows have no column 'age'"),
        ([{"city": "Ulm", "age": 1}, {"city": "Ulm"}], "no column 'age'"),
        ({"city": ["Ulm"], "age": ["old"]}, "column 'age' must hold numbers, not String"),
        ({"city": ["Ulm"], "age": [None]}, "1 of its values NaN.*'age', row 0"),
        ({"city": ["Ulm"], "age": [1, 2]}, "cannot be read as a table"),
        ("Ulm", "must be an array, a table or a list"),
    ):
        with pytest.raises(DataError, match=message):
            partition.blocks(rows)


def test_release_gives_the_columns_back():
    columns = {"a": [1.0, 2.0, 3.0], "b": [3.0, 4.0, 5.0]}
    dataset = table(columns, 1)
    whole, released = split(dataset, parties=2), split(dataset, parties=2, release=True)
    np.testing.assert_array_equal(whole.train[1], released.train[1])
    with pytest.raises(DataError, match="was released"):
        split(dataset, parties=2)


@pytest.mark.skipif(not (SHARED / "uci-credit-card").is_dir(), reason="no credit card data at ../shared/data")
def test_real_credit_card_data():
    dataset = load(
        "UCI_Credit_Card.csv.gz",
        dir=SHARED / "uci-credit-card",
        label="default.payment.next.month",
        id="ID",
        categorical=["SEX", "EDUCATION", "MARRIAGE"],
    )
    assert (dataset.x.shape, dataset.task.classes) == ((30_000, 23), ("0", "1"))
    assert dataset.y.mean() == pytest.approx(0.2212)
    partition = split(dataset, parties=2)
    features = partition.encoders[0].features
    assert features[:3] == ("LIMIT_BAL", "SEX=1", "SEX=2")
    assert [f for f in features if f.startswith("EDUCATION")] == [f"EDUCATION={i}" for i in range(7)]
    assert set(np.unique(partition.train[0][:, 1:3])) == {0.0, 1.0}
    assert abs(partition.train[0][:, 0].mean()) < 1e-5
