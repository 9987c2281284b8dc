"""Rows that stay in their file: the same numbers as from a table in memory, and only the needed rows are read."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from colonnade.config.schema import from_dict
from colonnade.data import (
    RowSplit,
    load,
    load_party_share,
    party_share,
    read_party_share,
    read_server_share,
    save_share,
    split,
)
from colonnade.data.mapped import LARGE
from colonnade.deployment.party_side import DIGESTED_ROWS, MOST_DIGESTED, features_digest
from colonnade.experiments.run import prepare
from colonnade.protocol import state
from colonnade.protocol.errors import CheckpointError, ConfigError, DataError

HOW = {"name": "lab", "by": RowSplit(0.25, 0, 3)}
ROWS = np.array([3, 0, 0, 17], np.int32)


def numbers(rows=200, columns=3, dtype=np.float32):
    return np.random.default_rng(0).normal(2, 5, (rows, columns)).astype(dtype)


def saved(folder, x, name="x.npy"):
    np.save(folder / name, x)
    return folder / name


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("scale", ["standard", "minmax", "none"])
def test_an_npy_gives_the_numbers_of_an_npz(tmp_path, scale, dtype):
    x = numbers(dtype=dtype)
    np.savez(tmp_path / "x.npz", x=x)
    read = read_party_share(tmp_path / "x.npz", scale=scale, columns=["x2", "x0"], **HOW)
    mapped = read_party_share(saved(tmp_path, x), scale=scale, columns=["x2", "x0"], **HOW)
    for one, other in ((read.train, mapped.train), (read.test, mapped.test)):
        assert (one.shape, one.dtype, len(one)) == (other.shape, other.dtype, len(other))
        for part in (slice(None), slice(5, 9), slice(0), ROWS):
            taken = other[part]
            assert taken.flags.writeable and taken.dtype == np.float32
            np.testing.assert_allclose(taken, one[part], rtol=3e-6, atol=1e-6)
        if scale != "standard":  # sums depend on their order
            assert np.asarray(other).tobytes() == one.tobytes()
    assert (mapped.columns, mapped.shape, mapped.ids_sha256) == (read.columns, read.shape, read.ids_sha256)


def test_labels_from_an_npy(tmp_path):
    y = np.random.default_rng(0).integers(0, 3, 200)
    found = read_server_share(saved(tmp_path, y, "y.npy"), label=None, by=RowSplit(0.25, 0, 3))
    assert found.task.classes == ("0", "1", "2") and found.rows == 200
    rows = read_party_share(saved(tmp_path, y[:, None].astype(np.float32)), scale="none", **HOW)
    assert np.asarray(rows.train)[:, 0].tolist() == found.y_train.tolist(), "in the same order"
    with pytest.raises(ConfigError, match="server.label = 'y': an .npy file has no ids and no column names"):
        read_server_share(tmp_path / "y.npy", label="y", by=RowSplit(0.25, 0, 3))
    with pytest.raises(DataError, match="y.npy: the label has only"):
        read_server_share(saved(tmp_path, y * 0, "y.npy"), label=None, by=RowSplit(0.25, 0, 3))


@pytest.mark.parametrize(
    ("x", "options", "error", "text"),
    [
        (numbers(dtype=np.float64), {}, DataError, "x.npy: .* must hold float32 or float16, not float64"),
        (
            np.asfortranarray(numbers()),
            {},
            DataError,
            "x.npy: .* column by column; apply np.ascontiguousarray and save it again",
        ),
        (numbers()[:, 0], {}, DataError, "x.npy: x must be 2-D"),
        (np.array([object()]), {}, DataError, "x.npy: cannot be read as .npy"),
        (
            numbers(),
            {"id": "patient"},
            ConfigError,
            "party.id = 'patient': an .npy file has no ids and no column names",
        ),
        (numbers(), {"label": "y"}, ConfigError, "party.label = 'y': an .npy file has no ids"),
        (numbers(), {"categorical": ["x1"]}, ConfigError, "party.categorical = '...': an .npy file has no ids"),
        (numbers(), {"missing": "mean"}, ConfigError, "party.missing = 'mean': fill in the missing values of an .npy"),
        (numbers(), {"columns": ["x7"]}, ConfigError, "has no column 'x7'"),
    ],
    ids=["doubles", "fortran", "vector", "objects", "id", "label", "categories", "missing", "column"],
)
def test_what_an_npy_cannot_be(tmp_path, x, options, error, text):
    np.save(tmp_path / "x.npy", x, allow_pickle=True)
    with pytest.raises(error, match=text):
        read_party_share(tmp_path / "x.npy", **HOW, **options)


def test_a_cut_off_npy_is_refused(tmp_path):
    path = saved(tmp_path, numbers())
    os.truncate(path, 500)
    with pytest.raises(DataError, match="x.npy: cannot be read as .npy"):
        read_party_share(path, **HOW)


def test_what_is_not_a_number_is_found_at_once_or_when_it_is_asked_for(tmp_path):
    """Fitting a scaling reads all rows. Without a scaling the loader reads nothing until a row is needed."""
    x = numbers()
    x[7, 1] = np.nan
    path = saved(tmp_path, x)
    with pytest.raises(DataError, match="x.npy: lab: 1 of its values NaN.* column 'x1', row 7"):
        read_party_share(path, scale="standard", **HOW)
    share = read_party_share(path, scale="none", **HOW)
    with pytest.raises(DataError, match="x.npy: row 7, column 'x1' .* is NaN or infinite"):
        np.asarray(share.train), np.asarray(share.test)


def resident(file: Path) -> int:
    """KiB of a mapped file that are in this process's memory."""
    with Path("/proc/self/smaps").open() as smaps:
        lines = iter(smaps)
        found = [next(rest for rest in lines if rest.startswith("Rss:")) for line in lines if str(file) in line]
    return sum(int(line.split()[1]) for line in found)


