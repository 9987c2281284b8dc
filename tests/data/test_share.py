"""What a role reads from its own file: the same numbers as a split of the whole; ids, errors, and files of shares."""

import gzip
import hashlib
import runpy
import stat
from pathlib import Path

import numpy as np
import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.data import (
    PartyShare,
    RowSplit,
    ServerShare,
    Task,
    from_arrays,
    load,
    load_party_share,
    load_server_share,
    party_share,
    read_party_share,
    read_server_share,
    save_share,
    server_share,
    split,
)
from colonnade.protocol import state
from colonnade.protocol.errors import CheckpointError, ConfigError, DataError

PARTS = {"test_fraction": 0.25, "validation_fraction": 0.2, "split_seed": 3}
BY = {"by": RowSplit(**PARTS)}
ROWS = {"by": RowSplit(0.25, 0, 3)}
HOW = {"bank": ["income", "city", "age"], "shop": ["visits", "code"]}


def table(rows=200):
    """Numbers, categories (some only in few rows), codes, missing numbers, ids and a label."""
    rng = np.random.default_rng(0)
    cities = np.where(np.arange(rows) == 7, "rare", rng.choice(["Ulm", "Köln", "a, b"], rows))
    income = [None if i % 11 == 5 else value for i, value in enumerate(rng.normal(2e3, 700, rows).tolist())]
    return polars.DataFrame(
        {
            "nr": [f"P{i:04}" for i in range(rows)],
            "age": rng.integers(18, 90, rows),
            "city": cities,
            "income": income,
            "visits": rng.exponential(size=rows),
            "code": rng.integers(1, 4, rows),
            "bought": rng.choice(["no", "yes"], rows),
        }
    )


def write(frame, path):
    if path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(frame.write_csv().encode()))
    elif path.suffix == ".parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path)
    return path


def same(first, second):
    return (
        first.dtype == second.dtype and first.shape == second.shape and np.asarray(first).tobytes() == second.tobytes()
    )


