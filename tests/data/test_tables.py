"""NPZ, CSV and Parquet: the data they give, and what is refused."""

import gzip
import re

import numpy as np
import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.data import load, split
from colonnade.protocol.errors import ConfigError, DataError

CSV = "age,income,member,bought\n30,1.5,true,no\n40,2.5,false,yes\n50,3.5,true,no\n"
FRAME = polars.DataFrame({"a": [1, 2, 3], "b": [0.5, 1.5, 2.5], "y": [3.5, 1.0, 2.0]})


def raw(dataset):
    """Every part of a table; categories as their codes."""
    rows, columns = dataset.x.shape
    return dataset.x.take(np.arange(rows), np.arange(columns)).tolist()


@pytest.fixture
def csv(tmp_path):
    def write(text, name="shop.csv"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return str(path)

    return write


@pytest.mark.parametrize("name", ["shop.csv", "shop.csv.gz", "shop.CSV"])
def test_csv(csv, name):
    dataset = load(csv(CSV, name), label="bought")
    assert (dataset.name, dataset.columns) == ("shop", ("age", "income", "member"))
    assert dataset.task.classes == ("no", "yes")
    assert dataset.y.tolist() == [0, 1, 0]
    assert raw(dataset) == [[30, 1.5, 1], [40, 2.5, 0], [50, 3.5, 1]]
    assert dataset.x.column(2).categories == ("false", "true")


def test_types_are_decided_by_all_rows(csv):
    text = "a,y\n" + "".join(f"{i},{i % 2}\n" for i in range(500)) + "0.5,1\n"
    assert raw(load(csv(text), label="y"))[-1] == [0.5]


def test_parquet(tmp_path):
    FRAME.write_parquet(tmp_path / "t.parquet")
    dataset = load("t.parquet", dir=tmp_path, label="y")
    assert (dataset.columns, dataset.task.kind) == (("a", "b"), "regression")
    assert dataset.y.tolist() == [3.5, 1.0, 2.0]
    assert raw(dataset) == [[1, 0.5], [2, 1.5], [3, 2.5]]


def test_parquet_with_decimals_and_categories(tmp_path):
    decimal = FRAME.with_columns(polars.col("b").cast(polars.Decimal(10, 2)))
    frame = decimal.with_columns(y=polars.Series(["u", "v", "u"], dtype=polars.Categorical))
    frame.write_parquet(tmp_path / "t.parquet")
    dataset = load("t.parquet", dir=tmp_path, label="y")
    assert raw(dataset) == [[1, 0.5], [2, 1.5], [3, 2.5]]
    assert dataset.task.classes == ("u", "v")


def test_an_empty_cell_is_found_by_its_column(csv):
    dataset = load(csv("a,b,y\n1,2,0\n3,,1\n5,6,1\n"), label="y")
    with pytest.raises(DataError, match=r"party-2: 1 of its values NaN.* column 'b', row 1 "):
        split(dataset, parties=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,y\n1,\n2,1\n3,\n", "label 'y': 2 empty values, the first in row 0"),
        ("a,y\n1,2020-01-01\n2,2020-01-01\n", "needs two or more classes"),
        ("y\n1\n2\n", "no column besides the label"),
        ("a,y\n", r"shape \(0, 1\)"),
        ("a,y\n1,2\n1,2,3,4\n", "shop.csv: cannot be read: line 3 has 4 cells, not 2 as line 1"),
        ('a,b,y\n1,2,3\n"x, y",2,3\n"u\nv",2,3\n4,5\n', "line 6 has 2 cells, not 3"),
        ("a,b,y\n1,2,3\n\n4,5,6\n", "line 3 has 1 cells, not 3"),
        ("a,b,y\n1,2,3,4\n5,6\n", "line 2 has 4 cells, not 3"),
        ('a,b,y\n"1,2",3\n4,5,6\n', "line 2 has 2 cells, not 3"),
        ("a,a,y\n1,2,3\n", "two columns have the name 'a'"),
        ("a,b;y\n1,2;3\n", "is ambiguous .comma and semicolon.: set data.separator"),
        ("a,y\n1,3\n2,3\n", "label 'y': .*needs two or more classes"),
        ("", "shop.csv: cannot be read"),
    ],
)
def test_refused_csv(csv, text, message):
    with pytest.raises(DataError, match=message):
        load(csv(text), label="y")


