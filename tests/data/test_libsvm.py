"""LIBSVM text, dense."""

import gzip
from pathlib import Path

import pytest

from colonnade.data import load, split
from colonnade.protocol.errors import ConfigError, DataError

SHARED = Path(__file__).parents[2] / ".." / "shared" / "data"
TEXT = "-1 1:0.5 3:2\n+1 2:1 # a comment\n-1\n"


@pytest.mark.parametrize("name", ["t.libsvm", "t.svm", "t.svm.gz", "t.libsvm.gz"])
def test_libsvm(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(TEXT.encode()) if name.endswith(".gz") else TEXT.encode())
    dataset = load(name, dir=tmp_path)
    assert (dataset.name, dataset.columns, dataset.task.classes) == ("t", ("f1", "f2", "f3"), ("-1", "1"))
    assert dataset.x.tolist() == [[0.5, 0, 2], [0, 1, 0], [0, 0, 0]]
    assert dataset.x.dtype == "float32"
    assert dataset.y.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a,b,c\n1,2,3\n", "t.svm: cannot be read as LIBSVM"),
        (b"1 0:1\n0 1:1\n", "t.svm: cannot be read as LIBSVM"),
        (b"\xff\xfe1\0", "t.svm: cannot be read as LIBSVM"),
        (b"1\n0\n", "no index:value"),
        (b"1 9999999:1\n" * 1000 + b"0 1:1\n", "GiB when dense"),
        (b"1 1:1\n1 1:2\n", "needs two or more classes"),
        (b"1 1:1\n2 1:nan\n1 1:3\n", None),
    ],
)
def test_refused_libsvm(tmp_path, text, message):
    (tmp_path / "t.svm").write_bytes(text)
    if message is None:  # read, but no party may hold it
        with pytest.raises(DataError, match="party-1: 1 of its values NaN.*'f1', row 1"):
            split(load("t.svm", dir=tmp_path), parties=1)
        return
    with pytest.raises(DataError, match=message):
        load("t.svm", dir=tmp_path)


def test_a9a_from_a_folder(tmp_path):
    with pytest.raises(ConfigError, match=r"data.dir = None: name the folder with the files of a9a \(a9a.gz"):
        load("a9a")
    with pytest.raises(ConfigError, match="there is no a9a.gz in this folder or in its subfolder a9a"):
        load("a9a", dir=tmp_path)
    (tmp_path / "a9a.gz").write_bytes(gzip.compress(TEXT.encode()))
    with pytest.raises(ConfigError, match="no a9a.t.gz"):
        load("a9a", dir=tmp_path)
    (tmp_path / "a9a.t.gz").write_bytes(gzip.compress(b"1 2:7\n"))  # narrower than the training rows
    dataset = load("a9a", dir=tmp_path)
    assert (dataset.test_rows, dataset.x[3].tolist(), dataset.scale) == (1, [0, 7, 0], "none")


@pytest.mark.skipif(not (SHARED / "a9a").is_dir(), reason="real a9a is not at ../shared/data/a9a")
def test_real_a9a():
    dataset = load("a9a", dir=SHARED)
    assert (dataset.x.shape, dataset.test_rows) == ((32_561 + 16_281, 123), 16_281)
    assert dataset.y.mean() == pytest.approx(0.2393, abs=1e-4)
    assert dataset.x[0].nonzero()[0].tolist()[:4] == [2, 10, 13, 18]  # 3:1 11:1 14:1 19:1
