"""Texts as points of curve25519: the vectors of RFC 9380, and squares against Euler's criterion."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.privacy.hash_to_curve import _hashes, _quotients, hash_to_curve
from colonnade.privacy.squares import FEW, P, _have_symbol_1, are_squares

pytestmark = pytest.mark.usefixtures("arithmetic")

DOMAIN = b"QUUX-V01-CS02-with-curve25519_XMD:SHA-512_ELL2_NU_"
VECTORS = [  # RFC 9380, J.4.2: the message, u[0], Q.x and P.x
    (
        b"",
        "608d892b641f0328523802a6603427c26e55e6f27e71a91a478148d45b5093cd",
        "51125222da5e763d97f3c10fcc92ea6860b9ccbbd2eb1285728f566721c1e65b",
        "1bb913f0c9daefa0b3375378ffa534bda5526c97391952a7789eb976edfe4d08",
    ),
    (
        b"abc",
        "46f5b22494bfeaa7f232cc8d054be68561af50230234d7d1d63d1d9abeca8da5",
        "7d56d1e08cb0ccb92baf069c18c49bb5a0dcd927eff8dcf75ca921ef7f3e6eeb",
        "7c22950b7d900fa866334262fcaea47a441a578df43b894b4625c9b450f9a026",
    ),
    (
        b"abcdef0123456789",
        "235fe40c443766ce7e18111c33862d66c3b33267efa50d50f9e8e5d252a40aaa",
        "3fbe66b9c9883d79e8407150e7c2a1c8680bee496c62fabe4619a72b3cabe90f",
        "31ad08a8b0deeb2a4d8b0206ca25f567ab4e042746f792f4b7973f3ae2096c52",
    ),
    (
        b"q128_" + b"q" * 128,
        "001e92a544463bda9bd04ddbe3d6eed248f82de32f522669efc5ddce95f46f5b",
        "227e0bb89de700385d19ec40e857db6e6a3e634b1c32962f370d26f84ff19683",
        "027877759d155b1997d0d84683a313eb78bdb493271d935b622900459d52ceaa",
    ),
    (
        b"a512_" + b"a" * 512,
        "1a68a1af9f663592291af987203393f707305c7bac9c8d63d6a729bdc553dc19",
        "3bcd651ee54d5f7b6013898aab251ee8ecc0688166fce6e9548d38472f6bd196",
        "5fd892c0958d1a75f54c3182a18d286efab784e774d1e017ba2fb252998b5dc1",
    ),
]


def doubled(u: int) -> int:
    return (u * u - 1) ** 2 * pow(4 * u * (u * u + 486662 * u + 1), -1, P) % P


def test_the_vectors_of_rfc_9380():
    points = hash_to_curve([text for text, *_ in VECTORS], DOMAIN)
    for (text, number, before, after), point in zip(VECTORS, points, strict=True):
        assert int.from_bytes(_hashes([text], DOMAIN)[0], "big") % P == int(number, 16)
        u = int.from_bytes(point.tobytes(), "little")
        assert u == int(before, 16)
        assert doubled(doubled(doubled(u))) == int(after, 16)  # the cofactor, which X25519's exponents hold


def test_domains_and_texts_differ_and_the_order_is_kept():
    texts = [str(number).encode() for number in range(100)]
    points = hash_to_curve(texts, DOMAIN)
    assert np.array_equal(hash_to_curve(texts[::-1], DOMAIN), points[::-1])
    assert len({point.tobytes() for point in (*points, *hash_to_curve(texts, b"another"))}) == 200
    assert hash_to_curve([], DOMAIN).shape == (0, 32)


def encoded(numbers):
    return np.frombuffer(b"".join(number.to_bytes(32, "little") for number in numbers), np.uint8).reshape(-1, 32)


def euler(number):
    return pow(number, (P - 1) // 2, P) == 1


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, P - 1), min_size=1, max_size=20))
def test_squares(numbers):
    assert _have_symbol_1(encoded(numbers)).tolist() == [euler(number) for number in numbers]


def test_squares_of_many_shapes():
    powers = [1 << bit for bit in range(255)]
    numbers = [*range(1, 200), *powers, *(one - 1 for one in powers[1:]), *(P - one for one in powers[:-1])]
    assert len(numbers) > FEW
    assert are_squares(encoded(numbers)).tolist() == [euler(number) for number in numbers]
    assert are_squares(encoded(numbers[: FEW - 1])).tolist() == [euler(number) for number in numbers[: FEW - 1]]


@pytest.mark.parametrize("count", [1, 2, 50])
def test_quotients(count):
    numbers = [number * number + 2 for number in range(count)]
    found = _quotients(-7, numbers)
    assert [number * one % P for number, one in zip(numbers, found, strict=True)] == [P - 7] * count
