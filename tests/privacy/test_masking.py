"""Masks in fixed point: exact sums, hidden values, and no sum that wraps around unnoticed."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from colonnade.privacy.masking import LARGEST, add, bound, check_bound, decode, encode, masks, subtract, total
from colonnade.privacy.secret import SecretKey, uniform, words
from colonnade.protocol.errors import ConfigError, TrainingDiverged


def seed(name):
    return hashlib.sha256(repr(name).encode()).digest()


def byte_chi_square(values, byte):
    """p-value of uniform bytes; byte 0 is the lowest."""
    counts = np.bincount((values >> np.uint64(8 * byte)).astype(np.uint8), minlength=256)
    return stats.chisquare(counts).pvalue


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.floats(-1e5, 1e5), min_size=1, max_size=8), st.sampled_from([16, 32, 40]))
def test_there_and_back(values, bits):
    values = np.array(values)
    back = decode(encode(values, bits, parties=8), bits)
    assert np.abs(back - values).max() <= 2.0 ** -(bits + 1)


def test_encoded_by_hand():
    encoded = encode(np.array([0.0, 1.0, -1.0, 0.75, -2.5]), 2, 3)
    assert encoded.dtype == np.uint64
    assert encoded.tolist() == [0, 4, 2**64 - 4, 3, 2**64 - 10]


@pytest.mark.parametrize("parties", [3, 5, 8, 64])
def test_the_masked_sum_is_exact(parties):
    """Integer for integer, whatever the order of the additions."""
    bits, rows = 40, 500
    values = np.random.default_rng(parties).normal(0, 30, (parties, rows))
    encoded = [encode(v, bits, parties) for v in values]
    drawn = [masks(seed(p), rows) for p in range(parties)]
    masked = [add(e, m) for e, m in zip(encoded, drawn, strict=True)]
    result = subtract(total(masked[::-1]), total(drawn))
    plain = [sum(int(x) for x in column) for column in np.array([e.view(np.int64) for e in encoded]).T]
    assert result.view(np.int64).tolist() == plain
    np.testing.assert_allclose(decode(result, bits), values.sum(0), atol=parties * 2.0 ** -(bits + 1))


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 12345.678])
def test_a_masked_value_is_uniform_in_every_byte(value):
    rows = 200_000
    masked = add(encode(np.full(rows, value), 40, 8), masks(seed(value), rows))
    for byte in range(8):
        assert byte_chi_square(masked, byte) > 1e-4, byte


def test_the_test_of_uniform_bytes_can_fail():
    """With floats or small masks the high bytes would show the value's size."""
    rows = 200_000
    small = add(encode(np.full(rows, 5.0), 40, 8), masks(seed("s"), rows) >> np.uint64(4))
    assert byte_chi_square(small, 7) < 1e-4


def test_a_masked_value_is_independent_of_the_secret():
    rows = 200_000
    secret = np.random.default_rng(1).normal(0, 3, rows)
    encoded = encode(secret, 40, 8)
    masked = add(encoded, masks(seed("i"), rows))
    for byte in (0, 5, 7):
        cells = (masked >> np.uint64(8 * byte + 5)).astype(np.uint8) & 7
        table = np.histogram2d(secret > 0, cells, bins=(2, 8))[0]
        assert stats.chi2_contingency(table).pvalue > 1e-4
    assert abs(np.corrcoef(secret, masked.astype(float))[0, 1]) < 4.5 / np.sqrt(rows)
    assert abs(np.corrcoef(secret, masked.view(np.int64).astype(float))[0, 1]) < 4.5 / np.sqrt(rows)


def test_a_wrong_mask_gives_garbage():
    rows = 10_000
    masked = add(encode(np.ones(rows), 40, 3), masks(seed("right"), rows))
    assert (decode(subtract(masked, masks(seed("right"), rows)), 40) == 1).all()
    wrong = decode(subtract(masked, masks(seed("wrong"), rows)), 40) / 2.0**23
    assert stats.kstest(wrong, "uniform", (-1, 2)).pvalue > 1e-4, "anything in the whole range"


@pytest.mark.parametrize("parties", [1, 2, 3, 5, 7, 8, 63, 64, 1000])
@pytest.mark.parametrize("bits", [0, 16, 32, 40, 52])
def test_at_the_bound_a_sum_is_right_and_past_it_is_refused(parties, bits):
    limit = bound(parties, bits)
    for sign in (1, -1):
        one = encode(np.array([sign * limit]), bits, parties)
        assert parties * abs(int(one.view(np.int64)[0])) <= LARGEST
        summed = total([one] * parties).view(np.int64)[0]
        assert summed == parties * int(one.view(np.int64)[0])
    assert (LARGEST // parties - limit * 2.0**bits) / LARGEST < 1e-15, "and no larger bound is possible"
    with pytest.raises(TrainingDiverged, match="does not fit into masked sums: the bound is"):
        encode(np.array([0.0, np.nextafter(limit, np.inf)]), bits, parties)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused(bad):
    with pytest.raises(TrainingDiverged):
        encode(np.array([1.0, bad]), 32, 3)


def test_nothing_is_no_reason_to_stop():
    assert len(encode(np.zeros(0), 32, 3)) == len(masks(seed(1), 0)) == 0


def test_a_wrapping_configuration_is_refused_with_the_bound_and_a_remedy():
    check_bound(100.0, 8, 40)
    with pytest.raises(ConfigError, match=r"fraction_bits = 60: values up to 100 do not fit.*beyond 1; use at most 53"):
        check_bound(100.0, 8, 60)
    check_bound(100.0, 8, 53)
    with pytest.raises(ConfigError, match="scale the data"):
        check_bound(1e300, 8, 40)
    for largest in (np.nan, np.inf):
        with pytest.raises(ConfigError):
            check_bound(largest, 8, 40)


def test_uniform_integers_are_the_words_of_the_stream():
    drawn = words(seed("w"), 20).astype(object)
    assert uniform(seed("w"), 10).tolist() == [int(drawn[2 * i] + (drawn[2 * i + 1] << 32)) for i in range(10)]
    assert uniform(seed("w"), 10).dtype == np.uint64


def test_every_path_of_a_key_has_masks_of_its_own():
    key = SecretKey()
    key.renew(b"entropy")
    one, other = (masks(key.seed("mask", 3, number), 1000) for number in (1, 2))
    assert not (one == other).any()
    np.testing.assert_array_equal(one, masks(key.seed("mask", 3, 1), 1000))
