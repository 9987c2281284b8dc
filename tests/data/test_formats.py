"""Files whose names do not tell their format: `format` does, for joint tables and for a member's own."""

import gzip

import numpy as np
import polars
import pytest

from colonnade.config.resolve import load_partition
from colonnade.config.schema import from_dict
from colonnade.data import RowSplit, load, read_party_share, read_server_share, split
from colonnade.data.alignment import read_id_column
from colonnade.deployment import party_side, server_side
from colonnade.protocol.errors import ConfigError, DataError

FRAME = polars.DataFrame({"nr": range(20), "age": [float(i % 7) for i in range(20)], "y": [i % 2 for i in range(20)]})
ROWS = {"by": RowSplit(0.2, 0, 0)}
LIBSVM = b"-1 1:0.5 3:2\n+1 2:1\n-1\n"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_libsvm_as_it_is_distributed(tmp_path, packed, sparse):
    """The file has the name of the source a9a, which has a test set: with a format the name is a path."""
    (tmp_path / "a9a").write_bytes(gzip.compress(LIBSVM) if packed else LIBSVM)
    dataset = load("a9a", format="libsvm", dir=tmp_path, sparse=sparse)
    x = dataset.x.toarray() if sparse else dataset.x
    assert x.tolist() == [[0.5, 0, 2], [0, 1, 0], [0, 0, 0]] and dataset.name == "a9a"
    with pytest.raises(ConfigError, match="data.source = 'news': unknown; .* any other file with data.format"):
        load("news", dir=tmp_path)
    (tmp_path / "news").write_bytes(LIBSVM)
    with pytest.raises(ConfigError, match="data.source = 'news': the file name .* one of csv, parquet, npz, libsvm"):
        load("news", dir=tmp_path)


def test_libsvm_is_not_scaled_unless_the_config_says_so(tmp_path):
    """One of 1,000 rows has a 1 in the last column: standardised it would be 31.6."""
    lines = [f"{i % 2} 1:{i % 5}{' 3:1' if i == 7 else ''}" for i in range(1000)]
    (tmp_path / "rare.svm").write_text("\n".join(lines) + "\n")
    data = {"data": {"source": "rare.svm", "dir": str(tmp_path), "parties": 1}}
    left, scaled = (
        load_partition(from_dict(data)),
        load_partition(from_dict({"data": data["data"] | {"scale": "standard"}})),
    )
    assert max(left.train[0][:, 2].max(), left.test[0][:, 2].max()) == 1.0
    assert max(scaled.train[0][:, 2].max(), scaled.test[0][:, 2].max()) != 1.0
    dense = split(load("rare.svm", dir=tmp_path), parties=1)
    assert not dense.scalers[0].fitted


def test_tables_and_arrays(tmp_path):
    text = FRAME.write_csv().encode()
    (tmp_path / "one").write_bytes(text)
    (tmp_path / "two").write_bytes(gzip.compress(text))
    FRAME.write_parquet(tmp_path / "three")
    for name, format in (("one", "csv"), ("two", "csv"), ("three", "parquet")):
        dataset = load(name, format=format, dir=tmp_path, label="y", id="nr")
        assert dataset.columns == ("age",) and dataset.y.tolist() == FRAME["y"].to_list()
    with (tmp_path / "four").open("wb") as file:
        np.savez(file, x=np.eye(4), y=np.arange(4) % 2)
    assert load("four", format="npz", dir=tmp_path).x.shape == (4, 4)
    with pytest.raises(DataError, match="one: is not a Parquet file, but its format was given as 'parquet'"):
        load("one", format="parquet", dir=tmp_path, label="y")
    with pytest.raises(DataError, match="three: is a Parquet file"):
        load("three", format="csv", dir=tmp_path, label="y")
    with pytest.raises(DataError, match="one: cannot be read as LIBSVM"):
        load("one", format="libsvm", dir=tmp_path)
    with pytest.raises(ConfigError, match="data.source = .*: a folder must hold IDX files"):
        load("one", format="idx", dir=tmp_path)


def test_unknown_formats_are_refused_with_the_list(tmp_path):
    with pytest.raises(
        ConfigError, match="data.format = 'svmlight': unknown; known here are csv, parquet, npz, libsvm, idx"
    ):
        load_partition(from_dict({"data": {"source": "a9a", "format": "svmlight"}}))
    with pytest.raises(ConfigError, match="party.format = 'libsvm': unknown; known here are csv, parquet, npz, npy"):
        read_party_share(tmp_path / "own", name="p", format="libsvm", **ROWS)
    with pytest.raises(ConfigError, match="server.format = 'npz': unknown.* known here are csv, parquet, npy"):
        read_server_share(tmp_path / "own", label="y", format="npz", **ROWS)


def test_a_members_own_file(tmp_path):
    (tmp_path / "own").write_text(FRAME.write_csv())
    with pytest.raises(
        ConfigError, match="party.data = .*own': must end in one of .*; or name its format: party.format"
    ):
        read_party_share(tmp_path / "own", name="p", id="nr", **ROWS)
    party = read_party_share(tmp_path / "own", name="p", id="nr", label="y", format="csv", **ROWS)
    server = read_server_share(tmp_path / "own", label="y", id="nr", format="csv", **ROWS)
    assert party.columns == ("age",) and party.ids_sha256 == server.ids_sha256
    own = {"data": str(tmp_path / "own"), "format": "csv", "id": "nr", "label": "y"}
    members = {"network": {"parties": ["p"]}, "server": own, "party": own, "train": {"seed": 0}}
    assert (
        party_side.load_share(from_dict(members), "p").ids_sha256
        == server_side.load_share(from_dict(members)).ids_sha256
    )
    assert read_id_column(tmp_path / "own", "nr", "party", format="csv").len() == 20
