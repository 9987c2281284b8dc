"""Image sets from folders of IDX files, as tables with a column per pixel."""

from pathlib import Path

import numpy as np

from colonnade.data import idx
from colonnade.data.dataset import Dataset
from colonnade.data.task import Array, Task, classification, read_labels
from colonnade.protocol.errors import ConfigError, DataError

NAMED = {
    "mnist": tuple("0123456789"),
    "fashion-mnist": (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
        "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ),
}  # fmt: skip

COLOURS = ("red", "green", "blue")

Pair = tuple[Array, Array]  # images (n, height, width), labels (n,)


def named_images(source: str, dir: str | Path | None) -> Dataset:
    """Read MNIST or Fashion-MNIST, with its own test set and class names."""
    if dir is None:
        raise ConfigError("data.dir", None, f"name the folder with the four IDX files of {source}")
    folders = [Path(dir).expanduser() / source, Path(dir).expanduser()]
    folder = next((folder for folder in folders if idx.has_pair(folder, idx.TRAIN)), None)
    if folder is None:
        advice = f"there is no train-images-idx3-ubyte (.gz) in this folder or in its subfolder {source}"
        raise ConfigError("data.dir", str(dir), advice)
    train, test = idx.read_pair(folder, idx.TRAIN), idx.read_pair(folder, idx.TEST)
    classes = NAMED[source]
    for _, labels in (train, test):
        if labels.dtype != np.uint8 or labels.max(initial=0) >= len(classes):
            raise DataError(f"{folder}: labels of {source} are bytes from 0 to {len(classes) - 1}")
    return _stacked(source, folder, train, test, classification(classes))


def image_folder(folder: Path) -> Dataset:
    """Read a folder of IDX files without a known name; the test pair may be absent."""
    if not idx.has_pair(folder, idx.TRAIN):
        advice = "a folder must hold IDX files (train-images-idx3-ubyte, train-labels-idx1-ubyte)"
        raise ConfigError("data.source", str(folder), advice)
    train = idx.read_pair(folder, idx.TRAIN)
    if not idx.has_pair(folder, idx.TEST):
        return image_dataset(folder.resolve().name, *train)
    return _stacked(folder.resolve().name, folder, train, idx.read_pair(folder, idx.TEST), None)


def _stacked(name: str, folder: Path, train: Pair, test: Pair, task: Task | None) -> Dataset:
    if train[0].shape[1:] != test[0].shape[1:]:
        raise DataError(f"{folder}: images to train on have shape {train[0].shape}, to test on {test[0].shape}")
    images, labels = np.concatenate([train[0], test[0]]), np.concatenate([train[1], test[1]])
    return image_dataset(name, images, labels, task=task, test_rows=len(test[0]))


def image_dataset(
    name: str,
    images: Array,
    labels: Array,
    *,
    factor: float | None = None,
    task: Task | None = None,
    test_rows: int = 0,
) -> Dataset:
    """Make a table of images (n, height, width), or (n, 3, height, width) in colour; bytes stay bytes, times 1/255."""
    *colours, height, width = images.shape[1:]
    y, task = read_labels(labels) if task is None else (labels.astype(np.int64), task)
    if factor is None:
        factor = 1 / 255 if images.dtype == np.uint8 else 1.0
    return Dataset(
        name,
        images.reshape(len(images), -1),
        y,
        task,
        columns=tuple(f"{plane}{i}" for plane in (COLOURS if colours else ("pixel",)) for i in range(height * width)),
        test_rows=test_rows,
        factor=factor,
        image=(height, width),
        scale="none",
        channels=len(COLOURS) if colours else 1,
    )
