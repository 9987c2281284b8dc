"""Ids under the rules, the order of aligned rows, and the file that stores it."""

import stat

import numpy as np
import polars
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colonnade.data import (
    Alignment,
    IdRules,
    clean_ids,
    load_alignment,
    read_id_column,
    read_party_share,
    read_server_share,
    save_alignment,
)
from colonnade.data.alignment import digest_of_column, normalise
from colonnade.data.prepare import RowSplit
from colonnade.protocol.errors import CheckpointError, ConfigError, DataError

COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"
DROP = IdRules(duplicates="drop", empty="drop")


@pytest.mark.parametrize(
    ("rules", "text", "wanted"),
    [
        ({}, " 007\t", "007"),
        ({"trim": False}, " 7", " 7"),
        ({}, DECOMPOSED, COMPOSED),
        ({"unicode": "keep"}, DECOMPOSED, DECOMPOSED),
        ({}, "\ufb01n", "\ufb01n"),  # a ligature is its own letter,
        ({"unicode": "NFKC"}, "\ufb01n\u00a0", "fin"),  # unless compatibility is asked for; no-break space is a space
        ({}, "Ab", "Ab"),
        ({"case": "fold"}, "STRASSE", "strasse"),
        ({"case": "fold"}, "Straße", "strasse"),
        ({"case": "fold"}, "CAFE\u0301", COMPOSED),
        ({"leading_zeros": "drop"}, " 0070", "70"),
        ({"leading_zeros": "drop"}, "000", "0"),
        ({"leading_zeros": "drop"}, "00a", "00a"),  # digits only
        ({"leading_zeros": "drop"}, "", ""),
    ],
    ids=str,
)
def test_rules(rules, text, wanted):
    assert normalise(text, IdRules(**rules)) == wanted


def test_unknown_rules():
    with pytest.raises(ConfigError, match=r"align.case = 'upper': use one of 'keep', 'fold'"):
        IdRules(case="upper")


@given(st.lists(st.sampled_from(["", " ", "7", "07", " 7 ", COMPOSED, DECOMPOSED, "x", None])))
def test_each_id_once_with_its_first_row(texts):
    column = polars.Series("id", texts, polars.String)
    first_rows = {}
    for row, text in enumerate(texts):
        if text is not None and text.strip():
            first_rows.setdefault(normalise(text, DROP), row)
    if not first_rows:
        with pytest.raises(DataError, match=f"none of the {len(texts)} rows has an id in column 'id'"):
            clean_ids(column, DROP, "bank: b.csv")
        return
    ids = clean_ids(column, DROP, "bank: b.csv")
    assert dict(zip(ids.texts, ids.rows.tolist(), strict=True)) == first_rows
    assert ids.empty == sum(text is None or not text.strip() for text in texts)
    assert ids.empty + ids.repeated + len(ids.texts) == len(texts)


def test_rows_without_an_id_of_their_own_are_counted_not_shown():
    column = polars.Series("nr", ["a7", "", "a7", None, "a7", "b"])
    with pytest.raises(DataError) as refused:
        clean_ids(column, IdRules(), "bank: b.csv")
    said = str(refused.value)
    assert "bank: b.csv: column 'nr': 2 rows have no id, 2 rows repeat an earlier id" in said
    assert 'align.empty and align.duplicates = "drop"' in said and "a7" not in said
    with pytest.raises(
        DataError, match=r'2 rows repeat an earlier id; .* align.duplicates = "drop" in the configs of all members$'
    ):
        clean_ids(column, IdRules(empty="drop"), "bank: b.csv")


def test_leading_zeros_survive_the_file(tmp_path):
    path = tmp_path / "b.csv"
    path.write_text("nr,x\n007,1\n7,2\n,3\nNA,4\n")
    assert clean_ids(read_id_column(path, "nr", "party"), DROP, "bank").texts == ["007", "7"]
    polars.DataFrame({"nr": [7, 7, None]}).write_parquet(tmp_path / "b.parquet")
    assert clean_ids(read_id_column(tmp_path / "b.parquet", "nr", "party"), DROP, "bank").texts == ["7"]
    np.savez(tmp_path / "b.npz", x=np.zeros((2, 1)), ids=np.array([7.0, 8.0]))
    assert clean_ids(read_id_column(tmp_path / "b.npz", None, "party"), DROP, "bank").texts == ["7", "8"]


