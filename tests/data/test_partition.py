"""Splits as a whole: rows, reproducibility, bad values, prediction, memory."""

import tracemalloc
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from colonnade.data import Dataset, Task, from_arrays, load
from colonnade.data import split as split_rows_and_columns
from colonnade.protocol.errors import ConfigError, DataError

split = partial(split_rows_and_columns, validation_fraction=0)


def counted(rows=10, width=4):
    """Each value tells its row and column: 100 * row + column."""
    return from_arrays(100.0 * np.arange(rows)[:, None] + np.arange(width), np.arange(rows) % 2)


@settings(deadline=None)
@given(st.integers(2, 30), st.floats(0.01, 0.99), st.floats(0, 0.99), st.integers(0, 2**40))
def test_every_row_is_trained_or_tested_on_and_lies_alike_at_all_parties(rows, fraction, validation, seed):
    how = {"parties": 2, "scale": "none", "test_fraction": fraction, "split_seed": seed}
    plain = split(counted(rows), **how)
    assume(not validation or len(plain.y_train) > 1)
    partition = split(counted(rows), **how, validation_fraction=validation)
    assert len(partition.y_train) >= 1
    assert len(partition.y_test) > partition.validation >= (validation > 0)
    np.testing.assert_array_equal(partition.test[0][partition.validation :], plain.test[0])
    both = [np.concatenate(pair) for pair in zip(partition.train, partition.test, strict=True)]
    row = both[0][:, 0] // 100
    assert sorted(row) == list(range(rows))
    np.testing.assert_array_equal(both[1][:, 0] // 100, row)
    np.testing.assert_array_equal(np.concatenate([partition.y_train, partition.y_test]), row % 2)


def test_shapes_names_and_types():
    partition = split(load("digits"), parties=3)
    assert partition.parties == ("party-1", "party-2", "party-3")
    assert [len(names) for names in partition.columns] == [22, 21, 21]
    assert [block.shape for block in partition.train] == [(1438, 22), (1438, 21), (1438, 21)]
    assert all(b.dtype == np.float32 and b.flags.c_contiguous for b in partition.train + partition.test)
    assert partition.y_test.shape == (359,)


def test_defaults():
    assert len(split(load("wine")).parties) == 4
    named = split(counted(), how={"bank": ["x3", "x0"], "shop": ["x1"]}, scale="none")
    assert (named.parties, named.columns) == (("bank", "shop"), (("x3", "x0"), ("x1",)))
    np.testing.assert_array_equal(named.train[0][:, 0] - named.train[0][:, 1], 3)


def test_seed_alone_decides_and_numpy_is_left_alone():
    before = np.random.get_state()[1].copy()
    first, again, other = (split(load("wine"), split_seed=seed) for seed in (1, 1, 2))
    assert first.train[0].tobytes() == again.train[0].tobytes()
    assert first.y_test.tobytes() == again.y_test.tobytes()
    assert first.train[0].tobytes() != other.train[0].tobytes()
    np.testing.assert_array_equal(np.random.get_state()[1], before)


def test_given_test_rows_are_the_test_set():
    x = np.arange(8.0).reshape(4, 2)
    dataset = from_arrays(x, [0, 1, 0, 1], x_test=x[:2], y_test=[1, 0])
    partition = split(dataset, parties=1, scale="none", test_fraction=0.9)
    np.testing.assert_array_equal(partition.train[0], x)
    np.testing.assert_array_equal(partition.test[0], x[:2])
    assert partition.y_test.tolist() == [1, 0]


def test_scaling_sees_training_rows_only():
    x, far = np.array([[0.0], [1.0], [2.0]]), np.array([[1e6]])
    partition = split(from_arrays(x, [0, 1, 0], x_test=far, y_test=[1]), parties=1, scale="minmax")
    assert partition.train[0].ravel().tolist() == [0, 0.5, 1]
    assert partition.test[0].ravel().tolist() == [5e5]


def test_dataset_says_the_default_scale():
    assert split(load("digits")).train[1].max() == 1.0
    assert abs(split(load("digits"), scale="standard").train[1].mean()) < 1e-6


@pytest.mark.parametrize("scale", ["standard", "minmax", "none"])
def test_blocks_repeat_the_split_on_raw_rows(scale):
    dataset = load("digits")
    partition = split(dataset, how="quarters", scale=scale, split_seed=3)
    order = np.random.Generator(np.random.PCG64(3)).permutation(len(dataset.x))
    for block, expected in zip(partition.blocks(dataset.x[order[:359]]), partition.test, strict=True):
        assert block.dtype == np.float32
        np.testing.assert_array_equal(block, expected)
    index = partition.indices[2]
    np.testing.assert_array_equal(partition.scalers[2].apply(dataset.x[order[:359]][:, index]), partition.test[2])


def test_blocks_of_no_rows():
    assert [block.shape for block in split(counted(), parties=2).blocks(np.zeros((0, 4)))] == [(0, 2), (0, 2)]


def test_blocks_refuse_what_does_not_fit():
    partition = split(counted(), how={"a": ["x0"]})
    with pytest.raises(DataError, match=r"shape \(rows, 4\), not float64 of \(4,\)"):
        partition.blocks(np.zeros(4))
    with pytest.raises(DataError, match=r"float64 of \(1, 1\)"):
        partition.blocks(np.zeros((1, 1)))
    with pytest.raises(DataError, match="not <U1"):
        partition.blocks(np.full((1, 4), "a"))
    with pytest.raises(DataError, match="a: 1 of its values NaN.*'x0', row 1 "):
        partition.blocks(np.array([[0, np.nan, 0, 0], [np.nan, 0, 0, 0]]))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39])
