"""Points of an elliptic curve that stand for ids, raised to secret exponents: k_b·(k_a·H(id)) = k_a·(k_b·H(id)).

The curve is curve25519, H hashes a text to a point of it (`hash_to_curve`, RFC 9380), and X25519 (RFC 7748) raises
points. Without an exponent, telling a raised point from a random one is as hard as the decisional Diffie–Hellman
problem. All points of honest members are on the curve, so a raised point says nothing about its id.

A member may send any number below p. It is a point of the curve or of its twist. X25519 is made for both: their orders
are 8 and 4 times a prime of 253 bits, and k is a multiple of 8. So a point of the twist reveals nothing about k, and a
point of small order gives 0, which is refused.
"""

from collections.abc import Sequence

import numpy as np

from colonnade.privacy.hash_to_curve import hash_to_curve
from colonnade.privacy.secret import words
from colonnade.privacy.x25519 import POINT_BYTES, raise_points
from colonnade.protocol.messages import Array

__all__ = ["POINT_BYTES", "SUITE", "Blinder", "permutation"]

SUITE = "curve25519_XMD:SHA-512_ELL2_NU_"  # of RFC 9380; all members must hash alike
DOMAIN = b"colonnade-align-V02-with-" + SUITE.encode()


class Blinder:
    """One secret exponent, derived from a seed of 32 bytes."""

    def __init__(self, seed: bytes) -> None:
        self._exponent = words(seed, 8).tobytes()  # X25519 sets its first bit and clears its last three

    def hashed(self, texts: Sequence[str]) -> Array:
        """k·H(text) of each text, uint8 (texts, 32)."""
        return raise_points(self._exponent, hash_to_curve([text.encode() for text in texts], DOMAIN))

    def raised(self, points: Array) -> Array:
        """k·P of each point, uint8 (points, 32); ValueError if one is not a point, or one of small order."""
        return raise_points(self._exponent, points)


def permutation(seed: bytes, count: int) -> Array:
    """A secret permutation of 0 … count − 1, derived from the seed."""
    keys = words(seed, 4 * count).view("<u8").reshape(count, 2)  # 128 bits each, so no two are equal
    order: Array = np.lexsort(keys.T)
    return order