@pytest.fixture
def csv(tmp_path):
    def written(text, name="clinic.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return written


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet"])
@pytest.mark.parametrize("scale", ["standard", "minmax", "none"])
def test_own_files_give_what_a_split_of_the_whole_gives(tmp_path, monkeypatch, scale, suffix):
    monkeypatch.setattr("colonnade.data.block.PIECE", 64)  # many pieces, whose sums must round alike
    monkeypatch.setattr("colonnade.data.delimited.PIECE_BYTES", 500)
    frame = table()
    whole = load(str(write(frame, tmp_path / "all.csv")), label="bought", id="nr", categorical=["code"])
    partition = split(whole, how=HOW, scale=scale, missing="mean", **PARTS)
    assert partition.validation == 30
    digests = set()
    for index, (name, columns) in enumerate(HOW.items()):
        path = write(frame.select("nr", *columns), tmp_path / f"{name}.{suffix}")
        codes = [column for column in columns if column == "code"]
        share = read_party_share(path, name=name, id="nr", categorical=codes, scale=scale, missing="mean", **BY)
        assert share.validation == 30
        assert same(share.train, partition.train[index])
        assert same(share.test, partition.test[index])
        assert (share.columns, share.shape) == (partition.columns[index], partition.shapes[index])
        assert share.notes == tuple(note for note in partition.notes if note.startswith(name))
        digests.add((share.rows, share.ids_sha256))
    server = read_server_share(
        write(frame.select("bought", "nr"), tmp_path / f"labels.{suffix}"), label="bought", id="nr", **BY
    )
    assert server.validation == 30
    assert same(server.y_train, partition.y_train)
    assert same(server.y_test, partition.y_test)
    assert server.task == partition.task
    assert digests == {(200, server.ids_sha256)}


def test_roles_of_a_partition():
    partition = split(load("digits"), how="quarters")
    party, server = party_share(partition, 2), server_share(partition)
    assert (party.name, party.shape, party.rows, server.rows) == ("party-3", (4, 4), 1797, 1797)
    assert party.train is partition.train[2]
    assert server.y_test is partition.y_test
    assert party.ids_sha256 == server.ids_sha256 == hashlib.sha256(b"rows:1797").hexdigest()


def test_notes_go_to_the_members_that_they_concern(csv):
    rows = "".join(f"{i},{'x' if i == 9 else i % 2},u{i},{i % 2}\n" for i in range(10))
    partition = split(load(str(csv("a,b,c,y\n" + rows)), label="y"), how={"p": ["a", "b"], "q": ["c"]})
    assert party_share(partition, 0).notes == ()
    assert party_share(partition, 1).notes[0].startswith("q: column 'c'")
    assert server_share(partition).notes == partition.notes[:1]


def test_the_columns_named_and_their_order(csv):
    path = csv("a,nr,b,word,d\n" + "".join(f"{i},{i},{2 * i},w,{i}\n" for i in range(8)))
    share = read_party_share(path, name="p", id="nr", columns=["d", "a..b"], scale="none", **ROWS)
    assert share.columns == ("d", "a", "b")
    np.testing.assert_array_equal(share.train[:, 2], 2 * share.train[:, 0])


def test_the_last_rows_as_test_set(csv):
    path = csv("a,y\n" + "".join(f"{i},{i % 2}\n" for i in range(8)))
    party = read_party_share(path, name="p", columns=["a"], scale="none", by=RowSplit(0.5, 0, 3, 3))
    assert party.test.ravel().tolist() == [5, 6, 7]
    assert read_server_share(path, label="y", by=RowSplit(0.5, 0, 3, 3)).y_test.tolist() == [1, 0, 1]
    for wrong in (8, -1):
        with pytest.raises(DataError, match=r"clinic.csv: -?\d test rows of 8 leave no row"):
            read_party_share(path, name="p", by=RowSplit(0.5, 0, 3, wrong))


def test_npz(tmp_path):
    x = np.random.default_rng(0).normal(size=(20, 3))
    np.savez(tmp_path / "a.npz", x=x, y=np.zeros(3), ids=np.arange(20))
    share = read_party_share(tmp_path / "a.npz", name="p", columns=["x2", "x0"], **BY)
    partition = split(from_arrays(x, np.arange(20) % 2), how={"p": ["x2", "x0"]}, **PARTS)
    assert same(share.train, partition.train[0])
    assert same(share.test, partition.test[0])
    labels = write(polars.DataFrame({"y": np.arange(20) / 8, "nr": np.arange(20)}), tmp_path / "y.csv")
    server = read_server_share(labels, label="y", id="nr", **ROWS)
    assert (server.task.kind, server.ids_sha256) == ("regression", share.ids_sha256)


@pytest.mark.parametrize(
    ("arrays", "settings", "message"),
    [
        ({"z": np.zeros(2)}, {}, "no array 'x', only: z"),
        ({"x": np.zeros((4, 2))}, {"id": "ids"}, "no array 'ids', only: x"),
        ({"x": np.zeros((4, 2)), "ids": np.zeros(3)}, {}, r"ids must have shape \(4,\), not \(3,\)"),
        ({"x": np.zeros((4, 2)), "ids": np.zeros(4, complex)}, {}, "ids must be numbers or text"),
        ({"x": np.zeros((4, 2)), "ids": np.array([1, 2, 3, 2])}, {}, "the id '2' in column 'ids' is in rows 1 and 3"),
        ({"x": np.zeros(4)}, {}, "x must be 2-D"),
        ({"x": np.full((4, 1), "a")}, {}, "x must hold real numbers"),
        ({"x": np.full((4, 1), np.nan)}, {}, "p: 4 of its values NaN.*'x0', row 0 .*party.missing = \"mean\""),
        ({"x": np.zeros((4, 2))}, {"id": "nr"}, "party.id = 'nr': an .npz file has its ids in an array 'ids'"),
        ({"x": np.zeros((4, 2))}, {"categorical": ["x0"]}, "party.categorical = .*only CSV and Parquet"),
    ],
)
def test_refused_npz(tmp_path, arrays, settings, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises((DataError, ConfigError), match=message) as caught:
        read_party_share(tmp_path / "a.npz", name="p", **settings, **ROWS)
    assert isinstance(caught.value, ConfigError) or "a.npz: " in str(caught.value)


def digest(tmp_path, ids, suffix="parquet"):
    frame = polars.DataFrame({"nr": ids, "a": range(len(ids))}, strict=False)
    path = write(frame, tmp_path / f"ids.{suffix}")
    return read_party_share(path, name="p", id="nr", **ROWS).ids_sha256


def test_ids_are_compared_as_text(tmp_path):
    expected = b"colonnade row ids, version 1\n" + b"".join(bytes(7) + b"\1" + text for text in (b"7", b"8", b"9"))
    numbers = digest(tmp_path, [7, 8, 9])
    assert numbers == hashlib.sha256(expected).hexdigest()
    decimals = polars.Series([7, 8, 9]).cast(polars.Decimal(10, 2))
    for ids in (["7", "8", " 9 "], [7.0, 8.0, 9.0], polars.Series([7, 8, 9], dtype=polars.UInt8), decimals):
        assert digest(tmp_path, ids) == numbers
        if ids is not decimals and ids[0] != 7.0:
            assert digest(tmp_path, ids, "csv") == numbers
    for ids in (["07", "8", "9"], [8, 7, 9], [7, 8], [7, 8, 9, 10], [7.5, 8.0, 9.0]):
        assert digest(tmp_path, ids) != numbers


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text("ab", min_size=1, max_size=3), min_size=2, max_size=4, unique=True), st.data())
def test_other_ids_have_another_digest(tmp_path_factory, ids, data):
    folder = tmp_path_factory.mktemp("ids")
    others = st.lists(st.text("ab", min_size=1, max_size=3), min_size=2, max_size=4, unique=True)
    other = data.draw(st.one_of(st.permutations(ids), others))
    assert (digest(folder, ids) == digest(folder, other)) == (ids == other)


