"""Read IDX, the format of MNIST and similar sets (http://yann.lecun.com/exdb/mnist, "the IDX file format").

    bytes 0-1   zero
    byte  2     type of the elements (table below)
    byte  3     number of dimensions
    4 bytes each, big-endian: the dimensions; then the elements, row-major, big-endian

Written by hand: torchvision and keras would add a framework as a dependency for these forty lines.
"""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np

from colonnade.data.task import Array
from colonnade.protocol.errors import DataError

TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
GZIP_MAGIC = b"\x1f\x8b"

TRAIN, TEST = "train", "t10k"


def read_idx(path: Path) -> Array:
    """Return the array in an IDX file, gzipped or not."""
    content = _content(path)
    dtype, shape = _header(path, content)
    start = 4 + 4 * len(shape)
    expected = int(np.prod(shape, dtype=object)) * dtype.itemsize  # dtype object: a false header must not overflow
    if len(content) - start != expected:
        raise DataError(
            f"{path}: shape {shape} needs {expected} bytes after the header, there are {len(content) - start}"
        )
    array = np.frombuffer(content, dtype, offset=start).reshape(shape)
    return array.astype(dtype.newbyteorder("="), copy=False)


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        # By content, not by name: browsers unpack files and keep the .gz in the name.
        return gzip.decompress(content) if content[:2] == GZIP_MAGIC else content
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def _header(path: Path, content: bytes) -> tuple[np.dtype[np.generic], tuple[int, ...]]:
    if len(content) < 4 or content[:2] != b"\0\0":
        raise DataError(f"{path}: not an IDX file, it begins with {content[:4].hex(' ') or 'nothing'}")
    code, dimensions = content[2], content[3]
    if code not in TYPES:
        raise DataError(f"{path}: unknown IDX element type 0x{code:02x}")
    if dimensions == 0 or len(content) < 4 + 4 * dimensions:
        raise DataError(f"{path}: the IDX header is cut short or says {dimensions} dimensions")
    return np.dtype(TYPES[code]), struct.unpack_from(f">{dimensions}I", content, 4)


def has_pair(folder: Path, part: str) -> bool:
    """Whether the folder holds the images or the labels of a part ("train" or "t10k")."""
    return any(_find(folder, part, what) is not None for what in ("images-idx3", "labels-idx1"))


def read_pair(folder: Path, part: str) -> tuple[Array, Array]:
    """Return images (n, height, width) and labels (n,) of one part of the folder."""
    images_path, labels_path = _path(folder, part, "images-idx3"), _path(folder, part, "labels-idx1")
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.ndim != 3:
        raise DataError(f"{images_path}: images must be 3-D, not have shape {images.shape}")
    if labels.shape != images.shape[:1]:
        raise DataError(f"{labels_path}: {len(images)} images need as many labels, not shape {labels.shape}")
    return images, labels


def _path(folder: Path, part: str, what: str) -> Path:
    found = _find(folder, part, what)
    if found is None:
        raise DataError(f"{folder}: there is no {part}-{what}-ubyte there, with or without .gz")
    return found


def _find(folder: Path, part: str, what: str) -> Path | None:
    """Look for train-images-idx3-ubyte and similar names; some archives have a dot instead of the dash before idx."""
    stems = (f"{part}-{what}-ubyte", f"{part}-{what.replace('-idx', '.idx')}-ubyte")
    names = (folder / f"{stem}{suffix}" for stem in stems for suffix in ("", ".gz"))
    return next((name for name in names if name.is_file()), None)
