"""Which party holds which columns."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.data import Dataset, Task, from_arrays, load, split
from colonnade.data.columns import assign
from colonnade.protocol.errors import ConfigError


def table(width):
    return from_arrays(np.zeros((2, width)), [0, 1], columns=[f"c{i}" for i in range(width)])


def picture(height, width):
    x = np.zeros((2, height * width), dtype=np.uint8)
    names = tuple(f"pixel{i}" for i in range(height * width))
    return Dataset("picture", x, np.array([0, 1]), Task("binary", ("a", "b")), names, 0, image=(height, width))


@settings(deadline=None)
@given(st.integers(1, 40), st.data())
def test_even_covers_every_column_once_and_in_order(width, data):
    parties = data.draw(st.integers(1, width))
    names, indices = assign(table(width), parties, "even")
    assert names == tuple(f"party-{i}" for i in range(1, parties + 1))
    assert np.concatenate(indices).tolist() == list(range(width))
    sizes = [len(index) for index in indices]
    assert max(sizes) - min(sizes) <= 1
    assert all(index.dtype == np.int64 for index in indices)


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 6))
def test_rows_are_bands(parties, rows_each, width):
    _, indices = assign(picture(parties * rows_each, width), parties, "rows")
    assert np.concatenate(indices).tolist() == list(range(parties * rows_each * width))
    assert {len(index) for index in indices} == {rows_each * width}


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 5))
def test_quarters_cover_every_pixel_once(half_height, half_width):
    _, indices = assign(picture(2 * half_height, 2 * half_width), None, "quarters")
    assert sorted(np.concatenate(indices)) == list(range(4 * half_height * half_width))


def test_quarters_by_hand():
    _, indices = assign(picture(2, 4), 4, "quarters")
    assert [index.tolist() for index in indices] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert assign(load("digits"), 4, "quarters")[1][1][:5].tolist() == [4, 5, 6, 7, 12]


def test_named_keeps_the_order_given_and_may_leave_columns_out():
    names, indices = assign(table(6), None, {"bank": ["c4", "c0"], "shop": ["c1..c3"]})
    assert names == ("bank", "shop")
    assert [index.tolist() for index in indices] == [[4, 0], [1, 2, 3]]


@pytest.mark.parametrize(
    ("width", "parties", "how", "key", "message"),
    [
        (3, 4, "even", "data.parties", "party-4 would have no columns"),
        (3, 0, "even", "data.parties", "whole number from 1"),
        (3, True, "even", "data.parties", "whole number from 1"),
        (3, 2.0, "even", "data.parties", "whole number from 1"),
        (3, 2, "evn", "data.split", "did you mean 'even'"),
        (3, 2, ["c0"], "data.split", "unknown"),
        (8, 2, "rows", "data.split", "is for images"),
        (8, 4, "quarters", "data.split", "is for images"),
        (3, None, {}, "data.split", "names no party"),
        (3, 2, {"a": ["c0"]}, "data.parties", "data.split names 1"),
        (3, None, {"a": ["c0"], "b": []}, "data.split", "b has no columns"),
        (3, None, {"a": "c0"}, "data.split", "a needs a list"),
        (3, None, {"a": 3}, "data.split", "a needs a list"),
        (12, None, {"a": ["c0", "C11"]}, "data.split", "a: arrays has no column 'C11' .did you mean 'c11'"),
        (3, None, {"a": ["zebra"]}, "data.split", "no column 'zebra'$"),
        (3, None, {"a": [0]}, "data.split", "no column '0'"),
        (3, None, {"a": ["c0..d9"]}, "data.split", "no column 'd9'"),
        (3, None, {"a": ["c2..c1"]}, "data.split", "'c2' comes after 'c1'"),
        (3, None, {"a": ["c0", "c1"], "b": ["c1"]}, "data.split", "'c1': both a and b have this column"),
        (3, None, {"a": ["c0..c2", "c1"]}, "data.split", "'c1': a has this column twice"),
        (3, None, {"server": ["c0"]}, "data.split", "not 'server'"),
        (3, None, {"a b": ["c0"]}, "data.split", "'a b': a party's name"),
        (3, None, {"a\n": ["c0"]}, "data.split", "a party's name"),
        (3, None, {"": ["c0"]}, "data.split", "a party's name"),
        (3, None, {"a" * 65: ["c0"]}, "data.split", "1 to 64"),
    ],
)
def test_refused(width, parties, how, key, message):
    with pytest.raises(ConfigError, match=message) as caught:
        assign(table(width), parties, how)
    assert caught.value.key == key


def test_refused_for_images():
    with pytest.raises(ConfigError, match=r"data.parties = 3.*one of \[1, 2, 4, 8\]"):
        assign(picture(8, 8), 3, "rows")
    with pytest.raises(ConfigError, match="data.parties = 16"):
        assign(picture(8, 8), 16, "rows")
    with pytest.raises(ConfigError, match=r"data.parties = 2.*needs 4"):
        assign(picture(8, 8), 2, "quarters")
    with pytest.raises(ConfigError, match="even height and width, not 4 x 3"):
        assign(picture(4, 3), 4, "quarters")


def test_upright_bands_of_an_image():
    partition = split(load("digits"), parties=4, how="columns", scale="none")
    assert partition.shapes == ((8, 2),) * 4
    assert partition.columns[1][:4] == ("pixel2", "pixel3", "pixel10", "pixel11")
    with pytest.raises(ConfigError, match=r"cuts 8 columns into equal bands, so it must be one of \[1, 2, 4, 8\]"):
        split(load("digits"), parties=3, how="columns")
    with pytest.raises(ConfigError, match="is for images, but wine is a table"):
        split(load("wine"), how="columns")
