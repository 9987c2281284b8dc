"""Raised points: they commute, their exponents are unbiased, and invalid points are refused."""

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from colonnade.privacy.blinding import ORDER, POINT_BYTES, Blinder, _exponent, permutation

A, B = Blinder(b"a" * 32), Blinder(b"b" * 32)
TEXTS = ["7", "007", "é", "", "a\0b"]


def test_the_order_of_raising_does_not_matter_and_that_of_the_points_is_kept():
    one, other = B.raised(A.hashed(TEXTS)), A.raised(B.hashed(TEXTS))
    assert np.array_equal(one, other) and one.shape == (5, POINT_BYTES)
    assert len({point.tobytes() for point in one}) == 5
    assert np.array_equal(A.raised(B.hashed(TEXTS[::-1])), one[::-1])
    assert not np.array_equal(A.hashed(TEXTS), B.hashed(TEXTS))
    assert A.raised(B.hashed([])).shape == (0, POINT_BYTES)


def test_points_are_of_p256_and_the_exponent_is_the_seeds():
    """Against another implementation: k·G is the public key of k."""
    point = ec.derive_private_key(1, ec.SECP256R1()).public_key()
    wanted = ec.derive_private_key(_exponent(b"a" * 32), ec.SECP256R1()).public_key()

    def compressed(key):
        numbers = key.public_numbers()
        return np.frombuffer(bytes([2 + numbers.y % 2]) + numbers.x.to_bytes(32, "big"), np.uint8)

    assert np.array_equal(A.raised(compressed(point)[None])[0], compressed(wanted))


def test_what_is_no_point_is_refused():
    points = A.hashed(["x", "y"]).copy()
    for wrong in (b"\2" + hashlib.sha256(b"no point").digest(), b"\4" + bytes(32), bytes(33), b"\2" + b"\xff" * 32):
        points[1] = np.frombuffer(wrong, np.uint8)
        with pytest.raises(ValueError, match="point"):
            B.raised(points)


def test_exponents_are_within_the_group():
    found = [_exponent(bytes([number]) * 32) for number in range(100)]
    assert len(set(found)) == 100 and all(0 < exponent < ORDER for exponent in found)


def test_permutations():
    one = permutation(b"a" * 32, 1000)
    assert sorted(one) == list(range(1000)) and not np.array_equal(one, permutation(b"b" * 32, 1000))
    assert np.array_equal(one, permutation(b"a" * 32, 1000)) and len(permutation(b"a" * 32, 0)) == 0
