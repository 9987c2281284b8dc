"""The ledger: written before the message, chained, and refused if it was altered."""

import json
import os
from math import inf

import numpy as np
import pytest

from colonnade.drivers.ledger_file import LedgerFile, read_ledger
from colonnade.privacy.ledger import Ledger
from colonnade.protocol.errors import CheckpointError

TERMS = {"party": "p", "mechanism": "output", "clip": 1.0, "noise": 5.0, "local_updates": "plain",
         "train_rows": 100, "test_rows": 20}  # fmt: skip


def enter(ledger, rows=4, most=inf, of=None, what="batch"):
    return ledger.enter(what, "gaussian", 2.0, 5.0, "train", rows, of, most)


_OPEN = []


@pytest.fixture
def written(tmp_path):
    ledger = Ledger(TERMS)
    path = tmp_path / "deep" / "ledger.jsonl"
    ledger.keep(LedgerFile(path))
    _OPEN.append(ledger)
    receipts = [enter(ledger) for _ in range(5)]
    yield ledger, receipts, path
    ledger.close()


def reopened(path, terms=TERMS):
    """Opened by another process: the first one is gone."""
    while _OPEN:
        _OPEN.pop().close()
    ledger = Ledger(terms)
    ledger.keep(LedgerFile(path))
    return ledger


def test_it_is_on_the_disk_before_the_receipt_is_given(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(os, "fsync", lambda file: calls.append(path.read_text().count("\n") if path.exists() else 0))
    path = tmp_path / "ledger.jsonl"
    ledger = reopened(path)
    calls.clear()
    assert enter(ledger) == ledger.head
    assert calls == [2], "synced once, with its line"
    ledger.close()


def test_what_was_written_counts_after_a_restart(written):
    ledger, receipts, path = written
    again = reopened(path)
    assert again.head == receipts[-1] and again.account.mu == ledger.account.mu
    assert enter(again).startswith("6:")
    again.close()
    terms, lines, account = read_ledger(path)
    assert terms["party"] == "p" and [line["n"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert account.mu == pytest.approx(0.4 * 6**0.5) == lines[-1]["mu"]


def test_a_budget_stops_the_line_that_would_exceed_it_and_writes_nothing(written):
    ledger, _, path = written
    before = path.read_bytes()
    assert enter(ledger, most=0.4 * 5.99**0.5) is None
    assert path.read_bytes() == before
    assert enter(ledger, most=0.4 * 6.01**0.5) is not None


def change(path, line, **fields):
    lines = path.read_text().splitlines()
    lines[line] = json.dumps(json.loads(lines[line]) | fields)
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("line", [0, 1, 3, 5])
def test_an_edited_line_is_named(written, line):
    change(written[2], line, noise=50.0)
    with pytest.raises(
        CheckpointError, match=f"ledger.jsonl: line {line + 1} does not follow from the lines before it"
    ):
        reopened(written[2])


def test_a_line_taken_out_or_put_in_is_named(written):
    path = written[2]
    lines = path.read_text().splitlines(keepends=True)
    for altered, named in ((lines[:2] + lines[3:], 3), (lines[:3] + lines[2:], 4), (lines[1:], 1), (["{}\n"], 1)):
        path.write_text("".join(altered))
        with pytest.raises(CheckpointError, match=f"line {named} does not follow"):
            read_ledger(path)


def test_one_that_was_rolled_back_is_refused_by_the_receipt(written):
    _, receipts, path = written
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4]))
    again = reopened(path)
    again.require(receipts[2])
    with pytest.raises(CheckpointError, match="ends with line 4, but line 6 was written: the file was rolled back"):
        again.require(receipts[-1])
    enter(again, rows=9)
    with pytest.raises(CheckpointError, match="line 5 is not the one that was written"):
        again.require(receipts[3])
    again.close()


def test_a_line_cut_off_while_it_was_written_never_left(written):
    _, receipts, path = written
    with path.open("a") as file:
        file.write('{"n": 6, "what": "ba')
    again = reopened(path)
    again.require(receipts[-1])
    assert enter(again).startswith("6:")
    assert len(read_ledger(path)[1]) == 6
    again.close()


def test_two_processes_do_not_write_one_ledger(written):
    second = Ledger(TERMS)
    with pytest.raises(CheckpointError, match="another process writes this ledger"):
        second.keep(LedgerFile(written[2]))
    assert enter(written[0]).startswith("6:"), "the first goes on"


def test_other_terms_are_refused_with_the_key(written):
    with pytest.raises(CheckpointError, match="line 1: this ledger has noise = 5.0, but the config has 0.5"):
        reopened(written[2], TERMS | {"noise": 0.5})


def test_a_full_disk_uploads_nothing(written, monkeypatch):
    def full(file, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(CheckpointError, match="cannot be written \\(No space left on device\\): nothing is uploaded"):
        enter(written[0])


def test_rows_are_kept_where_records_are_counted_one_by_one(tmp_path):
    terms = TERMS | {"local_updates": "dp-sgd"}
    path = tmp_path / "ledger.jsonl"
    ledger = reopened(path, terms)
    for rows in ([1, 2, 3], [3, 4], [3, 3]):
        enter(ledger, len(rows), of=np.array(rows, np.int32))
    assert read_ledger(path)[2].mu == ledger.account.mu == pytest.approx(0.4 * 2)
    ledger.close()


def test_no_receipt_and_no_ledger(tmp_path):
    with pytest.raises(CheckpointError, match="is not a receipt"):
        Ledger(TERMS).require("nonsense")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_ledger(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(CheckpointError, match="this is not the first line of a ledger"):
        read_ledger(tmp_path / "empty.jsonl")
