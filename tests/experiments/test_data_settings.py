"""The keys of [data] reach the loader and the split, and new rows reach the model."""

import numpy as np
import polars
import pytest

import colonnade
from colonnade.data import load, split
from colonnade.experiments.config import from_dict
from colonnade.experiments.resolve import load_partition
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
