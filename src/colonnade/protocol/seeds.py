"""Many independent streams from one seed: each is named by a path and does not depend on the order of creation."""

import hashlib

import numpy as np

__all__ = ["derive", "generator"]


def derive(seed: int, *path: str | int) -> int:
    """A 63-bit seed for the stream that `path` names."""
    text = "/".join([str(seed), *map(str, path)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *path: str | int) -> np.random.Generator:
    """A numpy generator for the stream that `path` names."""
    return np.random.Generator(np.random.PCG64(derive(seed, *path)))