def test_a_column_that_is_not_there(tmp_path):
    path = tmp_path / "b.csv"
    path.write_text("nr,x\n007,1\n")
    with pytest.raises(ConfigError, match=r"party.id = 'number': no such column in b.csv.*: nr, x"):
        read_id_column(path, "number", "party")
    with pytest.raises(ConfigError, match=r"party.id = None: name the column of b.csv with the ids"):
        read_id_column(path, None, "party")
    with pytest.raises(ConfigError, match="there is no file"):
        read_id_column(tmp_path / "c.csv", "nr", "server")
    np.savez(tmp_path / "b.npz", x=np.zeros((2, 1)))
    with pytest.raises(DataError, match="there is no array 'ids', only: x"):
        read_id_column(tmp_path / "b.npz", None, "party")


# What is kept


def table(tmp_path, rows=40):
    path = tmp_path / "bank.csv"
    lines = [f"P{row:03},{row}.5,{'ab'[row % 2]},{'no' if row % 3 else 'yes'}" for row in range(rows)]
    path.write_text("\n".join(["nr,x,kind,bought", *lines]) + "\n")
    return path


def alignment(path, rows, name="bank"):
    ids = digest_of_column(read_id_column(path, "nr", "party"))
    return Alignment(name, ("bank", "server"), np.array(rows), "ab" * 32, ids)


def test_a_share_has_the_common_rows_in_their_order(tmp_path):
    path, order = table(tmp_path), [7, 3, 39, 0, 12, 5, 20, 21]
    aligned, how = alignment(path, order), {"by": RowSplit(0.25, 0, 1), "scale": "none"}
    share = read_party_share(path, name="bank", id="nr", columns=["x"], aligned=aligned, **how)
    plain = polars.read_csv(path)[order].drop("kind", "bought")
    plain.write_csv(tmp_path / "sorted.csv")
    wanted = read_party_share(tmp_path / "sorted.csv", name="bank", id="nr", **how)
    assert np.array_equal(share.train, wanted.train) and np.array_equal(share.test, wanted.test)
    assert share.rows == 8 and share.ids_sha256 == "ab" * 32
    del how["scale"]
    labels = read_server_share(path, label="bought", id="nr", aligned=aligned, **how)
    polars.read_csv(path)[order].write_csv(tmp_path / "sorted.csv")
    wanted = read_server_share(tmp_path / "sorted.csv", label="bought", id="nr", **how)
    assert np.array_equal(labels.y_train, wanted.y_train) and labels.ids_sha256 == share.ids_sha256
    held = read_party_share(path, name="bank", id="nr", label="bought", aligned=aligned, **how)
    assert np.array_equal(held.labels[1], wanted.y_train)


def test_repeated_ids_that_were_dropped_do_not_matter_later(tmp_path):
    path = tmp_path / "bank.csv"
    path.write_text("nr,x\nA,1\nB,2\nA,3\nC,4\n,5\n")
    with pytest.raises(DataError, match="has no id"):
        read_party_share(path, name="bank", id="nr", by=RowSplit(0.5, 0, 0))
    aligned = alignment(path, [3, 0])
    share = read_party_share(path, name="bank", id="nr", aligned=aligned, by=RowSplit(0.5, 0, 0), scale="none")
    assert sorted([*share.train.ravel(), *share.test.ravel()]) == [1, 4]


@pytest.mark.parametrize("change", [lambda lines: lines[:-1], lambda lines: [lines[0], *lines[:0:-1]]])
def test_ids_that_changed_since(change, tmp_path):
    path = table(tmp_path)
    aligned = alignment(path, [3, 2, 1])
    lines = path.read_text().splitlines()
    path.write_text("\n".join(change(lines)) + "\n")
    with pytest.raises(DataError, match=r"the ids of bank have changed since the alignment .* colonnade align again"):
        read_party_share(path, name="bank", id="nr", aligned=aligned, by=RowSplit(0.5, 0, 0))
    path.write_text("\n".join(lines).replace(".5", ".25") + "\n")  # changes to other columns are allowed
    read_party_share(path, name="bank", id="nr", aligned=aligned, by=RowSplit(0.5, 0, 0))
    with pytest.raises(ConfigError, match=r"party.id = None: name the column of bank.csv that was aligned"):
        read_party_share(path, name="bank", aligned=aligned, by=RowSplit(0.5, 0, 0))


