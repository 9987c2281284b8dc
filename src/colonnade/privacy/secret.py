"""Secret draws: a key that is never saved, and streams of numbers from it that nobody without it can tell.

A role is given its entropy by `Started` or `Resumed`: from the operating system on real drivers, from the seed in
the simulator. `seed` names one draw; what is made from a seed depends on it alone, so a job may draw, hand back
the seed in its result, and whoever needs the numbers again makes them again.
"""

import hashlib

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from colonnade.protocol.errors import LocalProtocolError
from colonnade.protocol.messages import Array

__all__ = ["SecretKey", "normal", "sphere"]


class SecretKey:
    """A role's own key; not part of its state."""

    def __init__(self) -> None:
        self._key = b""

    def renew(self, entropy: bytes) -> None:
        """From now on this key."""
        self._key = hashlib.blake2b(entropy, digest_size=32, person=b"colonnade-key").digest()

    def seed(self, *path: str | int) -> bytes:
        """32 bytes for the draw that `path` names; no path may be used twice."""
        if not self._key:
            raise LocalProtocolError("a secret was asked for before Started or Resumed brought the entropy")
        text = "/".join(map(str, path)).encode()
        return hashlib.blake2b(text, digest_size=32, key=self._key).digest()


def _words(seed: bytes, count: int) -> Array:
    """So many uniform 32-bit words: the ChaCha20 key stream of the seed."""
    stream = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(4 * count))
    return np.frombuffer(stream, "<u4")


def normal(seed: bytes, count: int) -> Array:
    """Independent standard normals (float32), by Box and Muller."""
    pairs = (count + 1) // 2
    uniform = (_words(seed, 2 * pairs) + 0.5) / 2.0**32  # never 0 or 1
    radius, angle = np.sqrt(-2.0 * np.log(uniform[:pairs])), 2.0 * np.pi * uniform[pairs:]
    both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return both[:count].astype(np.float32)


def sphere(seed: bytes, count: int) -> Array:
    """A point drawn uniformly from the unit sphere."""
    direction = normal(seed, count).astype(np.float64)
    return (direction / np.linalg.norm(direction)).astype(np.float32)
