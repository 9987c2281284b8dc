"""CSV as found in practice: separators, no header, decimal commas, blanks, words for missing values, a test file."""

import gzip

import numpy as np
import polars
import pytest

from colonnade.config.resolve import load_partition
from colonnade.config.schema import from_dict
from colonnade.data import RowSplit, load, party_lookup, read_id_column, read_party_share, read_server_share
from colonnade.protocol.errors import ConfigError, DataError

PLAIN = "age,city,y\n31.5,Bonn,yes\n42,Köln,no\n27,,yes\n64,Bonn,no\n"


def table(folder, text, name="t.csv", **settings):
    (folder / name).write_text(text, encoding="utf-8")
    return load(folder / name, **({"label": "y"} | settings))


def same(one, other):
    assert one.columns == other.columns and one.task == other.task
    np.testing.assert_array_equal(one.y, other.y)
    for place in range(len(one.columns)):
        left, right = one.x.column(place), other.x.column(place)
        assert left.categories == right.categories
        np.testing.assert_array_equal(left.values, right.values)


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        (PLAIN.replace(",", ";"), {}),
        (PLAIN.replace(",", "\t"), {}),
        (PLAIN.replace(",", "|"), {}),
        (PLAIN.replace(",", ", "), {}),
        (PLAIN.replace(",", ":"), {"separator": ":"}),
        (PLAIN.replace(",", ";").replace("31.5", "31,5"), {"decimal": ","}),
        (PLAIN.replace(",,", ",-,"), {"missing_values": ["-"]}),
        (PLAIN.replace(",,", ",?,"), {}),
        (PLAIN.replace(",,", ", ?,").replace(",", ", ").replace("  ", " "), {}),
        (PLAIN.replace("Bonn", '"Bonn"'), {}),
        (PLAIN.replace(",", ", ").replace("Köln", '"Köln"').replace("no", '"no"'), {}),
    ],
    ids=[
        "semicolon",
        "tab",
        "bar",
        "blank",
        "given",
        "decimal",
        "own missing",
        "?",
        " ?",
        "quotes",
        "blank and quotes",
    ],
)
def test_the_same_table_in_other_dialects(text, settings, tmp_path):
    same(table(tmp_path, text, **settings), table(tmp_path, PLAIN, "plain.csv"))


def test_without_a_line_of_names(tmp_path):
    found = table(tmp_path, PLAIN.partition("\n")[2], header=False, label="x2")
    assert found.columns == ("x0", "x1") and found.x.column(0).values.tolist() == [31.5, 42, 27, 64]
    assert found.task.classes == ("no", "yes") and found.x.shape[0] == 4
    numbers = "\ufeff1,2,0\n3,4,1\n"
    assert table(tmp_path, numbers, header=False, label="x2").x.column(0).values.tolist() == [1, 3]
    with pytest.raises(ConfigError, match="if its first line holds values instead of names, set data.header = false"):
        table(tmp_path, numbers, label="x2")
    with pytest.raises(DataError, match="line 2 has 2 cells, not 3"):
        table(tmp_path, "1,2,0\n3,4\n", header=False, label="x2")


def test_a_test_file_apart(tmp_path):
    tested = table(tmp_path, PLAIN, "train.csv") and "city,y,age\nTrier,no,30\nBonn,yes,?\n"
    (tmp_path / "test.csv.gz").write_bytes(gzip.compress(tested.encode()))
    config = from_dict({"data": {"source": "train.csv", "test": "test.csv.gz", "dir": str(tmp_path), "label": "y",
                                 "missing": "mean", "parties": 2, "validation_fraction": 0}})  # fmt: skip
    data = load_partition(config)
    assert len(data.y_train) == 4 and data.y_test.tolist() == [0, 1]
    assert data.encoders[1].features == ("city=Bonn", "city=Köln", "city=missing")
    assert data.test[1].tolist() == [[0, 0, 0], [1, 0, 0]] and data.test[0][1] == pytest.approx(0, abs=1e-6)


def test_a_text_in_the_test_file_makes_categories_of_both(tmp_path):
    table(tmp_path, "a,y\n1,yes\n2,no\n")
    (tmp_path / "test.csv").write_text("a,y\n2,no\nmany,yes\n")
    found = load(tmp_path / "t.csv", label="y", test=tmp_path / "test.csv")
    assert found.x.column(0).categories == ("1", "2", "many") and found.x.column(0).values.tolist() == [0, 1, 1, 2]


