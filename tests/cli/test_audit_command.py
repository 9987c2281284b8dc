"""`colonnade audit` and `colonnade health`, as an operator types them."""

import json
import os
import time

import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.drivers.chained_file import ChainedFile
from colonnade.drivers.health_file import HEALTH_FILE, STALE_AFTER_S, write_health
from colonnade.drivers.processes.audit import AuditLog
from colonnade.drivers.processes.certificates import throw_away


def colonnade(*words):
    found = CliRunner().invoke(app, [str(word) for word in words])
    return found.exit_code, found.output


def fail(*words):
    """The error of a command that `main` would print."""
    return str(CliRunner().invoke(app, [str(word) for word in words]).exception)


@pytest.fixture
def folder(tmp_path):
    audit = AuditLog(tmp_path / "audit.jsonl", "server")
    audit.note("started", {"aim": "training"})
    audit.note("joined", {"peer": "bank"})
    audit.note("refused", {"peer": "stranger", "cause": "is not on the list of parties"})
    audit.close()
    return tmp_path


def test_a_whole_log_is_verified_and_its_receipt_holds(folder):
    code, said = colonnade("audit", "verify", folder)
    assert code == 0 and "3 lines; receipt 2:" in said
    receipt = said.split("receipt ")[1].strip()
    assert colonnade("audit", "verify", folder / "audit.jsonl", "--receipt", receipt)[0] == 0
    lines = (folder / "audit.jsonl").read_text().splitlines(keepends=True)
    (folder / "audit.jsonl").write_text("".join(lines[:2]))
    assert colonnade("audit", "verify", folder)[0] == 0, "a cut at the end needs the receipt"
    code, said = colonnade("audit", "verify", folder, "--receipt", receipt)
    assert code == 1 and f"no line is {receipt}" in said.replace("\n", " ")


def test_an_edit_ends_with_the_line_and_exit_code_1(folder):
    path = folder / "audit.jsonl"
    path.write_text(path.read_text().replace("stranger", "nobody"))
    code, said = colonnade("audit", "verify", folder)
    assert code == 1 and "line 3: does not follow" in said.replace("\n", " ")


def test_the_record_of_questions_is_verified_too(folder):
    questions = ChainedFile(folder / "predict" / "audit.jsonl", 10**6, 1)
    questions.append({"time": "2026-11-16T21:40:03Z", "who": "server ab", "ids": 5, "answered": 5})
    questions.close()
    assert colonnade("audit", "verify", folder)[1].count("Whole:") == 2
    assert "question  who='server ab' ids=5" in colonnade("audit", "show", folder)[1]


def test_show_filters_by_time_and_event(folder):
    _, said = colonnade("audit", "show", folder)
    assert len(said.splitlines()) == 3 and "joined  peer=bank" in said
    _, said = colonnade("audit", "show", folder, "--event", "refused", "--json")
    assert [json.loads(line)["fields"]["peer"] for line in said.splitlines()] == ["stranger"]
    assert colonnade("audit", "show", folder, "--since", "1h", "--last", "1")[1].count("\n") == 1
    assert "No such line" in colonnade("audit", "show", folder, "--since", "2100-01-01")[1]
    assert "--since = 'soon'" in fail("audit", "show", folder, "--since", "soon")


def test_what_is_no_audit_log_is_said(tmp_path):
    assert "has no audit.jsonl" in fail("audit", "verify", tmp_path)
    assert "64 hexadecimal digits" in fail("audit", "verify", tmp_path, "--receipt", "1")


def test_health_of_a_folder_and_of_a_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs" / "bank"
    runs.mkdir(parents=True)
    code, said = colonnade("health", tmp_path)
    assert code == 1 and "no process runs here" in said
    assert colonnade("health", tmp_path / "not there yet")[0] == 1, "a probe may come before the first start"
    write_health(runs, "bank", "training", os.getpid(), ["not connected to the server"])
    assert colonnade("health", runs) == (0, "bank: ok (training)\n")
    assert colonnade("health", tmp_path) == (0, "bank: ok (training)\n")
    code, said = colonnade("health", runs, "--ready")
    assert code == 1 and "not connected to the server" in said
    throw_away(("bank",), tmp_path / "keys")
    (tmp_path / "bank.toml").write_text('[network]\ncertificate = "keys/bank.pem"\n')
    assert colonnade("health", "bank.toml") == (0, "bank: ok (training)\n")
    (tmp_path / "bank.toml").write_text("[network]\n")
    assert "no network.certificate" in fail("health", "bank.toml")


@pytest.mark.parametrize("when", ["old", "before the boot", "another boot", "torn"])
def test_a_process_that_is_gone_is_not_healthy(when, tmp_path, monkeypatch):
    write_health(tmp_path, "bank", "training", 1, [])
    path = tmp_path / HEALTH_FILE
    if when == "torn":
        path.write_text('{"role": "ba')
    elif when == "another boot":
        path.write_text(path.read_text().replace('"boot":"', '"boot":"ff'))
    else:
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + STALE_AFTER_S + 1 if when == "old" else now - 100)
    assert colonnade("health", tmp_path)[0] == 1
