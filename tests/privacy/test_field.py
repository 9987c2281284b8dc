"""F_p against Python's integers and `galois`; quantising, drawing and the bound against what they promise."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from colonnade.privacy import field
from colonnade.privacy.field import MAX_INNER, P
from colonnade.protocol.errors import DataError, LocalProtocolError

EDGES = [
    0,
    1,
    2,
    23170,
    23171,
    2**15 - 1,
    2**15,
    2**16,
    2**30 - 2**15,
    2**30 - 1,
    2**30,
    2**30 + 1,
    P - 2**15,
    P - 2**15 - 1,
    P - 2,
    P - 1,
]
ELEMENTS = st.one_of(st.integers(0, P - 1), st.sampled_from(EDGES))
VECTORS = hnp.arrays(np.uint32, st.integers(1, 20), elements=ELEMENTS)


def seed(name):
    return hashlib.sha256(repr(name).encode()).digest()


def exact(left, right):
    """Python's integers."""
    return (left.astype(object) @ right.astype(object)) % P


def pair(draw, rows, inner, columns):
    return field.uniform(seed((draw, 0)), (rows, inner)), field.uniform(seed((draw, 1)), (inner, columns))


# --- element by element --------------------------------------------------------------------------------------------


@given(VECTORS, ELEMENTS)
@settings(deadline=None, derandomize=True)
def test_the_four_operations_are_those_of_galois_and_of_the_integers(GF, a, other):
    b = np.full_like(a, other)
    x, y = GF(a.astype(np.int64)), GF(b.astype(np.int64))
    for ours, theirs, integers in (
        (field.add(a, b), x + y, [(int(v) + other) % P for v in a]),
        (field.subtract(a, b), x - y, [(int(v) - other) % P for v in a]),
        (field.multiply(a, b), x * y, [int(v) * other % P for v in a]),
    ):
        assert ours.dtype == np.uint32 and ours.tolist() == theirs.tolist() == integers


def test_every_pair_of_edges():
    a, b = (values.ravel() for values in np.meshgrid(*[np.array(EDGES, np.uint32)] * 2))
    assert field.add(a, b).tolist() == [(int(x) + int(y)) % P for x, y in zip(a, b, strict=True)]
    assert field.subtract(a, b).tolist() == [(int(x) - int(y)) % P for x, y in zip(a, b, strict=True)]
    assert field.total([a, b, b]).tolist() == [(int(x) + 2 * int(y)) % P for x, y in zip(a, b, strict=True)]
    assert field.multiply(a, b).tolist() == [int(x) * int(y) % P for x, y in zip(a, b, strict=True)]


@given(hnp.arrays(np.uint32, st.integers(1, 20), elements=st.integers(1, P - 1)))
@settings(deadline=None, derandomize=True, max_examples=30)
def test_an_inverse_is_one(GF, a):
    assert field.inverse(a).tolist() == [pow(int(v), -1, P) for v in a] == (GF(1) / GF(a.astype(np.int64))).tolist()


def test_an_inverse_of_one_number_and_of_zero():
    assert field.inverse(7) == field.inverse(np.uint32(7)) == pow(7, -1, P)
    five, seven = np.uint32(5), np.uint32(7)
    assert (field.add(five, seven), field.subtract(five, seven), field.multiply(five, seven)) == (12, P - 2, 35)
    with pytest.raises(LocalProtocolError, match="0 has no inverse"):
        field.inverse(np.array([3, 0], np.uint32))


# --- the matrix product --------------------------------------------------------------------------------------------


@given(st.data())
@settings(deadline=None, derandomize=True, max_examples=60)
def test_a_product_is_that_of_galois_and_of_the_integers(GF, data):
    rows, inner, columns = (data.draw(st.integers(1, 9)) for _ in range(3))
    left = data.draw(hnp.arrays(np.uint32, (rows, inner), elements=ELEMENTS))
    right = data.draw(hnp.arrays(np.uint32, (inner, columns), elements=ELEMENTS))
    product = field.matmul(left, right)
    assert product.dtype == np.uint32
    assert product.tolist() == exact(left, right).tolist()
    assert product.tolist() == (GF(left.astype(np.int64)) @ GF(right.astype(np.int64))).tolist()


@pytest.mark.parametrize("inner", [255, 256, 257, 512, 513, 1000, 5000])
def test_the_worst_factors_stay_exact_over_many_blocks(inner):
    """Whatever is largest when centred, or in a limb, and always of the same sign."""
    for whole in (2**30 - 1, 2**30, P - 1):
        for other in (2**30 - 1, 2**30, 2**30 - 2**15, 2**15, 2**15 - 1, 2**16 - 2**15, P - 2**15, P - 2**15 - 1):
            left, right = np.full((2, inner), whole, np.uint32), np.full((inner, 3), other, np.uint32)
            expected = whole * other * inner % P
            assert (field.matmul(left, right) == expected).all(), (whole, other)
            assert (field.matmul(right.T, left.T) == expected).all(), (whole, other)
            assert (field.matmul(left, field.split(right)) == expected).all(), (whole, other)