def test_the_edge_between_two_ids_counts(tmp_path):
    assert digest(tmp_path, ["ab", "c"]) != digest(tmp_path, ["a", "bc"])


def test_without_ids_only_the_number_of_rows_counts(csv):
    party = read_party_share(csv("a\n1\n2\n3\n"), name="p", **ROWS)
    server = read_server_share(csv("y\nu\nv\nv\n"), label="y", **ROWS)
    assert party.ids_sha256 == server.ids_sha256 == hashlib.sha256(b"rows:3").hexdigest()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["u", "v", "u"], r"ids.parquet: the id 'u' in column 'nr' is in rows 0 and 2 \(counted from 0\)"),
        (["u", "v", " u"], "the id 'u' in column 'nr' is in rows 0 and 2"),
        (["u", None, "v"], r"row 1 \(counted from 0\) has no id in column 'nr'"),
        (["u", "v", " "], r"row 2 \(counted from 0\) has no id"),
        ([1.0, float("nan"), 2.0], "row 1 .* has no id"),
        ([[1], [2], [3]], r"column 'nr' holds List\(Int64\), which cannot be ids"),
    ],
)
def test_refused_ids(tmp_path, ids, message):
    with pytest.raises(DataError, match=message):
        digest(tmp_path, ids)
    labels = write(polars.DataFrame({"nr": ids, "y": [0, 1, 1]}), tmp_path / "y.parquet")
    with pytest.raises(DataError, match=message.removeprefix("ids.parquet: ")):
        read_server_share(labels, label="y", id="nr", **ROWS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "server"}, "party.name = 'server'"),
        ({"id": "patient"}, "party.id = 'patient': no such column in clinic.csv"),
        ({"categorical": ["agee"]}, "party.categorical = 'agee': .*did you mean 'age'"),
        ({"id": "nr", "categorical": ["nr"]}, "party.categorical = 'nr': is the label or the id"),
        ({"columns": ["agee"]}, "party.columns = 'agee': p: clinic.csv has no column 'agee'.*did you mean 'age'"),
        ({"columns": ["age", "nr..age"]}, "party.columns = 'age': p has this column twice"),
        ({"columns": []}, r"party.columns = \[\]: p has no columns"),
        ({"columns": "age"}, "party.columns = 'age': p needs a list"),
        ({"id": "nr", "columns": ["nr"]}, "party.columns = 'nr': is the id"),
        ({"scale": "log"}, "party.scale = 'log'"),
        ({"missing": "drop"}, "party.missing = 'drop'"),
    ],
)
def test_refused_settings_of_a_party(csv, settings, message):
    with pytest.raises(ConfigError, match=message):
        read_party_share(csv("nr,age\n1,30\n2,40\n3,50\n"), **{"name": "p", **ROWS, **settings})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nr,age\n1,30\n2,\n3,50\n", "clinic.csv: p: 1 of its .*column 'age', row 1 .*party.missing = \"mean\""),
        ("nr\n1\n2\n", "clinic.csv: it has no column besides the id"),
        ("nr,age\n", r"clinic.csv: there are no rows, shape \(0, 1\)"),
        ("nr,age\n1,30\n", "clinic.csv: 1 row cannot be split"),
        ("nr,age\n1,30\n2\n", "clinic.csv: cannot be read: line 3 has 1 cells"),
        (
            "nr,age\n" + "".join(f"{i},t{i}\n" for i in range(1500)),
            "clinic.csv: p: column 'age' .* set party.id if it holds ids",
        ),
    ],
)
def test_refused_files_of_a_party(csv, text, message):
    with pytest.raises(DataError, match=message):
        read_party_share(csv(text), name="p", id="nr", **ROWS)