def test_an_npz_in_its_order(tmp_path):
    path = tmp_path / "bank.npz"
    np.savez(path, x=np.arange(10.0).reshape(5, 2), ids=np.arange(5))
    ids = digest_of_column(polars.Series("ids", np.arange(5)))
    aligned = Alignment("bank", ("bank", "shop"), np.array([4, 2]), "ab" * 32, ids)
    share = read_party_share(path, name="bank", aligned=aligned, by=RowSplit(0.5, 0, 0), scale="none")
    assert sorted(map(tuple, [*share.train, *share.test])) == [(4, 5), (8, 9)]


def test_the_file_keeps_it_and_only_for_its_owner(tmp_path):
    path, presence = tmp_path / "aligned.safetensors", np.array([[True, False], [True, True]])
    written = Alignment("bank", ("bank", "shop"), np.array([4, -1]), "ab" * 32, "cd" * 32, presence)
    save_alignment(written, path)
    found = load_alignment(path)
    assert (found.name, found.members) == ("bank", ("bank", "shop"))
    assert (found.sha256, found.ids_sha256) == ("ab" * 32, "cd" * 32)
    assert found.rows.tolist() == [4, -1] and found.presence.tolist() == presence.tolist()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="aligned.safetensors"):
        load_alignment(path)


def test_rows_that_a_party_lacks_are_zeros_and_teach_it_nothing(tmp_path):
    path, column = tmp_path / "shop.csv", [f"P{row}" for row in range(40)]
    x = np.arange(40.0) ** 2
    polars.DataFrame({"nr": column, "x": x, "kind": ["ab"[row % 2] for row in range(40)]}).write_csv(path)
    order = np.random.default_rng(0).permutation(40)
    order[::3] = -1
    how = {"name": "shop", "id": "nr", "by": RowSplit(0.25, 0.2, 0), "categorical": ["kind"]}

    def read(rows):
        digest = digest_of_column(polars.Series(column))
        return read_party_share(path, aligned=Alignment("shop", ("shop", "server"), rows, "ab" * 32, digest), **how)

    share = read(order)
    (train, test), validation = how["by"].of("", 40)
    assert share.validation == validation == 6
    assert [part.tolist() for part in share.present] == [(order[part] >= 0).tolist() for part in (train, test)]
    for part, values, present in zip((train, test), (share.train, share.test), share.present, strict=True):
        assert not values[~present].any() and np.isfinite(values).all()
        known = x[order[train][order[train] >= 0]]  # scaled by the training rows that are present
        expected = (x[order[part][present]] - known.mean()) / known.std()
        np.testing.assert_allclose(values[present][:, 0], expected, rtol=1e-5)
    whole = read(np.arange(40))
    assert whole.present is None  # and with all rows there, bit for bit as without an alignment
    plain = read_party_share(path, **how)
    assert np.array_equal(whole.train, plain.train) and np.array_equal(whole.test, plain.test)
    with pytest.raises(DataError, match="this party has none of the training rows"):
        read(np.full(40, -1))


def test_which_member_lacks_which_row():
    presence = np.array([[True, False, True], [True, True, True]])
    aligned = Alignment("server", ("bank", "shop", "server"), np.array([4, 1]), "ab" * 32, "cd" * 32, presence)
    assert aligned.absent(("shop", "bank")).tolist() == [[True, False], [False, False]]
    assert aligned.absent(("bank",)) is None and aligned.absent(()) is None
    with pytest.raises(DataError, match="insurer took no part in the alignment"):
        aligned.absent(("bank", "insurer"))


def test_damaged_content_is_refused(tmp_path):
    path = tmp_path / "aligned.safetensors"
    for wrong in ({"rows": np.array([-2])}, {"sha256": "no"}, {"presence": np.zeros((3, 1), bool)}, {"name": 7}):
        fields = {"name": "bank", "members": ("bank",), "rows": np.array([1]), "sha256": "ab" * 32} | wrong
        save_alignment(Alignment(ids_sha256="cd" * 32, **fields), path)
        with pytest.raises(CheckpointError, match="damaged"):
            load_alignment(path)
