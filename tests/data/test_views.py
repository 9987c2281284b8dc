"""Views: several descriptions of the same rows, one for each party."""

import gzip
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from colonnade.data import load
from colonnade.data import split as split_rows_and_columns
from colonnade.data.mfeat import VIEWS
from colonnade.protocol.errors import ConfigError, DataError

split = partial(split_rows_and_columns, validation_fraction=0)

SHARED = Path(__file__).parents[2] / ".." / "shared" / "data"
BANK, SHOP, Y = np.arange(12.0).reshape(4, 3), np.arange(4.0)[:, None], np.array([0, 1, 0, 1])


def write_mfeat(folder, rows=20):
    for place, view in enumerate(VIEWS):
        lines = "".join(f"  {row}.5 " + f" {place}" * place + "\n" for row in range(rows))
        (folder / f"mfeat-{view}.gz").write_bytes(gzip.compress(lines.encode()))


def test_npz_views(tmp_path):
    np.savez(tmp_path / "a.npz", x_bank=BANK, x_shop=SHOP, y=Y)
    dataset = load("a.npz", dir=tmp_path)
    assert dataset.columns == ("bank_0", "bank_1", "bank_2", "shop_0")
    partition = split(dataset, how="views", scale="none")
    assert (partition.parties, partition.shapes) == (("bank", "shop"), ((3,), (1,)))
    np.testing.assert_array_equal(partition.train[0][:, 0], 3 * partition.train[1][:, 0])
    assert [block.shape for block in split(dataset, parties=2).train] == [(3, 2), (3, 2)]


def test_npz_views_with_a_test_set(tmp_path):
    test = {"x_shop_test": SHOP[:1] + 9, "x_bank_test": BANK[:1], "y_test": [1]}
    np.savez(tmp_path / "a.npz", x_bank=BANK, x_shop=SHOP, y=Y, **test)
    partition = split(load("a.npz", dir=tmp_path), how="views", scale="none")
    assert [block.tolist() for block in partition.test] == [[[0, 1, 2]], [[9]]]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x_bank": BANK, "x": BANK, "y": Y}, "an array 'x' and an array 'x_bank'"),
        ({"x_bank": BANK, "x_shop": SHOP}, "no array 'y'"),
        ({"x_bank": BANK, "x_shop": SHOP[:3], "y": Y}, "shop has 3 rows, but there are 4 labels"),
        ({"x_bank": BANK, "x_shop": SHOP, "y": Y, "x_shop_test": SHOP, "y_test": Y}, "like x_bank_test"),
        ({"x_bank": BANK, "y": Y, "y_test": Y}, "like x_bank_test"),
        ({"x_bank": BANK, "y": Y, "x_bank_test": BANK, "y_test": Y[:2]}, "test rows of bank have shape"),
        ({"x_bank": BANK[0], "y": Y}, "bank: x must be 2-D"),
    ],
)
def test_npz_views_that_do_not_fit(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load("a.npz", dir=tmp_path)


def test_a_source_without_views_has_no_split_by_views(tmp_path):
    with pytest.raises(ConfigError, match=r"data.split = 'views': wine has no views .*use \"even\""):
        split(load("wine"), how="views")
    np.savez(tmp_path / "a.npz", x_bank=BANK, x_shop=SHOP, y=Y)
    with pytest.raises(ConfigError, match=r"data.parties = 3: a has 2 views \(bank, shop\)"):
        split(load("a.npz", dir=tmp_path), parties=3, how="views")
    np.savez(tmp_path / "b.npz", **{"x_big bank": BANK, "y": Y})
    with pytest.raises(ConfigError, match="data.split = 'big bank': a party's name"):
        split(load("b.npz", dir=tmp_path), how="views")


def test_mfeat(tmp_path):
    write_mfeat(tmp_path)
    dataset = load("mfeat", dir=tmp_path)
    assert dataset.y.tolist() == [digit for digit in range(10) for _ in range(2)]
    partition = split(dataset, how="views", scale="none")
    assert partition.parties == VIEWS
    assert [block.shape[1] for block in partition.train] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"1 2\n3\n", mtime=0), "mfeat-kar.gz: .*columns changed from 2 to 1 at row 2"),
        (gzip.compress(b"1 2\n3 x\n", mtime=0), "mfeat-kar.gz: cannot be read as numbers"),
        (b"1 2\n", "mfeat-kar.gz: .*[Nn]ot a gzipped file"),
        (gzip.compress(b"", mtime=0), "mfeat-kar.gz: there are no rows"),
        (gzip.compress(b"1 2\n3 4\n", mtime=0), "mfeat-kar.gz: 2 rows, not the same number for each digit"),
    ],
)
def test_refused_mfeat(tmp_path, content, message):
    write_mfeat(tmp_path)
    (tmp_path / "mfeat-kar.gz").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load("mfeat", dir=tmp_path)


@pytest.mark.skipif(not (SHARED / "mfeat").is_dir(), reason="real mfeat is not at ../shared/data/mfeat")
def test_real_mfeat():
    partition = split(load("mfeat", dir=SHARED), how="views")
    assert partition.shapes == ((76,), (216,), (64,), (240,), (47,), (6,))
    assert (len(partition.y_train), len(partition.y_test)) == (1600, 400)