def test_label_must_be_named_and_there(csv):
    with pytest.raises(ConfigError, match=r"data.label = None: name the column of shop.csv"):
        load(csv(CSV))
    with pytest.raises(ConfigError, match=r"data.label = 'bougth'.*did you mean 'bought'"):
        load(csv(CSV), label="bougth")


def test_a_date_is_no_label(tmp_path):
    dates = polars.date_range(polars.date(2020, 1, 1), polars.date(2020, 1, 3), eager=True)
    FRAME.with_columns(y=dates).write_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match="label 'y': holds Date"):
        load("t.parquet", dir=tmp_path, label="y")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (CSV.encode("utf-16"), "shop.csv: .*not UTF-8 text"),
        ("größe,bought\n1,0\n2,1\n".encode("latin-1"), "shop.csv: .*line 1 is not UTF-8"),
        ("city,bought\nUlm,0\nKöln,1\n".encode("latin-1"), "shop.csv: cannot be read as UTF-8"),
        (b"PK\3\4\0\0 a zip archive", "shop.csv: .*not UTF-8 text"),
    ],
)
def test_wrong_encoding_or_format(tmp_path, content, message):
    (tmp_path / "shop.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load("shop.csv", dir=tmp_path, label="bought")


def test_a_broken_gzip_file(tmp_path):
    (tmp_path / "shop.csv.gz").write_bytes(gzip.compress(CSV.encode())[:-12])
    with pytest.raises(DataError, match="shop.csv.gz: cannot be read"):
        load("shop.csv.gz", dir=tmp_path, label="bought")


def test_pieces_of_a_csv_file_make_the_same_table(csv, monkeypatch):
    lines = [f'{i},"a ""quoted"" {i % 3},\nline",{i / 8},{i % 2}\r\n' for i in range(200)]
    path = csv("\ufeffn,text,part,y\r\n" + "".join(lines) + "\r\n")
    seen = []
    whole = load(path, label="y")
    monkeypatch.setattr("colonnade.data.delimited.PIECE_BYTES", 100)
    pieces = load(path, label="y", progress=lambda what, part: seen.append((what, part)))
    assert whole.columns == ("n", "text", "part")
    assert raw(whole) == raw(pieces) == [[i, i % 3, i / 8] for i in range(200)]
    assert whole.x.column(1).categories == pieces.x.column(1).categories
    assert pieces.x.column(1).categories[0] == 'a "quoted" 0,\nline'
    assert {what for what, _ in seen} == {"counting rows", "reading"}
    assert seen[-1][1] == 1.0


def test_a_lost_quote_does_not_read_the_rest_as_one_row(csv, monkeypatch):
    monkeypatch.setattr("colonnade.data.delimited.PIECE_BYTES", 50)
    monkeypatch.setattr("colonnade.data.delimited.LONGEST_ROW", 200)
    with pytest.raises(DataError, match="shop.csv: cannot be read: quotes are not closed, in or after line "):
        load(csv("a,y\n" + "1,0\n" * 20 + '"2,1\n' + "1,0\n" * 200), label="y")


CELLS = st.one_of(
    st.none(),
    st.sampled_from(["u", "v, w", 'a "b"', "line\nbreak", "ü"]),
    st.integers(-(10**6), 10**6).map(str),
    st.floats(-1e6, 1e6, width=32).map(str),
)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=30), st.integers(20, 400))
def test_any_csv_reads_as_polars_reads_it_whole(tmp_path_factory, rows, piece):
    path = tmp_path_factory.mktemp("csv") / "any.csv"
    frame = polars.DataFrame(rows, schema={"a": polars.String, "b": polars.String}, orient="row")
    frame = frame.vstack(polars.DataFrame({"a": ["1"], "b": ["1"]})).with_row_index("y")
    frame.select("a", "b", "y").write_csv(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("colonnade.data.delimited.PIECE_BYTES", piece)
        dataset = load(str(path), label="y")
    for place, name in enumerate(("a", "b")):
        column = dataset.x.column(place)
        numbers = frame[name].cast(polars.Float32, strict=False)
        if column.categories is None:
            np.testing.assert_array_equal(column.values, numbers.fill_null(float("nan")).to_numpy())
        else:
            assert numbers.null_count() > frame[name].null_count()
            read = [column.categories[code] for code in column.values]
            assert read == [re.sub(r"^(-?\d+)\.0$", r"\1", text or "missing") for text in frame[name]]


def test_text_far_down_makes_a_column_categorical(csv, monkeypatch):
    monkeypatch.setattr("colonnade.data.delimited.PIECE_BYTES", 50)
    rows = "".join(f"{i % 3:03},,{i % 2}\n" for i in range(99))
    dataset = load(csv("code,late,y\n" + rows + "x7,8,1\n"), label="y")
    assert dataset.x.column(0).categories == ("000", "001", "002", "x7")
    assert dataset.x.column(1).categories is None
    assert dataset.x.column(1).values[-1] == 8
    assert dataset.notes == ("column 'code' is treated as categories, because it has texts that are not numbers: x7",)
    assert split(dataset, parties=1, how={"a": ["code"]}).notes[0] == dataset.notes[0]
    assert load(csv("a,y\nu,0\nv,1\n"), label="y").notes == ()


def test_ids_are_checked_and_dropped(csv):
    dataset = load(csv("nr,a,y\n7,1,0\n8,2,1\n9,3,1\n"), label="y", id="nr")
    assert dataset.columns == ("a",)
    with pytest.raises(DataError, match=r"the id '8' in column 'nr' is in rows 1 and 3 \(counted from 0\)"):
        load(csv("nr,a,y\n7,1,0\n8,2,1\n9,3,1\n8,1,1\n"), label="y", id="nr")
    with pytest.raises(DataError, match="row 1 .* has no id in column 'nr'"):
        load(csv("nr,a,y\n7,1,0\n,2,1\n"), label="y", id="nr")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"id": "numer"}, "data.id = 'numer': no such column.*did you mean 'number'"),
        ({"id": "y"}, "data.id = 'y': must not be the label"),
        ({"categorical": ["b"]}, "data.categorical = 'b': no such column"),
        ({"categorical": ["y"]}, "data.categorical = 'y': is the label or the id"),
    ],
)
def test_columns_that_are_named_must_be_there(csv, settings, message):
    with pytest.raises(ConfigError, match=message):
        load(csv("number,a,y\n1,2,0\n2,2,1\n"), label="y", **settings)