def test_the_longest_inner_dimension():
    left, right = np.full((1, MAX_INNER), 2**30, np.uint32), np.full((MAX_INNER, 1), 2**30 - 1, np.uint32)
    assert field.matmul(left, right).tolist() == [[2**30 * (2**30 - 1) * MAX_INNER % P]]
    with pytest.raises(LocalProtocolError, match="at most"):
        field.matmul(np.zeros((1, MAX_INNER + 1), np.uint32), np.zeros((MAX_INNER + 1, 1), np.uint32))


@pytest.mark.parametrize("shape", [(256, 784, 64), (3, 812, 400), (5, 2, 70_000), (70_000, 2, 5), (1, 400, 1)])
def test_large_products_of_every_shape(shape, GF):
    """More than one tile and more than one block, the smaller factor on either side."""
    left, right = pair("large", *shape)
    product, rows = field.matmul(left, right), slice(None, None, max(1, shape[0] // 50))
    columns = slice(None, None, max(1, shape[2] // 50))
    assert (product[rows, columns] == exact(left[rows], right[:, columns])).all()
    low = GF(left[:2].astype(np.int64)) @ GF(right[:, -2:].astype(np.int64))
    assert (product[:2, -2:] == np.asarray(low)).all()


def test_factors_made_ready_give_the_same_product():
    left, right = pair("ready", 40, 500, 30)
    expected = field.matmul(left, right)
    rows = np.array([5, 3, 3, 39])
    for a in (left, field.centre(left)):
        np.testing.assert_array_equal(field.matmul(a, field.split(right)), expected)
        np.testing.assert_array_equal(field.matmul(a[rows], field.centre(right)), expected[rows])
    for b in (right, field.centre(right)):
        np.testing.assert_array_equal(field.matmul(field.split(left, "left"), b), expected)


def test_small_factors_take_one_limb():
    small = np.array([[3, P - 23170], [23170, 0]], np.uint32)
    assert field.split(small).parts.shape == (2, 2)
    assert field.split(field.uniform(seed("two"), (2, 2))).parts.shape == (2, 4)
    large = field.uniform(seed("large"), (2, 50))
    assert (field.matmul(small, large) == exact(small, large)).all()


def test_strided_and_empty_factors():
    left, right = pair("strides", 30, 800, 20)
    expected = exact(left[::3, ::2], right[1::2, ::-1])
    assert (field.matmul(left[::3, ::2], right[1::2, ::-1]) == expected).all()
    assert (field.matmul(np.asfortranarray(left), np.asfortranarray(right)) == exact(left, right)).all()
    assert field.matmul(left[:0], right).shape == (0, 20) and field.matmul(left, right[:, :0]).shape == (30, 0)
    assert (field.matmul(left[:, :0], right[:0]) == np.zeros((30, 20))).all()


def test_factors_that_do_not_go_together_are_refused():
    left, right = pair("refused", 3, 4, 5)
    for a, b in ((left, right[:3]), (left, field.split(right, "left")), (left, field.split(right[:3]))):
        with pytest.raises(LocalProtocolError, match="does not fit"):
            field.matmul(a, b)
    with pytest.raises(LocalProtocolError, match="may be split"):
        field.matmul(field.split(left, "left"), field.split(right))


# --- into the field and back ---------------------------------------------------------------------------------------


@given(hnp.arrays(np.float64, st.integers(0, 30), elements=st.floats(-1000, 1000)), st.integers(0, 19))
@settings(deadline=None, derandomize=True)
def test_quantising_rounds_to_the_nearest(x, bits):
    values = field.quantise(x, bits)
    assert values.dtype == np.uint32 and (values < P).all()
    assert values.tolist() == [round(v * 2**bits) % P for v in x.tolist()]
    assert np.abs(field.dequantise(values, bits) - x).max(initial=0) <= 2.0 ** -(bits + 1)


def test_negative_numbers_are_p_less_their_size():
    assert field.quantise(np.array([-1.0, -0.5, 0.0, 0.5], np.float32), 1).tolist() == [P - 2, P - 1, 0, 1]
    ends = np.array([0, 1, 2**30 - 1, 2**30, P - 1], np.uint32)
    assert field.dequantise(ends, 0).tolist() == [0, 1, 2**30 - 1, -(2**30 - 1), -1]


@pytest.mark.parametrize("x", [1e9, -1e9, np.inf, np.nan])
def test_numbers_that_do_not_fit_are_refused(x):
    for quantise in (field.quantise, lambda *of: field.quantise_stochastic(*of, seed("refused"))):
        with pytest.raises(DataError, match="does not fit into the field"):
            quantise(np.array([0.0, x]), 8)


@pytest.mark.parametrize("kind", ["generator", "seed"])
def test_stochastic_rounding_is_to_a_neighbour_and_right_on_average(kind):
    x = np.repeat([-3.75, -0.5, -1e-3, 0.0, 0.25, 2.0, 70000.9], 40_000).reshape(7, -1)
    draw = np.random.default_rng(0) if kind == "generator" else seed("rounding")
    rounded = field.dequantise(field.quantise_stochastic(x, 0, draw), 0)
    assert ((rounded == np.floor(x)) | (rounded == np.ceil(x))).all()
    fraction = x[:, 0] - np.floor(x[:, 0])
    spread = np.sqrt(fraction * (1 - fraction) / x.shape[1])
    assert (np.abs(rounded.mean(1) - x[:, 0]) <= 4.5 * spread + 1e-9).all()


def test_stochastic_rounding_leaves_whole_numbers_alone_and_repeats():
    x = np.array([2**29, -(2**29), 5, 0], float)
    for i in range(200):
        assert field.dequantise(field.quantise_stochastic(x, 0, seed(i)), 0).tolist() == x.tolist()
    x = np.linspace(-1, 1, 1000)
    first = field.quantise_stochastic(x, 12, seed("again"))
    np.testing.assert_array_equal(first, field.quantise_stochastic(x, 12, seed("again")))
    assert (first != field.quantise_stochastic(x, 12, seed("other"))).any()


# --- drawing -------------------------------------------------------------------------------------------------------


def test_drawn_elements_are_uniform():
    values = field.uniform(seed("uniform"), (1000, 400))
    assert values.shape == (1000, 400) and values.dtype == np.uint32 and values.max() < P
    for bins in (values.ravel().astype(np.int64) * 256 // P, values.ravel() % 256):
        assert stats.chisquare(np.bincount(bins, minlength=256)).pvalue > 1e-4
    assert field.uniform(seed("none"), (0, 3)).shape == (0, 3)


def test_the_value_p_is_passed_over(monkeypatch):
    """It comes once in 2³¹ draws: here, often."""
    stream = np.array([5, P, 2**31 + P, 2**31 + 7, P, 9] + [P] * 20 + [11, 13, 15], np.uint32)
    monkeypatch.setattr(field, "words", lambda _, count: stream[:count])
    assert field.uniform(b"", (2, 2)).tolist() == [[5, 7], [9, 11]]


# --- the bound -----------------------------------------------------------------------------------------------------


def test_the_bound_of_the_digest():
    """784 columns, 28 parties, everything within ±1: 30.7 bits at depth 1, 31.7 at depth 2."""
    assert np.log2(field.bound(8, 12, 1, 1, 784 + 28)) == pytest.approx(30.7, abs=0.05)
    assert np.log2(field.bound(8, 12, 1, 1, 2 * (784 + 28))) == pytest.approx(31.7, abs=0.05)
    assert field.bound(8, 12, 1, 1, 812) < P < field.bound(8, 12, 1, 1, 1624)
    assert field.bound(8, 12, 0.01, 1, 812) == field.bound(8, 12, 1, 1, 812), "the bias's 1 is there anyway"


def test_the_largest_that_fit():
    assert field.largest_fit(8, 12, 1, 1, 1624) == (7, 11)
    for x_max, w_max, terms in ((1, 1, 812), (3, 0.5, 100), (1, 8, 20_000)):
        l_x, l_w = field.largest_fit(8, 12, x_max, w_max, terms)
        assert field.bound(l_x, 12, x_max, w_max, terms) < P <= field.bound(l_x + 1, 12, x_max, w_max, terms)
        assert field.bound(8, l_w, x_max, w_max, terms) < P <= field.bound(8, l_w + 1, x_max, w_max, terms)
    assert field.largest_fit(8, 12, 1, 1, 10**6) == (None, 1)
    assert field.largest_fit(8, 12, 1e9, 1e9, 10) == (None, None)


@pytest.mark.parametrize(("terms", "wraps"), [(812, False), (1624, True)])
def test_sums_within_the_bound_come_back_and_larger_ones_wrap_in_silence(terms, wraps):
    x, w = np.ones((1, terms)), np.ones((terms, 1))
    for sign in (1, -1):
        total = field.matmul(field.quantise(sign * x, 8), field.quantise_stochastic(w, 12, seed("wrap")))
        assert (field.dequantise(total, 20) == sign * terms).all() != wraps
