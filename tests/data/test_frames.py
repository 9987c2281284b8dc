"""DataFrames of polars and pandas give the same data as files."""

import numpy as np
import polars
import pytest

from colonnade.data import Dataset, from_arrays, load, party_share, server_share, split
from colonnade.protocol.errors import ConfigError, DataError

FRAME = polars.DataFrame(
    {
        "nr": [f"client-{i}" for i in range(12)],
        "age": [31.5, 42.25, 27.0, 64.0] * 3,
        "city": ["Bonn", None, "Köln", "Bonn"] * 3,
        "bought": ["yes", "no", "no", "yes"] * 3,
    }
)
SETTINGS = {"label": "bought", "id": "nr"}


def test_a_frame_is_what_its_parquet_file_is(tmp_path):
    FRAME.write_parquet(tmp_path / "bank.parquet")
    there, here = (split(load(source, **SETTINGS), parties=2) for source in (tmp_path / "bank.parquet", FRAME))
    assert here.columns == there.columns and here.task.classes == ("no", "yes")
    for ours, theirs in zip(here.train, there.train, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert here.ids.to_list() == there.ids.to_list()


def test_a_pandas_frame_is_what_the_polars_frame_is():
    pandas = pytest.importorskip("pandas")
    columns = FRAME.to_dict(as_series=False)
    frame = pandas.DataFrame(columns | {"visits": pandas.array([1, None, 3] * 4, dtype="Int64")})
    theirs = FRAME.with_columns(visits=polars.Series([1, None, 3] * 4))
    ours, expected = (split(load(one, **SETTINGS), parties=3, missing="mean") for one in (frame, theirs))
    for left, right in zip(ours.train, expected.train, strict=True):
        np.testing.assert_array_equal(left, right)
    raw = frame.drop(columns=["bought", "nr"])
    for left, right in zip(ours.blocks(raw), expected.blocks(theirs), strict=True):
        np.testing.assert_array_equal(left, right)
    with pytest.raises(DataError, match="two columns have the name 'a'"):
        load(pandas.DataFrame([[1, 2]], columns=["a", "a"]), label="a")


@pytest.mark.parametrize(
    ("frame", "settings", "error", "message"),
    [
        (FRAME, {}, ConfigError, "label = None: name the column of the DataFrame"),
        (FRAME, {"label": "baught"}, ConfigError, "no such column in frame .did you mean 'bought'"),
        (FRAME, SETTINGS | {"dir": "data"}, ConfigError, "dir = 'data': is for files"),
        (FRAME.select("bought"), {"label": "bought"}, DataError, "no column besides the label"),
        (FRAME.clear(), SETTINGS, DataError, "there are no rows"),
        (FRAME.with_columns(day=polars.date(2020, 1, 1)), SETTINGS, DataError, "column 'day' holds Date"),
        ([[1, 2]], SETTINGS, ConfigError, "give a name, a path or a DataFrame; for arrays use from_arrays"),
    ],
)
def test_what_is_refused(frame, settings, error, message):
    with pytest.raises(error, match=message):
        load(frame, **settings)


def test_no_repr_shows_a_row():
    secret = 8_675_309.5
    dataset = from_arrays(np.full((10, 3), secret), ["jenny", "other"] * 5, name="phones")
    partition = split(dataset, parties=3, scale="none")
    held = (dataset, partition, party_share(partition, 0), server_share(partition), load(FRAME, **SETTINGS).x.column(0))
    for one in held:
        assert "8675309" not in repr(one).replace("_", "") and "jenny" not in repr(one) and len(repr(one)) < 250
    assert repr(dataset) == "Dataset(phones: 10 rows, 3 columns, 2 classes)"
    assert repr(partition) == (
        "Partition(phones: party-1 (1 columns), party-2 (1 columns), party-3 (1 columns); 7 rows to train on, "
        "1 to validate on, 2 to test on; 2 classes)"
    )
    wide = split(
        Dataset("wide", np.ones((9, 40)), dataset.y[:9], dataset.task, tuple(map(str, range(40))), 3), parties=40
    )
    assert "and 32 more" in repr(wide)