def test_parquet_and_libsvm_have_test_files_too(tmp_path):
    frame = polars.DataFrame({"a": [1.0, 2.0, 3.0], "y": [0, 1, 1]})
    frame.write_parquet(tmp_path / "train.parquet")
    frame[:2].write_parquet(tmp_path / "test.parquet")
    found = load("train.parquet", dir=tmp_path, test="test.parquet", label="y")
    assert found.test_rows == 2 and found.x.column(0).values.tolist() == [1, 2, 3, 1, 2]
    (tmp_path / "a9a").write_text("-1 1:1\n+1 2:1\n")
    (tmp_path / "a9a.t").write_text("+1 3:1\n")
    found = load("a9a", dir=tmp_path, format="libsvm", test="a9a.t")
    assert found.test_rows == 1 and found.x.shape == (3, 3)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"separator": "::"}, ConfigError, "data.separator = '::': must be one character"),
        ({"decimal": "·"}, ConfigError, "must be '.' or ','"),
        ({"decimal": ",", "separator": ","}, ConfigError, "must differ from the separator"),
        ({"test": "none.csv"}, ConfigError, "there is no such file"),
        ({"test": "classes.csv"}, DataError, r"label 'y' has classes that no training row has: yes\."),
        ({"test": "columns.csv"}, DataError, "there is no column 'city', which t.csv has"),
        ({"test": "label.csv"}, ConfigError, "data.test = 'y': no such column in label.csv"),
    ],
)
def test_what_is_refused(settings, error, message, tmp_path):
    (tmp_path / "classes.csv").write_text("age,city,y\n31,Bonn,yes.\n")
    (tmp_path / "columns.csv").write_text("age,y\n31,yes\n")
    (tmp_path / "label.csv").write_text("age,city\n31,Bonn\n")
    (tmp_path / "t.csv").write_text(PLAIN, encoding="utf-8")
    with pytest.raises(error, match=message):
        load("t.csv", dir=tmp_path, label="y", **settings)


def test_dialects_are_for_csv(tmp_path):
    with pytest.raises(ConfigError, match="data.header = False: is for CSV files, not digits"):
        load("digits", header=False)
    with pytest.raises(ConfigError, match="only CSV, Parquet and LIBSVM take a test file"):
        load("digits", test="more.csv")


def test_decimal_commas_without_a_setting_are_noted(tmp_path):
    found = table(tmp_path, "a;y\n1,5;0\n2,5;1\n3,5;1\n")
    assert found.notes == (
        "column 'a' is treated as categories, because its numbers have a decimal comma: set decimal = ','",
    )


def test_a_members_own_file_has_a_dialect_too(tmp_path):
    rows = [f"k{i};{i},5;{'ja' if i % 2 else 'nein'}" for i in range(10)]
    (tmp_path / "own.csv").write_text("\n".join(["nr;age;y", *rows]) + "\n")
    (tmp_path / "bare.csv").write_text("\n".join(row.replace(",5", " years") for row in rows) + "\n")
    config = from_dict({"party": {"decimal": ","}, "server": {"header": False}})
    by = RowSplit(0.2, 0, 0)
    party = read_party_share(
        tmp_path / "own.csv", name="a", id="nr", columns=["age"], scale="none", by=by, dialect=config.party.dialect
    )
    assert sorted([*party.train.ravel(), *party.test.ravel()]) == [i + 0.5 for i in range(10)]
    server = read_server_share(tmp_path / "bare.csv", label="x2", id="x0", by=by, dialect=config.server.dialect)
    assert server.task.classes == ("ja", "nein") and server.ids_sha256 == party.ids_sha256
    found = party_lookup(party, [tmp_path / "own.csv"], "nr", dialect=config.party.dialect)
    assert found.x[found.find(["k7"])[0]].tolist() == [7.5]
    ids = read_id_column(tmp_path / "bare.csv", "x0", "server", dialect=config.server.dialect)
    assert ids.to_list() == [f"k{i}" for i in range(10)]
    with pytest.raises(ConfigError, match="party.separator = '--'"):
        from_dict({"party": {"separator": "--"}}).party.dialect  # noqa: B018
