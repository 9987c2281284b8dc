"""examples/three_folders.py on a small table of the same shape: what each member has, and configs that match."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars
import pytest

from colonnade.config.schema import from_dict, read_toml
from colonnade.data import read_party_share, read_server_share

SCRIPT = Path(__file__).parents[1] / "examples" / "three_folders.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("three_folders", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def made(script, tmp_path):
    columns = [column for held in script.PARTIES.values() for column in held]
    generator = np.random.default_rng(0)
    frame = polars.DataFrame({"ID": np.arange(1, 101)} | {name: generator.integers(1, 4, 100) for name in columns})
    frame = frame.with_columns(polars.Series("default.payment.next.month", np.arange(100) % 2))
    frame.write_csv(tmp_path / "UCI_Credit_Card.csv.gz", compression="gzip")

    def make(**more):
        script.main(tmp_path / "folders", script.read(tmp_path), new=20, **more)
        return tmp_path / "folders"

    return make


def clients(folder, name, file):
    return polars.read_csv(folder / name / file)["client"].to_list()


def test_the_folders_differ_unless_they_are_aligned(script, made):
    folder = made(aligned=False)
    held = {name: clients(folder, name, f"{name}.csv") for name in script.PARTIES}
    assert [len(ids) for ids in held.values()] == [80, 72, 72]
    assert set(held["shop"]) != set(held["insurer"]) and set(held["shop"]) < set(held["bank"])
    folder = made(aligned=True)
    assert len({tuple(clients(folder, name, f"{name}.csv")) for name in script.PARTIES}) == 1
    assert [len(clients(folder, name, "new.csv")) for name in script.PARTIES] == [20, 16, 16]
    assert not set(clients(folder, "bank", "new.csv")) & set(clients(folder, "bank", "bank.csv"))


def test_the_label_is_at_the_bank_alone_and_is_no_feature(script, made):
    folder = made(aligned=True)
    for name in script.PARTIES:
        assert (script.LABEL in polars.read_csv(folder / name / f"{name}.csv").columns) == (name == "bank")
        config = from_dict(read_toml(folder / name / f"{name}.toml"))
        share = read_party_share(
            folder / name / config.party.data, name=name, id=config.party.id, columns=config.party.columns,
            categorical=config.party.categorical, by=config.data.rows(),
        )  # fmt: skip
        assert share.columns == tuple(script.PARTIES[name])
    server = from_dict(read_toml(folder / "bank" / "server.toml")).server
    labels = read_server_share(folder / "bank" / server.data, label=server.label, id=server.id, by=config.data.rows())
    assert labels.ids_sha256 == share.ids_sha256 and labels.task.kind == "binary"


def test_the_configs_agree_above_the_line(made):
    folder = made(aligned=True)
    texts = [path.read_text() for path in folder.glob("*/*.toml")]
    assert len(texts) == 4
    assert len({re.search(r"# --- shared.*?(?=# --- one's)", text, re.DOTALL)[0] for text in texts}) == 1


def test_it_needs_no_data_and_makes_up_the_same_every_time(tmp_path):
    """The tutorial's first command, in an empty folder."""
    for name in ("one", "other"):
        command = [sys.executable, str(SCRIPT), name, "--tables", "--rows", "50", "--new", "10"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert f"{name}/bank/data/bank.csv: 50 clients; client, LIMIT_BAL" in done.stdout
    assert (tmp_path / "one/shop/data/shop.csv").read_bytes() == (tmp_path / "other/shop/data/shop.csv").read_bytes()
