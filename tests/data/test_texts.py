"""Texts: a vocabulary of the training rows alone, word numbers by hand, and what is refused."""

import json

import numpy as np
import polars
import pytest
from typer.testing import CliRunner

import colonnade
from colonnade.cli.main import app
from colonnade.config.resolve import federation
from colonnade.config.schema import from_dict
from colonnade.data import RowSplit, load, split
from colonnade.data.texts import tokens, vocabulary_of, words_of
from colonnade.protocol.errors import ConfigError, DataError

UNIT = 1 << 16


def test_words():
    assert list(words_of("It's 2 o'clock: GO, go_on! Ünïcode")) == ["it's", "2", "o'clock", "go", "go", "on", "ünïcode"]
    assert list(words_of("missing")) == [] == list(words_of(" .,-_ "))
    assert [len(word) for word in words_of("x" * 1000)] == [40]


def test_a_vocabulary_and_its_numbers_by_hand():
    documents = ("b a a", "c b", "never counted: z z z z", "a")
    words = vocabulary_of(documents, np.array([1, 2, 0, 1]), size=4)
    assert words == ("a", "b")  # 3 of each, in alphabetical order; c has 2; two numbers are for padding and unknown
    assert vocabulary_of(documents, np.array([1, 2, 0, 1]), size=100) == ("a", "b", "c")
    numbers = tokens(("a b c", "", "B a b a b"), words, 4)
    assert numbers.dtype == np.float32
    assert (numbers * UNIT).tolist() == [[2, 3, 1, 0], [0, 0, 0, 0], [3, 2, 3, 2]]
    top = tokens(("w65533",), tuple(f"w{i}" for i in range(65_534)), 1)
    assert (top * UNIT).tolist() == [[65_535]]  # the largest number is exact


def table(rows=40):
    said = [f"row {i} {'good' if i % 2 else 'bad'} word" for i in range(rows)]
    return polars.DataFrame({"said": said, "n": range(rows), "kind": [i % 2 for i in range(rows)]})


def test_only_training_rows_make_the_vocabulary(tmp_path):
    table().write_csv(tmp_path / "t.csv")
    data = split(load(str(tmp_path / "t.csv"), label="kind"), parties=2, text=["said"], text_length=4)
    (train, held), _ = RowSplit(0.2, 0.1, 0).of("t", 40)
    encoder = data.encoders[0]
    assert set(encoder.categories[0]) == {"row", "word", "good", "bad", *(str(i) for i in train)}
    assert encoder.features == ("said[0]", "said[1]", "said[2]", "said[3]") and data.shapes == ((4, 1), (1,))
    assert data.train[0].shape == (len(train), 4)
    assert (data.test[0][:, 1] * UNIT).tolist() == [1] * len(held)  # the numbers of held-out rows are unknown words
    assert not any("only in held-out rows" in note for note in data.notes)
    row = data.block(0, {"said": ["row 7 GOOD thing", None]})
    number = {word: place for place, word in enumerate(encoder.categories[0], 2)}
    assert (row * UNIT).tolist() == [[number["row"], number.get("7", 1), number["good"], 1], [0, 0, 0, 0]]


def test_a_party_may_hold_a_text_beside_numbers(tmp_path):
    table().write_csv(tmp_path / "t.csv")
    data = split(load(str(tmp_path / "t.csv"), label="kind"), parties=1, text=["said"], text_length=3)
    assert data.shapes == ((4,),) and data.encoders[0].features[-1] == "n"
    assert abs(data.train[0][:, 3].mean()) < 1e-6 and data.train[0][:, :3].max() < 1e-2  # only n is standardised


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"text": ["sad"]}, r"data.text = 'sad': t has no column 'sad' \(did you mean 'said'\?\)"),
        ({"text": ["n"]}, "column 'n' of t holds numbers, not texts"),
        ({"text": ["said"], "vocabulary": 2}, "data.vocabulary = 2: must be from 3 to 65,536"),
        ({"text": ["said"], "vocabulary": 70_000}, "must be from 3 to 65,536"),
        ({"text": ["said"], "text_length": 0}, "data.text_length = 0: must be from 1 to 4,096"),
    ],
)
def test_refused(tmp_path, settings, why):
    table().write_csv(tmp_path / "t.csv")
    with pytest.raises(ConfigError, match=why):
        split(load(str(tmp_path / "t.csv"), label="kind"), parties=2, **settings)


def test_many_documents_without_the_key_name_it(tmp_path):
    table(2000).write_csv(tmp_path / "t.csv")
    with pytest.raises(DataError, match="name it in data.text if it holds documents"):
        split(load(str(tmp_path / "t.csv"), label="kind"), parties=2)


def test_a_run_learns_from_texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table(200).write_csv("t.csv")
    words = (
        "run --set data.source=t.csv --set data.label=kind --set data.text_length=8 --set model.party=transformer:50"
    )
    more = ["--set", 'data.text=["said"]', "--set", 'data.split={one=["said"]}', "--set", "protocol.name=sync"]
    made = CliRunner().invoke(app, [*words.split(), *more, "--set", "train.epochs=10", "--out", "run"])
    assert made.exit_code == 0, made.output
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["accuracy"] > 0.9


def test_continuing_and_accounting_by_record_are_refused(tmp_path):
    table().write_csv(tmp_path / "t.csv")
    data = split(load(str(tmp_path / "t.csv"), label="kind"), parties=2, text=["said"])
    result = colonnade.train(data, "sync", ["transformer", "linear"], updates=2)
    with pytest.raises(DataError, match="text columns cannot be continued"):
        colonnade.split(load(str(tmp_path / "t.csv"), label="kind"), parties=2, text=["said"], like=result)
    private = {"mechanism": "output", "clip": 1.0, "noise": 5.0, "local_updates": "answers"}
    tables = {"data": {"text": ["said"], "scale": "none"}, "protocol": {"name": "cascaded"}, "privacy": private}
    plain = split(load(str(tmp_path / "t.csv"), label="kind"), parties=2, text=["said"], scale="none")
    with pytest.raises(ConfigError, match="the vocabulary is fitted on the training rows"):
        federation(from_dict(tables), plain)
