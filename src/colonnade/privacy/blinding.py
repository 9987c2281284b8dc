"""Points of an elliptic curve that stand for ids, raised to secret exponents: k_b·(k_a·H(id)) = k_a·(k_b·H(id)).

The curve is P-256 (NIST), and H hashes a text to a point of it. `openmined-psi` implements both, on BoringSSL: its
client hashes and raises, its server raises the points it is given. The library offers a protocol for two members. The
same two steps, done by every member in turn, work for any number of members. Without an exponent, telling a raised
point from a random one is as hard as the decisional Diffie–Hellman problem.
"""

from collections.abc import Sequence

import numpy as np
import private_set_intersection.python as psi

from colonnade.privacy.secret import words
from colonnade.protocol.messages import Array

__all__ = ["POINT_BYTES", "Blinder", "permutation"]

POINT_BYTES = 33  # compressed: the sign of y, then x
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of the group of points


class Blinder:
    """One secret exponent, derived from a seed of 32 bytes."""

    def __init__(self, seed: bytes) -> None:
        key = _exponent(seed).to_bytes(32, "big")
        self._hashing = psi.client.CreateFromKey(key, True)  # True: keep the order of the points
        self._raising = psi.server.CreateFromKey(key, True)

    def hashed(self, texts: Sequence[str]) -> Array:
        """k·H(text) of each text, uint8 (texts, 33)."""
        return _array(self._hashing.CreateRequest(list(texts)).encrypted_elements)

    def raised(self, points: Array) -> Array:
        """k·P of each point, uint8 (points, 33); ValueError if one is not a point of the curve."""
        request = psi.Request(reveal_intersection=True)
        content = points.tobytes()
        request.encrypted_elements.extend(
            content[start : start + POINT_BYTES] for start in range(0, len(content), POINT_BYTES)
        )
        try:
            return _array(self._raising.ProcessRequest(request).encrypted_elements)
        except RuntimeError as error:  # raised by the library
            raise ValueError(str(error).partition("\n")[0]) from None


def _exponent(seed: bytes) -> int:
    """An exponent from 1 to the order − 1; 384 random bits make it uniform up to a negligible bias."""
    return int.from_bytes(words(seed, 12).tobytes(), "little") % (ORDER - 1) + 1


def _array(points: Sequence[bytes]) -> Array:
    return np.frombuffer(b"".join(points), np.uint8).reshape(-1, POINT_BYTES)


def permutation(seed: bytes, count: int) -> Array:
    """A secret permutation of 0 … count − 1, derived from the seed."""
    keys = words(seed, 4 * count).view("<u8").reshape(count, 2)  # 128 bits each, so no two are equal
    order: Array = np.lexsort(keys.T)
    return order