def test_refused_paths(tmp_path):
    with pytest.raises(ConfigError, match="party.data = .*a.csv': there is no file"):
        read_party_share(tmp_path / "a.csv", name="p", **ROWS)
    with pytest.raises(ConfigError, match="party.data = .*a.xls': must end in one of .csv, .csv.gz, .parquet, .npz"):
        read_party_share(tmp_path / "a.xls", name="p", **ROWS)
    with pytest.raises(ConfigError, match="server.data = .*a.npz': must end in one of .csv, .csv.gz, .parquet, .npy; "):
        read_server_share(tmp_path / "a.npz", label="y", **ROWS)


@pytest.mark.parametrize(
    ("settings", "text", "message"),
    [
        ({"label": "z"}, "y\n0\n1\n", "server.label = 'z': no such column in labels.csv"),
        ({"label": None}, "y\n0\n1\n", "server.label = None: name the column"),
        ({"id": "nr"}, "y\n0\n1\n", "server.id = 'nr': no such column"),
        ({"id": "y"}, "y\n0\n1\n", "server.id = 'y': must not be the label as well"),
        ({}, "a,y\n1,0\n1,\n1,1\n", "labels.csv: label 'y': 1 empty values, the first in row 1 "),
        ({}, "y\n1\n1\n", "labels.csv: label 'y': .*needs two or more classes"),
        ({}, "y\n", "labels.csv: there are no rows"),
    ],
)
def test_refused_server_file(csv, settings, text, message):
    with pytest.raises((ConfigError, DataError), match=message):
        read_server_share(csv(text, "labels.csv"), **{"label": "y", **ROWS, **settings})


PARTY = PartyShare("p", ("a", "b"), np.ones((3, 4), np.float32), np.zeros((1, 4), np.float32), (2, 2), "0" * 64, ("n",))
SERVER = ServerShare(Task("multiclass", ("u", "v", "ü")), np.array([0, 1, 2]), np.array([1]), "f" * 64, ())
NUMBERS = ServerShare(
    Task("regression", ()), np.array([0.5, 1], np.float32), np.ones(2, np.float32), "a" * 64, (), validation=1
)


