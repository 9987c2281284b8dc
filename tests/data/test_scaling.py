"""Scaling against scikit-learn, and the difficult columns."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from colonnade.data import block as block_module
from colonnade.data.block import Block, whole
from colonnade.data.scaling import check_scale, fit
from colonnade.protocol.errors import ConfigError, DataError

TABLES = hnp.arrays(
    st.sampled_from([np.float64, np.float32, np.int16, np.uint8]),
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12),
    elements=st.integers(0, 200),
)


@settings(deadline=None)
@given(TABLES)
def test_standard_has_mean_0_and_deviation_1_or_0(x):
    scaled = fit("standard", whole(x), 1.0).apply(x)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(axis=0), np.where(np.ptp(x, axis=0) == 0, 0, 1), atol=1e-5)


@settings(deadline=None)
@given(TABLES)
def test_minmax_fills_0_to_1(x):
    scaled = fit("minmax", whole(x), 1.0).apply(x)
    np.testing.assert_array_equal(scaled.min(axis=0), 0)
    np.testing.assert_allclose(scaled.max(axis=0), np.where(np.ptp(x, axis=0) == 0, 0, 1), rtol=1e-6)


def test_clipped_is_a_third_of_standard_within_three_deviations():
    x = np.array([[0.0], [1.0], [2.0], [1.0]] * 10 + [[100.0]])
    scaler, standard = fit("clipped", whole(x), 1.0), fit("standard", whole(x), 1.0)
    new = np.array([[1.5], [-500.0], [60.0]])
    np.testing.assert_allclose(scaler.apply(new), [standard.apply(new)[0] / 3, [-1], [1]], rtol=1e-6)
    assert scaler.apply(x).max() == 1 and standard.apply(x).max() > 6


@pytest.mark.parametrize(("scale", "oracle"), [("standard", StandardScaler()), ("minmax", MinMaxScaler())])
def test_as_scikit_learn_does_and_on_new_rows_too(scale, oracle):
    generator = np.random.Generator(np.random.PCG64(1))
    x = generator.normal(5, 3, (200, 4)) * [1, 1e6, 1e-6, 0] + [0, 0, 0, 7]
    scaler = fit(scale, whole(x[:150]), 0.5)  # the factor cancels out
    np.testing.assert_allclose(scaler.apply(x[150:]), oracle.fit(x[:150]).transform(x[150:]), rtol=1e-5, atol=1e-6)


def test_none_multiplies_by_the_factor_alone():
    x = np.array([[0, 16], [8, 4]], dtype=np.uint8)
    assert fit("none", whole(x), 1 / 16).apply(x).tolist() == [[0, 1], [0.5, 0.25]]


@pytest.mark.parametrize("scale", ["standard", "minmax"])
@pytest.mark.parametrize("value", [0.1, 1e30, -3.7, 1e-300])
def test_constant_columns_become_exactly_zero(scale, value):
    x = np.full((1001, 1), value)  # rounding makes their mean differ from the value
    assert not fit(scale, whole(x), 1.0).apply(x).any()


def test_large_offset_keeps_its_digits():
    x = np.array([[1e9 + 1], [1e9 + 2], [1e9 + 3]])
    np.testing.assert_allclose(fit("minmax", whole(x), 1.0).apply(x)[:, 0], [0, 0.5, 1])
    np.testing.assert_allclose(fit("standard", whole(x), 1.0).apply(x)[:, 0], np.sqrt(1.5) * np.array([-1, 0, 1]))


@pytest.mark.parametrize("order", ["C", "F"])
def test_pieces_change_nothing(monkeypatch, order):
    generator = np.random.Generator(np.random.PCG64(2))
    x = np.asarray(generator.normal(size=(50, 6)), order=order)
    block = Block(x, generator.permutation(50)[:31], np.array([5, 0, 3]))
    at_once = fit("standard", block, 1.0).fill(block)
    monkeypatch.setattr(block_module, "PIECE", 20)  # three rows in each piece
    np.testing.assert_allclose(fit("standard", block, 1.0).fill(block), at_once, rtol=1e-6)
    assert at_once.flags.c_contiguous


def test_the_source_is_not_changed():
    x = np.arange(6.0).reshape(3, 2)
    fit("standard", whole(x), 1.0).apply(x)
    assert x.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_refused():
    scaler = fit("minmax", whole(np.array([[0.0], [1e-37]])), 1.0)
    with pytest.raises(DataError, match=r"shape \(rows, 1\), not \(2, 3\)"):
        scaler.apply(np.zeros((2, 3)))
    with pytest.raises(DataError, match="too large for 32-bit floats"):
        scaler.apply(np.array([[1e38]]))
    with pytest.raises(ConfigError, match=r"data.scale = 'standart'.*did you mean 'standard'"):
        check_scale("standart")
