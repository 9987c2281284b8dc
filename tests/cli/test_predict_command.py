"""`colonnade predict`: what it reads, writes and refuses; and a slow test with real processes that are killed."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars
import pytest

from colonnade.cli.predict import predict
from colonnade.predict.asking import read_ids, write_answers
from colonnade.protocol.errors import ConfigError, DataError

PATIENCE_S = 120.0
ALL = "party-1 party-2 party-3"
CONFIG = """
[data]
source = "digits"
parties = 3
[model]
party = "linear"
embedding = 4
[train]
updates = 200
eval_every = 100
party_dropout = 0.2
[predict]
http = "127.0.0.1:0"
deadline_s = 1.0
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(CONFIG)
    (tmp_path / "ids.txt").write_text("0\n5\n\n 17 \nnobody\n")
    return tmp_path


def test_ids_are_lines_or_a_column(here):
    assert read_ids(here / "ids.txt", None) == ["0", "5", "17", "nobody"]
    polars.DataFrame({"client": [7, 8]}).write_parquet(here / "one.parquet")
    assert read_ids(here / "one.parquet", None) == ["7", "8"]
    (here / "two.csv").write_text("client,age\n007,1\n8,2\n")
    assert read_ids(here / "two.csv", "client") == ["007", "8"]


@pytest.mark.parametrize(
    ("name", "column", "words"),
    [
        ("none.txt", None, "there is no such file"),
        ("empty.txt", None, "has no ids"),
        ("two.csv", None, "name the column of two.csv with the ids: client, age"),
        ("two.csv", "clients", "did you mean 'client'"),
    ],
)
def test_a_file_without_ids_is_refused(here, name, column, words):
    (here / "empty.txt").write_text("\n")
    (here / "two.csv").write_text("client,age\n7,1\n")
    with pytest.raises(ConfigError, match=words):
        read_ids(here / name, column)


def test_an_id_twice_in_a_table_is_named(here):
    (here / "two.csv").write_text("client\n7\n7\n")
    with pytest.raises(DataError, match="'7'"):
        read_ids(here / "two.csv", None)


def test_answers_are_written_so_that_no_bit_is_lost(here):
    answer = {
        "id": "a,b", "prediction": "yes", "probabilities": [1 / 3, 2 / 3], "parties": ["bank", "shop"], "cached": [],
        "fallback": ["insurer"], "refused": None,
    }  # fmt: skip
    refused = answer | {"prediction": None, "probabilities": None, "parties": [], "fallback": [], "refused": "nobody"}
    write_answers(here / "out.csv", ["no", "yes"], [answer, refused])
    with (here / "out.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert float(first["probability of no"]) == 1 / 3 and first["id"] == "a,b"
    assert (first["parties"], first["fallback"], first["refused"]) == ("bank shop", "insurer", "")
    assert (second["prediction"], second["probability of yes"], second["refused"]) == ("", "", "nobody")


def test_without_a_server_it_says_what_to_start(here):
    with pytest.raises(ConfigError, match="colonnade serve small.toml --predict"):
        predict(Path("small.toml"), Path("ids.txt"), Path("out.csv"))
    folder = here / "runs" / "small-server" / "predict"
    folder.mkdir(parents=True)
    (folder / "http").write_text("http://127.0.0.1:9")  # where nobody listens
    with pytest.raises(ConfigError, match="no server answers at http://127.0.0.1:9"):
        predict(Path("small.toml"), Path("ids.txt"), Path("out.csv"))


def start(here, *arguments):
    log = (here / f"log-{time.monotonic_ns()}").open("wb")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120", "TERM": "dumb"}
    command = [sys.executable, "-m", "colonnade", *map(str, arguments)]
    with log:
        return subprocess.Popen(command, cwd=here, stdout=log, stderr=log, env=environment)


def pid_of(here, name):
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_text().split("\0")
        except OSError:
            continue
        if "--party" in words and words[words.index("--party") + 1] == name and any(str(here) in w for w in words):
            return int(folder.name)
    return None


@pytest.mark.slow
def test_a_federation_stays_up_and_answers_while_any_member_is_killed(here):
    def ask(out):
        asked = start(here, "predict", "small.toml", "--run", here / "run", "--ids", "ids.txt", "--out", out)
        assert asked.wait(PATIENCE_S) == 0
        return polars.read_csv(here / out, infer_schema=False).fill_null("").to_dicts()

    up = start(here, "up", "small.toml", "--predict", "--out", here / "run")
    try:
        door = here / "run" / "nodes" / "server" / "run" / "predict" / "http"
        until = time.monotonic() + PATIENCE_S
        while not door.is_file():
            assert up.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        stayed = ask("stayed.csv")
        while any(row["parties"] != ALL for row in stayed[:3]):  # not all are back yet
            assert time.monotonic() < until + PATIENCE_S
            stayed = ask("stayed.csv")
        os.kill(pid_of(here, "party-2"), signal.SIGKILL)  # `up` starts it again
        rows = ask("killed.csv")
        assert all("party-1" in row["parties"] and not row["refused"] for row in rows[:3])
        assert rows[3]["refused"]
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(PATIENCE_S)
    first, again = ask("first.csv"), ask("again.csv")  # from the checkpoints, and once more
    assert first == again and [row["parties"] for row in first[:3]] == [ALL] * 3
    assert [row["probability of 0"] for row in first] == [row["probability of 0"] for row in stayed]
