"""`data.split_seed` chooses the test rows; `train.seed` does not."""

import numpy as np
import pytest
import tomli_w

from colonnade.config.resolve import load_partition
from colonnade.config.schema import apply_overrides, from_dict, read_toml
from colonnade.deployment import party_side, server_side
from colonnade.deployment.terms import shared_digest, shared_part
from colonnade.experiments.compare import compare
from colonnade.experiments.run import prepare
from colonnade.protocol.errors import CheckpointError, ConfigError
from colonnade.results.folder import RunFolder, tables_of

SMALL = {
    "data": {"source": "wine", "parties": 2},
    "model": {"party": "linear", "embedding": 2},
    "train": {"updates": 4, "batch_size": 16},
}


def config(seed=0, split_seed=0):
    return from_dict(apply_overrides(SMALL, {"train.seed": seed, "data.split_seed": split_seed}))


def test_two_seeds_have_the_same_test_rows_and_other_weights(tmp_path):
    entries = compare(SMALL, ["vafl"], 2, tmp_path / "race")
    assert [entry.config.train.seed for entry in entries] == [0, 1]
    assert entries[0].summary["weights_sha256"] != entries[1].summary["weights_sha256"]
    first, second = (load_partition(entry.config) for entry in entries)
    assert first.ids.to_list() == second.ids.to_list()
    assert all(np.array_equal(one, other) for one, other in zip(first.test, second.test, strict=True))


def test_two_split_seeds_have_other_test_rows():
    first, second = (load_partition(config(split_seed=seed)) for seed in (0, 1))
    tested = [set(data.ids.to_list()[-len(data.y_test) :]) for data in (first, second)]
    assert tested[0] != tested[1] and len(tested[0]) == len(tested[1])


def test_it_is_written_into_the_run_and_refused_if_impossible(tmp_path):
    prepare(config(split_seed=3), out=tmp_path / "run")
    assert read_toml(tmp_path / "run" / "config.toml")["data"]["split_seed"] == 3
    with pytest.raises(ConfigError, match=r"data\.split_seed = -1: must be a whole number from 0"):
        prepare(config(split_seed=-1))


def test_members_with_files_of_their_own_split_alike(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bank.csv").write_text("nr,age,y\n" + "".join(f"{row},{row % 13},{row % 2}\n" for row in range(40)))
    tables = {
        "party": {"data": "bank.csv", "id": "nr", "columns": ["age"], "scale": "none"},
        "server": {"data": "bank.csv", "id": "nr", "label": "y"},
        "network": {"parties": ["bank"]},
    }

    def rows(**seeds):
        own = from_dict(apply_overrides(tables, {key.replace("__", "."): value for key, value in seeds.items()}))
        return party_side.load_share(own, "bank").test.ravel().tolist(), server_side.load_share(own).y_test.tolist()

    assert rows() == rows(train__seed=1)
    assert rows(data__split_seed=1)[0] != rows()[0]
    ages = [float(row % 13) for row in range(40)]
    assert all(age in ages for age in rows()[0])


def test_the_handshake_compares_it():
    digests = [shared_digest(shared_part(config(split_seed=seed), "ab")) for seed in (0, 0, 1)]
    assert digests[0] == digests[1] != digests[2]


def test_a_run_of_a_release_without_the_key_was_split_by_its_seed(tmp_path):
    """A run cannot continue, or be part of a race, on other rows without an error."""
    RunFolder.create(tmp_path / "run", config(seed=3, split_seed=3))
    path = tmp_path / "run" / "config.toml"
    tables = read_toml(path)
    del tables["data"]["split_seed"]
    path.write_text(tomli_w.dumps(tables))
    assert tables_of(tmp_path / "run")["data"]["split_seed"] == 3
    RunFolder.reopen(tmp_path / "run", config(seed=3, split_seed=3))
    with pytest.raises(CheckpointError, match=r"data\.split_seed: 3 there, 0 here"):
        RunFolder.reopen(tmp_path / "run", config(seed=3))
