"""Secret draws: the cipher is that of RFC 8439, and the draws have the right distributions."""

import hashlib
import struct

import numpy as np
import pytest
from scipy import stats

from colonnade.privacy.secret import SecretKey, normal, sphere, words
from colonnade.protocol.errors import LocalProtocolError


def seed(name):
    return hashlib.sha256(repr(name).encode()).digest()


def rotate(value, by):
    return ((value << by) | (value >> (32 - by))) & 0xFFFFFFFF


def quarter_round(state, a, b, c, d):
    for x, y, z, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        state[x] = (state[x] + state[y]) & 0xFFFFFFFF
        state[z] = rotate(state[z] ^ state[x], by)


def block(key, counter, nonce=bytes(12)):
    """RFC 8439 Sec. 2.3, in plain Python."""
    start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter]
    start += struct.unpack("<3I", nonce)
    state = list(start)
    for _ in range(10):
        for column in range(4):
            quarter_round(state, column, 4 + column, 8 + column, 12 + column)
        for i in range(4):
            quarter_round(state, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return [(a + b) & 0xFFFFFFFF for a, b in zip(state, start, strict=True)]


def test_the_reference_itself_gives_the_vector_of_the_rfc():
    """RFC 8439 Sec. 2.3.2."""
    nonce = bytes.fromhex("000000090000004a00000000")
    words = block(bytes(range(32)), 1, nonce)
    assert [f"{word:08x}" for word in words[:4]] == ["e4e7f110", "15593bd1", "1fdd0f50", "c47120a3"]


@pytest.mark.parametrize("key", [bytes(32), bytes(range(32)), seed("any")])
@pytest.mark.parametrize("count", [1, 16, 17, 100])
def test_the_words_are_the_key_stream_from_its_beginning(key, count):
    expected = [word for counter in range(-(-count // 16)) for word in block(key, counter)]
    assert words(key, count).tolist() == expected[:count]


def test_rfc_8439_appendix_a_1_first_vector():
    """Key, nonce and counter all zero."""
    assert words(bytes(32), 16).astype("<u4").tobytes().hex().startswith("76b8e0ada0f13d90405d6ae55386bd28")


@pytest.mark.parametrize("count", [1, 2, 7, 100_000, 100_001])
def test_normals_are_as_many_as_asked_for(count):
    values = normal(seed("n"), count)
    assert values.shape == (count,) and values.dtype == np.float32 and np.isfinite(values).all()


def test_the_moments_of_normals():
    values = normal(seed("moments"), 1_000_000).astype(float)
    for power, moment, spread in ((1, 0, 1), (2, 1, 2**0.5), (3, 0, 15**0.5), (4, 3, 96**0.5)):
        assert abs((values**power).mean() - moment) < 4.5 * spread / 1000, power
    assert np.abs(values).max() > 4.5, "tails are there"


def test_normals_pass_kolmogorov_and_smirnov_in_both_halves():
    """Box and Muller's cosines and sines are adjacent."""
    values = normal(seed("ks"), 200_000)
    for part in (values, values[:100_000], values[100_000:], values[::2]):
        assert stats.kstest(part.astype(float), "norm").pvalue > 1e-4
    assert stats.kstest(values.astype(float) * 1.03, "norm").pvalue < 1e-4, "an error of three per cent would be found"


def test_the_two_of_a_pair_are_independent():
    cosines, sines = normal(seed("pairs"), 200_000).reshape(2, -1).astype(float)
    for f in (lambda v: v, np.square, np.abs):
        assert abs(np.corrcoef(f(cosines), f(sines))[0, 1]) < 4.5 / np.sqrt(100_000)
    assert stats.kstest(np.arctan2(sines, cosines) / (2 * np.pi) + 0.5, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("dimension", [1, 2, 3, 1000, 50_001])
def test_points_of_the_sphere_have_norm_one(dimension):
    point = sphere(seed("s"), dimension)
    assert point.dtype == np.float32 and np.linalg.norm(point.astype(float)) == pytest.approx(1, abs=1e-6)


def test_points_of_the_sphere_are_everywhere_alike():
    points = np.array([sphere(seed(i), 3) for i in range(4000)]).astype(float)
    for axis in range(3):  # Archimedes: each coordinate of a point of the sphere in space is uniform
        assert stats.kstest(points[:, axis], "uniform", (-1, 2)).pvalue > 1e-4


def test_a_seed_is_all_that_the_numbers_depend_on():
    np.testing.assert_array_equal(normal(seed(1), 500), normal(seed(1), 500))
    one, other = normal(seed(1), 100_000).astype(float), normal(seed(2), 100_000).astype(float)
    assert abs(np.corrcoef(one, other)[0, 1]) < 4.5 / np.sqrt(100_000)


def test_neighbouring_seeds_are_strangers():
    """The directions of one upload differ in few bits of the seed."""
    base = seed("base")
    drawn = np.array([normal(bytes([base[0] ^ i]) + base[1:], 20_000) for i in range(8)]).astype(float)
    assert np.abs(np.corrcoef(drawn)[np.triu_indices(8, 1)]).max() < 4.5 / np.sqrt(20_000)


def test_nothing_before_entropy():
    with pytest.raises(LocalProtocolError, match="before Started or Resumed"):
        SecretKey().seed("directions", 1)


def test_paths_and_entropies_give_seeds_of_their_own():
    seeds = set()
    for entropy in (b"", b"a", b"b"):
        key = SecretKey()
        key.renew(entropy)
        for path in (("directions", 1), ("directions", 2), ("server", 1), ("directions", 12), ("directions",)):
            made = key.seed(*path)
            assert made == key.seed(*path) and len(made) == 32
            seeds.add(made)
    assert len(seeds) == 15


def test_renewed_is_another_key_and_the_same_entropy_the_same():
    key = SecretKey()
    key.renew(b"first")
    before = key.seed("directions", 1)
    key.renew(b"second")
    assert key.seed("directions", 1) != before
    key.renew(b"first")
    assert key.seed("directions", 1) == before
