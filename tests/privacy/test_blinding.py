"""Raised points: they commute, all of them are on the curve, and numbers that are no points are refused."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.privacy.blinding import DOMAIN, POINT_BYTES, Blinder, permutation
from colonnade.privacy.hash_to_curve import hash_to_curve
from colonnade.privacy.squares import P
from colonnade.privacy.x25519 import raise_points

pytestmark = pytest.mark.usefixtures("arithmetic")

A, B = Blinder(b"a" * 32), Blinder(b"b" * 32)
TEXTS = ["7", "007", "é", "", "a\0b"]
BASE = (9).to_bytes(32, "little")
SMALL_ORDERS = (  # 0, 1 and −1, then the two of order 8 on the curve (RFC 7748's authors list them: cr.yp.to/ecdh.html)
    0,
    1,
    P - 1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)


def point_of(number: int | bytes):
    content = number if isinstance(number, bytes) else number.to_bytes(32, "little")
    return np.frombuffer(content, np.uint8)


def number_of(point) -> int:
    return int.from_bytes(point.tobytes(), "little")


def is_on_the_curve(point) -> bool:
    u = number_of(point)
    return pow(u**3 + 486662 * u * u + u, (P - 1) // 2, P) in (0, 1)


def test_the_order_of_raising_does_not_matter_and_that_of_the_points_is_kept():
    one, other = B.raised(A.hashed(TEXTS)), A.raised(B.hashed(TEXTS))
    assert np.array_equal(one, other) and one.shape == (5, POINT_BYTES)
    assert len({point.tobytes() for point in one}) == 5
    assert np.array_equal(A.raised(B.hashed(TEXTS[::-1])), one[::-1])
    assert not np.array_equal(A.hashed(TEXTS), B.hashed(TEXTS))
    assert A.raised(B.hashed([])).shape == (0, POINT_BYTES)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(min_size=32, max_size=32), min_size=2, max_size=4), st.integers(2, P - 2))
def test_exponents_commute_on_the_curve_and_on_its_twist(exponents, number):
    """For any number of members and any number below p that is no point of small order."""
    if number in SMALL_ORDERS:
        return
    forth, back = point_of(number)[None], point_of(number)[None]
    for exponent in exponents:
        forth = raise_points(exponent, forth)
    for exponent in reversed(exponents):
        back = raise_points(exponent, back)
    assert np.array_equal(forth, back) and number_of(forth[0]) < P
    assert is_on_the_curve(forth[0]) == is_on_the_curve(point_of(number))


def test_a_raised_point_does_not_say_of_which_of_two_curves_it_is():
    points = A.raised(B.hashed([str(number) for number in range(200)]))
    assert all(map(is_on_the_curve, points))


def test_the_iterated_vectors_of_rfc_7748():
    """Section 5.2: k and u begin as 9; then k, u = X25519(k, u), k."""
    k = u = BASE
    for number in range(1000):
        k, u = raise_points(k, point_of(u)[None] & np.uint8([255] * 31 + [127]))[0].tobytes(), k
        if number == 0:
            assert k.hex() == "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"
    assert k.hex() == "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"


def test_the_exponent_is_the_seeds():
    private = X25519PrivateKey.from_private_bytes(A._exponent)
    assert A.raised(point_of(BASE)[None])[0].tobytes() == private.public_key().public_bytes_raw()
    assert len({Blinder(bytes([number]) * 32)._exponent for number in range(100)}) == 100


@pytest.mark.parametrize("wrong", [P, P + 1, P + 9, 2**255 - 1, 2**255 + 9, 2**256 - 1, *SMALL_ORDERS])
@pytest.mark.parametrize("place", [0, 8])
def test_what_is_no_point_or_one_of_small_order_is_refused(wrong, place):
    points = A.hashed([str(number) for number in range(9)]).copy()
    B.raised(points)
    points[place] = point_of(wrong)
    with pytest.raises(ValueError):
        B.raised(points)


@pytest.mark.parametrize("number", [2, 9, P - 2, P - 1500, 2**255 - 2**200, 2**254])
def test_numbers_at_the_edges_are_points(number):
    wanted = X25519PrivateKey.from_private_bytes(A._exponent).exchange(_public(number))
    assert A.raised(point_of(number)[None])[0].tobytes() == wanted


def _public(number):
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    return X25519PublicKey.from_public_bytes(number.to_bytes(32, "little"))


def test_what_is_hashed_is_raised_to_the_exponent():
    bare = hash_to_curve([text.encode() for text in TEXTS], DOMAIN)
    assert np.array_equal(A.raised(bare), A.hashed(TEXTS))


def test_permutations():
    one = permutation(b"a" * 32, 1000)
    assert sorted(one) == list(range(1000)) and not np.array_equal(one, permutation(b"b" * 32, 1000))
    assert np.array_equal(one, permutation(b"a" * 32, 1000)) and len(permutation(b"a" * 32, 0)) == 0
