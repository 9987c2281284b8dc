"""Hash texts to points of curve25519: `curve25519_XMD:SHA-512_ELL2_NU_` of RFC 9380, many texts at a time.

    r       the text's number modulo p, by expand_message_xmd with SHA-512 (section 5)
    d       1 + 2r², never 0 since −1/2 is no square
    x_1     −A/d, and x_2 = −A − x_1: exactly one of them is on the curve, the other is on its twist (Elligator 2)

Only the u-coordinate is computed: X25519 needs no other. The RFC's last step, the multiplication by the cofactor 8, is
left to the exponent, which X25519 makes a multiple of 8.

The encoding is not uniform: it reaches about half of the points. It still hides the ids. A simulator that needs a point
with a known exponent draws such points until one is reached, which takes two draws on average.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from colonnade.privacy import compiled
from colonnade.privacy.squares import P, are_squares
from colonnade.protocol.messages import Array

__all__ = ["hash_to_curve"]

A = 486662  # of the curve v² = u³ + A·u² + u
NUMBER_BYTES = 48  # 255 bits, and 128 more against a bias
BLOCK_BYTES = 128  # of SHA-512


def hash_to_curve(texts: Sequence[bytes], domain: bytes) -> Array:
    """The u-coordinate of each text's point, uint8 (texts, 32), in little-endian order."""
    if not texts:
        return np.empty((0, 32), np.uint8)
    hashes = _hashes(texts, domain)
    if compiled.AVAILABLE:
        return np.frombuffer(compiled.map_to_curve(b"".join(hashes)), np.uint8).reshape(-1, 32)
    return _mapped([int.from_bytes(one, "big") for one in hashes])


def _mapped(numbers: list[int]) -> Array:
    """Elligator 2."""
    d = [(1 + 2 * r * r) % P for r in numbers]
    # x_1³ + A·x_1² + x_1 is a square if and only if d⁴ times it is: that needs no division.
    values = [-A * one * (A * A * (1 - one) + one * one) % P or 1 for one in d]  # 0 is a square, as 1 is
    squares = are_squares(_array(values)).tolist()
    firsts = zip(_quotients(-A, d), squares, strict=True)
    return _array([first if square else (-A - first) % P for first, square in firsts])


def _hashes(texts: Sequence[bytes], domain: bytes) -> list[bytes]:
    """The numbers r, in big-endian order: RFC 9380, section 5.2 with one element (and 5.3.1: expand_message_xmd)."""
    end = domain + bytes([len(domain)])
    begin, middle, last = hashlib.sha512(bytes(BLOCK_BYTES)), NUMBER_BYTES.to_bytes(2, "big") + b"\0" + end, b"\1" + end
    found = []
    for text in texts:
        first = begin.copy()
        first.update(text + middle)
        found.append(hashlib.sha512(first.digest() + last).digest()[:NUMBER_BYTES])
    return found


def _quotients(dividend: int, numbers: list[int]) -> list[int]:
    """The dividend by each of the numbers modulo p, with a single inversion (Montgomery's trick)."""
    before, product = [], 1
    for number in numbers:
        before.append(product)
        product = product * number % P
    rest, found = dividend * pow(product, -1, P), []
    for number, one in zip(reversed(numbers), reversed(before), strict=True):
        found.append(rest * one % P)
        rest = rest * number % P
    return found[::-1]


def _array(numbers: list[int]) -> Array:
    content = b"".join([number.to_bytes(32, "little") for number in numbers])
    return np.frombuffer(content, np.uint8).reshape(-1, 32)
