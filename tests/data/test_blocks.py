"""A table for each party gives the same data as the one table they were cut from."""

import numpy as np
import polars
import pytest
from scipy import sparse

from colonnade.data import from_arrays, from_blocks, split
from colonnade.protocol.errors import ConfigError, DataError

X, Y = np.random.default_rng(0).normal(size=(30, 5)), ["good", "bad", "ugly"] * 10


def test_blocks_are_what_split_makes_of_the_whole_table():
    whole = split(from_arrays(X, Y), how={"bank": ["x0", "x1"], "shop": ["x2..x4"]})
    frame = polars.DataFrame(X[:, :2].astype(np.float32), schema=["age", "income"])
    apart = from_blocks({"bank": frame, "shop": X[:, 2:]}, Y)
    assert apart.parties == whole.parties and apart.validation == whole.validation
    np.testing.assert_array_equal(apart.y_train, whole.y_train)
    for ours, theirs in zip(apart.train + apart.test, whole.train + whole.test, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(apart.block(0, frame), whole.block(0, X[:, :2]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(apart.blocks(X)[1], whole.blocks(X)[1])


def test_lists_categories_and_sparse_blocks():
    city = polars.DataFrame({"x0": ["a", "b", "c"] * 10, "code": [1, 2, 2] * 10})
    data = from_blocks([city, sparse.csr_array(X)], Y, categorical=["code"])
    assert data.parties == ("party-1", "party-2")
    assert data.encoders[0].features == ("x0=a", "x0=b", "x0=c", "code=1", "code=2")
    assert sparse.issparse(data.train[1]) and data.columns[1][0] == "x0"


@pytest.mark.parametrize(
    ("blocks", "settings", "error", "message"),
    [
        (X, {}, DataError, "not one table; divide it with split"),
        ([], {}, DataError, "blocks is empty"),
        ({"the bank": X}, {}, ConfigError, "a party's name is"),
        ([X, X[:29]], {}, DataError, "party-2: 29 rows, but there are 30 labels"),
        ([X[:, 0]], {}, DataError, r"party-1: x must be 2-D"),
        ([X], {"categorical": ["city"]}, DataError, "no party has a column 'city'"),
        ([np.full((30, 1), np.nan)], {}, DataError, "party-1: 30 of its values NaN"),
    ],
)
def test_what_is_refused(blocks, settings, error, message):
    with pytest.raises(error, match=message):
        from_blocks(blocks, Y, **settings)