def test_broken_parquet(tmp_path):
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match="t.parquet: cannot be read"):
        load("t.parquet", dir=tmp_path, label="y")


def test_npz(tmp_path):
    x, y = np.arange(6, dtype=np.int16).reshape(3, 2), np.array([0, 1, 1])
    np.savez(tmp_path / "a.npz", x=x, y=y, x_test=x[:1], y_test=y[:1], other=y)
    dataset = load(str(tmp_path / "a.npz"))
    assert (dataset.name, dataset.x.dtype, dataset.test_rows) == ("a", np.int16, 1)
    assert dataset.columns == ("x0", "x1")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 2)), "z": np.zeros(2)}, "no array 'y', only: x, z"),
        ({}, "no array 'x', only: nothing"),
        ({"x": np.array([{}, []], dtype=object), "y": np.zeros(2)}, "cannot be read as .npz.*allow_pickle"),
        ({"x": np.zeros((2, 2)), "y": [0, 1], "x_test": np.zeros((1, 2))}, "both x_test and y_test"),
    ],
)
def test_refused_npz(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load(str(tmp_path / "a.npz"))


@pytest.mark.parametrize("content", [b"", b"PK\3\4 broken", b"plain text", b"\x93NUMPY"])
def test_what_is_no_npz(tmp_path, content):
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DataError, match="a.npz: cannot be read as .npz"):
        load(str(tmp_path / "a.npz"))


def test_one_plain_array_is_no_npz(tmp_path):
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match="a.npz: cannot be read as .npz"):
        load(str(tmp_path / "a.npz"))
