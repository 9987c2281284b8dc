"""Sources: embedded sets, image folders, and real MNIST if its files are here."""

import gzip
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from colonnade.data import load
from colonnade.data import split as split_rows_and_columns
from colonnade.protocol.errors import ConfigError, DataError

split = partial(split_rows_and_columns, validation_fraction=0)

SHARED = Path(__file__).parents[2] / ".." / "shared" / "data"
FOUR = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def write_idx(path, array):
    shape = b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    content = bytes([0, 0, 0x08, array.ndim]) + shape + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_images(folder, *, train=6, test=2, suffix="-ubyte", side=(4, 2)):
    folder.mkdir(exist_ok=True, parents=True)
    for part, count in (("train", train), ("t10k", test)):
        pixels = np.arange(count * side[0] * side[1]).reshape(count, *side)
        write_idx(folder / f"{part}-images-idx3{suffix}", pixels)
        write_idx(folder / f"{part}-labels-idx1{suffix}", np.arange(count) % 3)
    return folder


@pytest.mark.parametrize(
    ("source", "shape", "kind", "outputs"),
    [
        ("digits", (1797, 64), "multiclass", 10),
        ("digits-parity", (1797, 64), "binary", 1),
        ("breast-cancer", (569, 30), "binary", 1),
        ("wine", (178, 13), "multiclass", 3),
        ("diabetes", (442, 10), "regression", 1),
    ],
)
def test_embedded(source, shape, kind, outputs):
    dataset = load(source)
    assert (dataset.name, dataset.x.shape, dataset.test_rows) == (source, shape, 0)
    assert (dataset.task.kind, dataset.task.outputs) == (kind, outputs)
    assert len(split(dataset).parties) == 4


def test_digits_are_images_of_bytes():
    digits = load("digits")
    assert (digits.x.dtype, digits.image, digits.scale) == (np.uint8, (8, 8), "none")
    assert digits.x.max() * digits.factor == 1.0
    assert digits.columns[63] == "pixel63"


def test_embedded_names():
    cancer = load("breast-cancer")
    assert cancer.task.classes == ("malignant", "benign")
    assert cancer.columns[0] == "mean radius"
    assert load("diabetes").y.dtype == np.float32


@pytest.mark.parametrize("suffix", ["-ubyte", "-ubyte.gz"])
@pytest.mark.parametrize("inside", ["", "mnist"])
def test_mnist_from_a_folder_or_its_subfolder(tmp_path, suffix, inside):
    write_images(tmp_path / inside, suffix=suffix)
    dataset = load("mnist", dir=tmp_path)
    assert (dataset.x.shape, dataset.x.dtype, dataset.test_rows) == ((8, 8), np.uint8, 2)
    assert (dataset.image, dataset.factor) == ((4, 2), 1 / 255)
    assert dataset.task.classes == tuple("0123456789")  # all ten, though only three occur
    assert dataset.y.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]


def test_a_folder_of_idx_files(tmp_path):
    folder = write_images(tmp_path / "letters")
    dataset = load(str(folder))
    assert (dataset.name, dataset.test_rows, dataset.task.classes) == ("letters", 2, ("0", "1", "2"))
    assert load("letters", dir=tmp_path).x.shape == (8, 8)


def test_a_folder_may_lack_the_test_pair_but_not_half_of_it(tmp_path):
    folder = write_images(tmp_path)
    (folder / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(DataError, match="no t10k-images-idx3-ubyte"):
        load(str(folder))
    (folder / "t10k-labels-idx1-ubyte").unlink()
    assert load(str(folder)).test_rows == 0
    with pytest.raises(DataError, match="no t10k-images-idx3-ubyte"):
        load("mnist", dir=folder)


def test_names_with_a_dot(tmp_path):
    for name in FOUR:
        write_images(tmp_path)
        (tmp_path / f"{name}-ubyte").rename(tmp_path / f"{name.replace('-idx', '.idx')}-ubyte")
    assert load("fashion-mnist", dir=tmp_path).task.classes[9] == "Ankle boot"


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("train-images-idx3", np.zeros((6, 8)), r"train-images-idx3-ubyte: images must be 3-D"),
        ("train-labels-idx1", np.zeros(5), r"train-labels-idx1-ubyte: 6 images need as many labels"),
        ("train-labels-idx1", np.full(6, 10), "labels of mnist are bytes from 0 to 9"),
        (
            "t10k-images-idx3",
            np.zeros((2, 4, 3)),
            r"to train on have shape \(6, 4, 2\), to test on \(2, 4, 3\)",
        ),
    ],
)
def test_image_files_that_do_not_fit(tmp_path, name, array, message):
    write_images(tmp_path)
    write_idx(tmp_path / f"{name}-ubyte", array)
    with pytest.raises(DataError, match=message):
        load("mnist", dir=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "key", "message"),
    [
        ({"source": "digitz"}, "data.source", "did you mean 'digits'.*fashion-mnist"),
        ({"source": "quite-another"}, "data.source", "unknown; known are digits"),
        ({"source": "absent.csv", "label": "y"}, "data.source", "there is no file absent.csv"),
        ({"source": "absent.npz", "dir": "folder"}, "data.source", "there is no file folder/absent.npz"),
        ({"source": "mnist"}, "data.dir", "name the folder with the four IDX files of mnist"),
        ({"source": "mnist", "dir": "nowhere"}, "data.dir", "in its subfolder mnist"),
        ({"source": "digits", "label": "y"}, "data.label", "only CSV and Parquet"),
    ],
)
def test_refused(arguments, key, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message) as caught:
        load(**arguments)
    assert caught.value.key == key


def test_a_folder_without_idx_files(tmp_path):
    with pytest.raises(ConfigError, match="a folder must hold IDX files"):
        load(str(tmp_path))


@pytest.mark.skipif(not (SHARED / "mnist").is_dir(), reason="real MNIST is not at ../shared/data/mnist")
def test_real_mnist():
    dataset = load("mnist", dir=SHARED)
    assert (dataset.x.shape, dataset.test_rows, dataset.image) == ((70_000, 784), 10_000, (28, 28))
    assert dataset.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert dataset.y[-10_000:-9_995].tolist() == [7, 2, 1, 0, 4]
    assert dataset.x[:60_000].mean() * dataset.factor == pytest.approx(0.1307, abs=1e-4)  # as torchvision says
    partition = split(dataset, how="quarters")
    assert [block.shape for block in partition.test] == [(10_000, 196)] * 4
    assert max(block.max() for block in partition.train) == 1.0
