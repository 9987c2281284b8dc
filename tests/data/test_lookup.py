"""A party's rows by id: training rows as in training, further rows encoded and scaled alike, later files first."""

import numpy as np
import polars
import pytest

from colonnade.data import (
    IdRules,
    RowSplit,
    load,
    load_party_share,
    party_lookup,
    party_share,
    read_party_share,
    save_share,
    split,
)
from colonnade.protocol.errors import ConfigError, DataError


@pytest.fixture
def files(tmp_path):
    rows = 40
    frame = polars.DataFrame(
        {
            "client": [f"c{row}" for row in range(rows)],
            "age": np.arange(rows) * 1.5,
            "city": ["Rom", "Ulm"] * (rows // 2),
        }
    )
    frame.write_csv(tmp_path / "bank.csv")
    later = polars.DataFrame({"city": ["Ulm", "Bonn", "Rom"], "client": [" d1 ", "d2", "c3"], "age": [1.5, 3.0, 90.0]})
    later.write_csv(tmp_path / "new.csv")
    return tmp_path


def read(folder, **more):
    return read_party_share(folder / "bank.csv", name="bank", id="client", by=RowSplit(0.25, 0, 1), **more)


def test_training_and_test_rows_are_as_they_were_trained_on(files):
    share = read(files)
    table = party_lookup(share, [files / "bank.csv"], "client")
    ids = polars.read_csv(files / "bank.csv")["client"]
    order = np.random.Generator(np.random.PCG64(1)).permutation(40)
    tested, trained = order[:10], order[10:]
    for rows, block in ((trained, share.train), (tested, share.test)):
        assert table.x[table.find([ids[int(row)] for row in rows])].tobytes() == block.tobytes()
    assert table.find(["c0", "nobody", "C0"]).tolist() == [0, -1, -1]


def test_further_rows_are_encoded_as_the_training_taught_and_replace_older_ones(files):
    share = read(files)
    table = party_lookup(share, [files / "bank.csv", files / "new.csv"], "client")
    assert len(table.places) == 42
    first, ulm, bonn, rom = table.x[table.find(["c1", "d1", "d2", "c3"])]
    assert first.tobytes() == ulm.tobytes()  # age 1.5, Ulm
    assert bonn[1:].tolist() == [0, 0], "a city that the training never saw"
    assert rom[0] > table.x[table.find(["c39"])][0, 0] and rom[1:].tolist() == [1, 0]


def test_ids_are_the_same_by_the_rules_of_the_alignment(files):
    table = party_lookup(read(files), [files / "bank.csv"], "client", IdRules(case="fold"))
    assert table.find(["C0", " c1", "nobody"]).tolist() == [0, 1, -1]


def test_without_an_id_column_rows_are_counted(files):
    share = read_party_share(files / "bank.csv", name="bank", columns=["age"], by=RowSplit(0.25, 0, 1))
    assert party_lookup(share, [files / "bank.csv"], None).find(["0", "39", "40"]).tolist() == [0, 39, -1]


def test_an_npz_has_its_own_names(tmp_path):
    np.savez(tmp_path / "lab.npz", x=np.arange(60.0).reshape(20, 3), ids=np.arange(20) + 100)
    share = read_party_share(tmp_path / "lab.npz", name="lab", columns=["x1", "x2"], by=RowSplit(0.2, 0, 0))
    table = party_lookup(share, [tmp_path / "lab.npz"], None)
    assert table.x.shape == (20, 2) and table.find(["100", "119", "0"]).tolist() == [0, 19, -1]
    np.savez(tmp_path / "thin.npz", x=np.zeros((2, 2)))
    with pytest.raises(DataError, match="thin.npz: 2 columns, but the party was trained with 'x2'"):
        party_lookup(share, [tmp_path / "thin.npz"], None)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("client,city\nd1,Ulm\n", "there is no column 'age'"),
        ("client,age,city\nd1,old,Ulm\n", "column 'age' must hold numbers"),
        ("client,age,city\nd1,,Ulm\n", "NaN"),
        ("client,age,city\nd1,1,Ulm\nd1,2,Ulm\n", "1 rows repeat an earlier id"),
        ("client,age,city\n,1,Ulm\n", "1 rows have no id"),
    ],
    ids=["no column", "words", "missing", "twice", "no id"],
)
def test_a_file_of_further_rows_that_does_not_fit_is_refused_by_name(files, content, words):
    (files / "new.csv").write_text(content)
    with pytest.raises(DataError, match="new.csv") as error:
        party_lookup(read(files), [files / "bank.csv", files / "new.csv"], "client")
    assert words in str(error.value)


def test_a_file_that_is_not_there(files):
    with pytest.raises(ConfigError, match="predict_data"):
        party_lookup(read(files), [files / "none.csv"], "client")


def test_a_share_of_one_table_keeps_the_ids(tmp_path, files):
    polars.read_csv(files / "bank.csv").with_columns(y=polars.int_range(40) % 2).write_csv(files / "all.csv")
    how = {"one": ["age"], "two": ["city"]}
    data = split(load(str(files / "all.csv"), label="y", id="client"), how=how, split_seed=1)
    save_share(party_share(data, 0), tmp_path / "one.safetensors")
    share = load_party_share(tmp_path / "one.safetensors")
    table = party_lookup(share, [], None)
    assert sorted(table.places) == sorted(f"c{row}" for row in range(40))
    assert table.x[table.find(["c0"])].item() == min(table.x[:, 0])
    assert split(load("digits")).ids.to_list()[:3] != ["0", "1", "2"], "numbers of rows in the table, not in the split"
