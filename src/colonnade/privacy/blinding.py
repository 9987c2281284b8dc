"""Points of an elliptic curve that stand for ids, raised to secret exponents: k_b·(k_a·H(id)) = k_a·(k_b·H(id)).

The curve is P-256 (NIST), H hashes a text to a point of it, and both are those of `openmined-psi` (BoringSSL below it):
its client hashes and raises, its server raises what it is given. The library offers that as a protocol of two; the
same two steps, done by every member in turn, serve any number of them. Who knows neither exponent can tell a raised
point from a random one as little as he can decide Diffie–Hellman triples.
"""

from collections.abc import Sequence

import numpy as np
import private_set_intersection.python as psi

from colonnade.privacy.secret import words
from colonnade.protocol.messages import Array

__all__ = ["POINT_BYTES", "Blinder", "permutation"]

POINT_BYTES = 33  # compressed: the sign of y, then x
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of the group


class Blinder:
    """One secret exponent, made from a seed of 32 bytes."""

    def __init__(self, seed: bytes) -> None:
        key = _exponent(seed).to_bytes(32, "big")
        self._hashing = psi.client.CreateFromKey(key, True)  # True: the order is kept
        self._raising = psi.server.CreateFromKey(key, True)

    def hashed(self, texts: Sequence[str]) -> Array:
        """k·H(text) of each, (texts, 33)."""
        return _array(self._hashing.CreateRequest(list(texts)).encrypted_elements)

    def raised(self, points: Array) -> Array:
        """k·P of each; ValueError if one is no point of the curve."""
        request = psi.Request(reveal_intersection=True)
        content = points.tobytes()
        request.encrypted_elements.extend(
            content[start : start + POINT_BYTES] for start in range(0, len(content), POINT_BYTES)
        )
        try:
            return _array(self._raising.ProcessRequest(request).encrypted_elements)
        except RuntimeError as error:  # the library's
            raise ValueError(str(error).partition("\n")[0]) from None


def _exponent(seed: bytes) -> int:
    """Uniform from 1 to the order − 1: 384 bits leave no bias that could be seen."""
    return int.from_bytes(words(seed, 12).tobytes(), "little") % (ORDER - 1) + 1


def _array(points: Sequence[bytes]) -> Array:
    return np.frombuffer(b"".join(points), np.uint8).reshape(-1, POINT_BYTES)


def permutation(seed: bytes, count: int) -> Array:
    """A secret order: place i goes to place permutation[i]."""
    keys = words(seed, 4 * count).view("<u8").reshape(count, 2)  # 128 bits each: no two alike
    order: Array = np.lexsort(keys.T)
    return order