def test_a_share_comes_back_from_its_file(tmp_path):
    path = tmp_path / "share"
    path.write_text("an older file, open to all")
    path.chmod(0o644)
    save_share(PARTY, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    back = load_party_share(path)
    assert (back.name, back.columns, back.shape, back.ids_sha256, back.notes, back.rows) == (
        *("p", ("a", "b"), (2, 2), "0" * 64, ("n",), 4),
    )
    assert same(back.train, PARTY.train)
    assert same(back.test, PARTY.test)
    assert back.train[:2].flags.writeable, "torch wants that"
    for share in (SERVER, NUMBERS):
        save_share(share, path)
        again = load_server_share(path)
        assert (again.task, again.ids_sha256, again.notes) == (share.task, share.ids_sha256, share.notes)
        assert again.validation == share.validation
        assert same(again.y_train, share.y_train)
        assert same(again.y_test, share.y_test)
    assert [file.name for file in tmp_path.iterdir()] == ["share"]


def test_a_share_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "share"
    save_share(SERVER, path)
    odd = ServerShare(SERVER.task, SERVER.y_train, np.array(["text"]), "f" * 64, ())
    with pytest.raises(CheckpointError, match="cannot hold an array of <U4"):
        save_share(odd, path)
    assert load_server_share(path).rows == 4
    assert [file.name for file in tmp_path.iterdir()] == ["share"]
    with pytest.raises(CheckpointError, match="nowhere/share: cannot be written"):
        save_share(SERVER, tmp_path / "nowhere" / "share")


@pytest.mark.parametrize(
    ("share", "change"),
    [
        (PARTY, {"train": np.ones((3, 4))}),
        (PARTY, {"train": np.ones((3, 5), np.float32)}),
        (PARTY, {"train": [1.0]}),
        (PARTY, {"test": np.ones((0, 4), np.float32)}),
        (PARTY, {"shape": (3, 2)}),
        (PARTY, {"shape": [2, 2]}),
        (PARTY, {"shape": None}),
        (PARTY, {"name": 7}),
        (PARTY, {"columns": ("a", 1)}),
        (PARTY, {"notes": "n"}),
        (PARTY, {"ids_sha256": "short"}),
        (PARTY, {"format": 1}),
        (PARTY, {"validation": 1}),
        (PARTY, {"validation": "1"}),
        (PARTY, {"kind": "server share"}),
        (SERVER, {"classes": ("u",)}),
        (SERVER, {"classes": ()}),
        (SERVER, {"classes": "uv"}),
        (SERVER, {"y_train": np.array([0, 3])}),
        (SERVER, {"y_train": np.array([-1, 0])}),
        (SERVER, {"y_train": np.array([0.0, 1.0])}),
        (SERVER, {"y_test": np.array([], np.int64)}),
        (SERVER, {"y_test": np.array([[1]])}),
        (NUMBERS, {"y_test": np.array([np.nan], np.float32)}),
    ],
)
def test_refused_content_of_a_share(tmp_path, share, change):
    path, read = tmp_path / "share", load_party_share if share is PARTY else load_server_share
    save_share(share, path)
    content = state.unpack(path.read_bytes())
    for changed in (content | change, {key: value for key, value in content.items() if key not in change}):
        path.write_bytes(state.pack(changed))
        with pytest.raises(CheckpointError, match="share: "):
            read(path)


def test_what_is_no_share(tmp_path):
    path = tmp_path / "share"
    with pytest.raises(CheckpointError, match="share: cannot be read"):
        load_party_share(path)
    save_share(PARTY, path)
    with pytest.raises(CheckpointError, match="share: this is not a server share"):
        load_server_share(path)
    whole = path.read_bytes()
    for content in (b"", b"garbage", whole[:100], whole[:-1], state.pack([1, 2]), state.pack({"kind": "party share"})):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="share: "):
            load_party_share(path)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_a_damaged_share_is_refused_or_read(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "damaged"
    save_share(PARTY, path)
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    try:
        assert load_party_share(path).train.shape[1] == 4
    except CheckpointError as error:
        assert str(error).startswith(f"{path}: ")


def test_the_folders_of_the_example_fit_together(tmp_path, capsys):
    script = Path(__file__).parents[2] / "examples" / "deploy" / "make_folders.py"
    runpy.run_path(str(script))["main"](tmp_path)
    assert "clinic.csv: 569 patients" in capsys.readouterr().out
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.csv")) == [
        *("clinic/clinic.csv", "lab/lab.csv", "server/labels.csv"),
    ]
    shares = [
        read_party_share(tmp_path / name / f"{name}.csv", name=name, id="patient", **ROWS) for name in ("clinic", "lab")
    ]
    server = read_server_share(tmp_path / "server" / "labels.csv", label="diagnosis", id="patient", **ROWS)
    assert [share.shape for share in shares] == [(15,), (15,)]
    assert server.task.classes == ("benign", "malignant")
    assert {(share.rows, share.ids_sha256) for share in (*shares, server)} == {(569, server.ids_sha256)}


# Labels that a party holds itself


def test_a_party_may_have_the_label_in_its_own_file(tmp_path):
    frame = table()
    path = write(frame.select("nr", "age", "visits", "bought"), tmp_path / "clinic.csv")
    share = read_party_share(path, name="clinic", id="nr", label="bought", by=RowSplit(0.2, 0, 0))
    assert share.columns == ("age", "visits") and share.train.shape == (160, 2)
    held = read_server_share(path, label="bought", id="nr", by=RowSplit(0.2, 0, 0))
    task, y_train, y_test = share.labels
    assert task == held.task and same(y_train, held.y_train) and same(y_test, held.y_test)
    save_share(share, tmp_path / "share")
    task, y_train, y_test = load_party_share(tmp_path / "share").labels
    assert task == held.task and same(y_train, held.y_train) and same(y_test, held.y_test)
    assert read_party_share(path, name="clinic", id="nr", columns=["age"], by=RowSplit(0.2, 0, 0)).labels is None


def test_labels_are_no_features(tmp_path):
    path = write(table().select("nr", "age", "bought"), tmp_path / "clinic.csv")
    with pytest.raises(ConfigError, match="party.columns = 'bought': is the label, not a feature"):
        read_party_share(path, name="clinic", label="bought", columns=["age", "bought"], by=RowSplit(0.2, 0, 0))
    with pytest.raises(ConfigError, match="party.label = 'nothing'"):
        read_party_share(path, name="clinic", label="nothing", by=RowSplit(0.2, 0, 0))


def test_labels_of_a_partition_are_given_where_they_are_wanted():
    data = split(load("breast-cancer"), parties=3)
    assert party_share(data, 0).labels is None
    assert same(party_share(data, 0, labels=True).labels[1], data.y_train)