@pytest.mark.parametrize("scale", ["standard", "none"])
def test_bad_values_are_named(bad, scale):
    dataset = counted(1000, 6)
    dataset.x[[700, 40, 999], [4, 5, 5]] = bad
    message = r"party-3: 3 of its values NaN.*column 'x5', row 40 \(counted from 0\)"
    with pytest.raises(DataError, match=message):
        split(dataset, parties=3, scale=scale)


def test_bad_values_in_columns_that_no_party_holds_do_not_matter():
    dataset = counted()
    dataset.x[0, 3] = np.nan
    assert split(dataset, how={"a": ["x0..x2"]}).train[0].shape == (8, 3)


@pytest.mark.parametrize("fraction", [-0.1, 1, 1.5, float("nan"), True, "0.1", None])
def test_refused_validation_fraction(fraction):
    with pytest.raises(ConfigError, match="data.validation_fraction"):
        split(counted(), validation_fraction=fraction)


def test_a_given_test_set_leaves_the_validation_rows_to_the_training_rows():
    x = np.arange(20.0)[:, None]
    given = from_arrays(x, np.arange(20) % 2, x_test=x[:3] + 100, y_test=[0, 1, 0])
    first, other = (split(given, parties=1, scale="none", validation_fraction=0.2, split_seed=seed) for seed in (0, 1))
    for partition in (first, other):
        assert partition.validation == 4
        assert partition.test[0][4:].ravel().tolist() == [100, 101, 102]
        assert sorted([*partition.train[0].ravel(), *partition.test[0][:4].ravel()]) == list(range(20))
        assert partition.train[0].ravel().tolist() == sorted(partition.train[0].ravel()), "in the given order"
        np.testing.assert_array_equal(partition.y_train, partition.train[0].ravel() % 2)
    assert first.test[0].tolist() != other.test[0].tolist()


def test_few_rows_have_one_to_validate_on():
    assert split(counted(3), validation_fraction=0.1).validation == 1
    with pytest.raises(DataError, match="2 rows cannot be split .* set data.validation_fraction = 0"):
        split(counted(2), validation_fraction=0.1)


def test_scaling_does_not_see_validation_rows():
    x = np.arange(10.0)[:, None]
    partition = split(from_arrays(x, x[:, 0] % 2, x_test=[[1.0]], y_test=[0]), parties=1, validation_fraction=0.4)
    assert abs(partition.train[0].mean()) < 1e-6 and abs(partition.train[0].std() - 1) < 1e-6
    assert len(partition.train[0]) == 6


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, float("nan"), "half", None])
def test_refused_test_fraction(fraction):
    with pytest.raises(ConfigError, match="data.test_fraction"):
        split(counted(), test_fraction=fraction)


@pytest.mark.parametrize("seed", [-1, 1.5, True])
def test_refused_seed(seed):
    with pytest.raises(ConfigError, match="data.split_seed"):
        split(counted(), split_seed=seed)


def test_refused_scale_and_single_row():
    with pytest.raises(ConfigError, match="data.scale"):
        split(counted(), scale="log")
    with pytest.raises(ConfigError, match="data.parties"):
        split(counted(width=3))
    one = Dataset("one", np.zeros((1, 1)), np.zeros(1), Task("regression", ()), ("a",), 0)
    with pytest.raises(DataError, match="one: 1 row cannot be split"):
        split(one, parties=1)


@pytest.mark.parametrize("scale", ["none", "standard"])
def test_memory_is_the_result_and_little_more(scale):
    x = np.zeros((60_000, 784), dtype=np.uint8)
    x[::2] = 200
    dataset = Dataset(
        "bytes", x, np.arange(60_000) % 2, Task("binary", ("a", "b")), tuple(map(str, range(784))), 10_000
    )
    tracemalloc.start()  # after the source was made, so that it does not count
    partition = split(dataset, scale=scale)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    result = sum(block.nbytes for block in partition.train + partition.test)
    assert result == x.size * 4
    assert peak <= 1.15 * result