@pytest.mark.parametrize("kind", ["share", "npy"])
def test_only_what_is_asked_for_is_read(tmp_path, kind):
    x = np.zeros((LARGE // 8 + 1000, 4), np.float32)  # 128 MiB, sparse on disk
    if kind == "npy":
        made = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, x.shape)
        del made
        file = tmp_path / "x.npy"
        share = read_party_share(file, name="lab", scale="none", by=RowSplit(0.25, 0, 3, test_rows=1000))
    else:
        file = tmp_path / "lab.safetensors"
        whole = replace(
            party_share(split(load("digits"), parties=1), 0), train=x, test=x[:1000], shape=(4,), read_ids=None
        )
        save_share(whole, file)
        share = load_party_share(file)
    assert len(share.train) == len(x) - (1000 if kind == "npy" else 0)
    features_digest(share)
    for start in range(0, 20_000, 500):
        assert share.train[np.arange(start, start + 500) * 100].shape == (500, 4)
    assert resident(file) < file.stat().st_size / 1024 / 2


def test_a_large_table_with_other_numbers_has_another_digest(tmp_path):
    """The digest misses changes between the blocks that it reads."""
    share = party_share(split(load("digits"), parties=1), 0)
    x = np.zeros((2 * MOST_DIGESTED, 2), np.float32)
    first = features_digest(replace(share, train=x))
    for row, seen in ((0, True), (len(x) - 1, True), (DIGESTED_ROWS + 1, False)):
        other = x.copy()
        other[row] = 1
        assert (features_digest(replace(share, train=other)) != first) is seen
    assert features_digest(replace(share, train=x[:-1])) != first
    small = np.zeros((1000, 2), np.float32)
    before = features_digest(replace(share, train=small))
    small[517] = 1
    assert features_digest(replace(share, train=small)) != before, "a small table is read completely"


def test_ids_are_read_when_they_are_asked_for(tmp_path):
    data = split(load("digits"), parties=2)
    save_share(party_share(data, 1), tmp_path / "b.safetensors")
    share = load_party_share(tmp_path / "b.safetensors")
    assert share.ids.to_list() == data.ids.to_list()
    content = state.unpack((tmp_path / "b.safetensors").read_bytes())
    content["ids"] = content["ids"][:-9]
    (tmp_path / "b.safetensors").write_bytes(state.pack(content))
    again = load_party_share(tmp_path / "b.safetensors")  # training does not need them
    with pytest.raises(CheckpointError, match="b.safetensors: damaged: the ids are invalid"):
        assert again.ids is None


@pytest.mark.parametrize(
    ("method", "source"),
    [("vafl", "digits"), ("cascaded", "digits"), ("flex", "digits"), ("wait", "digits"), ("fedvs", "digits"),
     ("asysqn-sgd", "breast-cancer")],
)  # fmt: skip
def test_every_kind_of_party_trains_on_mapped_rows_as_on_arrays(tmp_path, method, source):
    scale = "minmax" if method == "fedvs" else None
    data = split(load(source), parties=3, scale=scale)
    shares = []
    for index in range(3):
        save_share(party_share(data, index), tmp_path / f"{index}.safetensors")
        shares.append(load_party_share(tmp_path / f"{index}.safetensors"))
    mapped = replace(data, train=tuple(s.train for s in shares), test=tuple(s.test for s in shares))
    model = {"embedding": 4} | ({"party": "polynomial:2"} if method == "fedvs" else {"party": "linear"})
    aggregate = {"aggregate": "mean"} if method in ("fedvs", "wait") else {}
    tables = {"protocol": {"name": method}, "model": model | aggregate, "train": {"updates": 6, "learning_rate": 0.03}}
    if method == "asysqn-sgd":
        del tables["model"]
    one, other = (prepare(from_dict(tables), part).execute() for part in (data, mapped))
    for key in ("trace_sha256", "weights_sha256", "value"):
        assert one[key] == other[key]
