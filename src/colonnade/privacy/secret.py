"""Secret draws: a key that is never saved, and streams of numbers that cannot be predicted without the key.

`Started` or `Resumed` gives a role its entropy: from the operating system on real drivers, from the seed in the
simulator. `seed` names one draw, and the numbers depend on the seed alone. A job may therefore draw numbers and return
the seed in its result; a later user of the numbers makes them again from the seed.
"""

import hashlib

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from colonnade.protocol.errors import LocalProtocolError
from colonnade.protocol.messages import Array

__all__ = ["SecretKey", "normal", "sphere", "uniform", "words"]


class SecretKey:
    """A role's own key; not part of its state."""

    def __init__(self) -> None:
        self._key = b""

    def renew(self, entropy: bytes) -> None:
        """Replace the key; later seeds derive from the new one."""
        self._key = hashlib.blake2b(entropy, digest_size=32, person=b"colonnade-key").digest()

    def seed(self, *path: str | int) -> bytes:
        """32 bytes for the draw that `path` names; never use a path twice."""
        if not self._key:
            raise LocalProtocolError("a secret was requested before Started or Resumed delivered the entropy")
        text = "/".join(map(str, path)).encode()
        return hashlib.blake2b(text, digest_size=32, key=self._key).digest()


def words(seed: bytes, count: int) -> Array:
    """Uniform 32-bit words: the ChaCha20 key stream of the seed."""
    stream = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(4 * count))
    return np.frombuffer(stream, "<u4")


def uniform(seed: bytes, count: int) -> Array:
    """Independent integers (uint64), uniform from 0 to 2⁶⁴ − 1."""
    return words(seed, 2 * count).view("<u8").astype(np.uint64, copy=False)


def normal(seed: bytes, count: int) -> Array:
    """Independent standard normals (float32), by Box and Muller.

    Works in float32 and in place: numpy's float64 cosines alone would take longer than a forward pass.
    """
    pairs = (count + 1) // 2
    uniform = words(seed, 2 * pairs).astype(np.float32)
    uniform += np.float32(0.5)  # never 0
    uniform *= np.float32(2.0**-32)
    radius, angle = uniform[:pairs], uniform[pairs:]
    np.sqrt(np.log(radius, out=radius) * np.float32(-2.0), out=radius)
    angle *= np.float32(2.0 * np.pi)
    both: Array = np.empty(2 * pairs, np.float32)
    np.multiply(radius, np.cos(angle), out=both[:pairs])
    np.multiply(radius, np.sin(angle), out=both[pairs:])
    return both[:count]


def sphere(seed: bytes, count: int) -> Array:
    """A point drawn uniformly from the unit sphere."""
    direction = normal(seed, count)
    direction *= np.float32(1.0 / np.sqrt(np.sum(np.square(direction), dtype=np.float64)))
    return direction
