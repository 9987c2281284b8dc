"""The keys of [data] reach the loader and the split, and new rows reach the model."""

import numpy as np
import polars
import pytest
from typer.testing import CliRunner

import colonnade
from colonnade.cli.main import app
from colonnade.config.resolve import load_partition
from colonnade.config.schema import from_dict
from colonnade.data import load, split
from colonnade.protocol.errors import ConfigError

CITIES = ("Ulm", "Bonn", "Köln")
ROWS = "".join(f"{i},{CITIES[i % 3]},{i % 7},{i % 4},{'' if i == 5 else i / 10},{i % 2}\n" for i in range(60))


@pytest.fixture
def shop(tmp_path):
    (tmp_path / "shop.csv").write_text("nr,city,age,code,spent,y\n" + ROWS, encoding="utf-8")
    return tmp_path


def test_keys_of_a_table(shop):
    data = {"source": "shop.csv", "dir": str(shop), "label": "y", "parties": 2}
    more = {"id": "nr", "categorical": ["code"], "missing": "mean"}
    partition = load_partition(from_dict({"data": data | more}))
    assert partition.encoders[0].features == ("city=Bonn", "city=Köln", "city=Ulm", "age")
    assert partition.encoders[1].features == ("code=0", "code=1", "code=2", "code=3", "spent")
    with pytest.raises(ConfigError, match="data.id = 'nr': only CSV and Parquet"):
        load_partition(from_dict({"data": {"source": "digits", "id": "nr"}}))
    with pytest.raises(ConfigError, match="data.missing = 'drop'"):
        load_partition(from_dict({"data": data | {"missing": "drop"}}))


def test_prediction_of_rows_by_name(shop):
    dataset = load("shop.csv", dir=shop, label="y", id="nr", categorical=["code"])
    data = split(dataset, parties=2, missing="mean")
    result = colonnade.train(data, "sync", "linear", embedding=4, updates=5)
    rows = [{"city": "Rom", "age": 3, "code": 1, "spent": None}, {"city": "Ulm", "age": 4, "code": 2, "spent": 0.5}]
    predicted = result.predict(rows)
    assert len(predicted) == 2
    assert np.isfinite(predicted).all()
    tables = {"city": ["Rom", "Ulm"], "age": [3, 4]}, {"code": [1, 2], "spent": [None, 0.5]}
    own = [polars.DataFrame(table) for table in tables]
    np.testing.assert_array_equal(result.predict(own), predicted)


ONE_SIDE = [
    ("server", "data", "labels.csv"),
    ("server", "rows", 100),
    ("party", "data", "clinic.csv"),
    ("party", "columns", ["a..c"]),
    ("network", "parties", ["clinic", "lab"]),
    ("network", "members", "members.toml"),
]


@pytest.mark.parametrize(("section", "name", "value"), ONE_SIDE)
def test_one_sides_config_is_not_given_embedded_data(section, name, value):
    tables = {section: {name: value}, "data": {"test_fraction": 0.1}}
    with pytest.raises(ConfigError, match=rf"{section}.{name} = .*data.source=TABLE.csv") as refused:
        load_partition(from_dict(tables))
    assert refused.value.value == value
    chosen = load_partition(from_dict(tables | {"data": {"source": "digits"}}))
    assert chosen.name == "digits", "chosen, not put in its place"


COMMANDS = [["run"], ["up"], ["run", "--driver", "processes"], ["compare"], ["sweep", "--grid", "train.epochs=1"],
            ["attack", "feature-inversion"], ["privacy", "fedvs"]]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_that_wants_all_columns_refuses_one_sides_config(command, tmp_path, monkeypatch):
    (tmp_path / "clinic.toml").write_text('[party]\ndata = "clinic.csv"\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="party.data = 'clinic.csv': belongs to one member"):
        CliRunner().invoke(app, [*command, "clinic.toml"], catch_exceptions=False)
    assert [path.name for path in tmp_path.iterdir()] == ["clinic.toml"], "nothing was started"


@pytest.mark.parametrize(
    "tables",
    [
        {"server": {"table": "file"}},
        {"party": {"budget": {"epsilon": 1.0, "delta": 1e-5}}},
        {"network": {"lost_after_s": 20.0, "address": "127.0.0.1:0"}},
    ],
)
def test_settings_that_simulations_have_too_need_no_source(tables):
    assert load_partition(from_dict(tables)).name == "digits"
