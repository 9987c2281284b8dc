"""`colonnade attack`: its output, its files, and its section in the report."""

import json
import re
import sys
from pathlib import Path

import pytest

from colonnade.cli.main import main
from colonnade.cli.printing import console
from colonnade.report.page import write_report


@pytest.fixture
def colonnade(monkeypatch, capsys, tmp_path):
    """`colonnade ARGS` in a folder of its own: (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "width", 140)
    monkeypatch.setenv("TERM", "dumb")

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["colonnade", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return call


def test_table_json_and_report(colonnade, tmp_path: Path) -> None:
    arguments = ("--protocols", "vafl,cascaded", "--attackers", "curious", "--trials", 2, "--out", tmp_path / "a")
    code, out, _ = colonnade("attack", "label-inference", *arguments)
    assert code == 0
    assert "100.00 ± 0.00" in out and "curious client" in out
    blind = r"1\d\.\d% by always guessing the most frequent class, 10\.\d% by guessing each class as often as it occurs"
    assert re.search(blind, " ".join(out.split()))
    data = "digits: 1,294 training rows, 10 classes; 2 parties with their columns: party-1 (32), party-2 (32)"
    assert f"Data: {data}" in out
    said = json.loads((tmp_path / "a" / "attack.json").read_text())
    assert said["attack"] == "label-inference" and said["trials"] == 2
    assert (said["data"]["name"], said["data"]["rows"], said["data"]["text"]) == ("digits", 1294, data)
    assert [outcome["method"] for outcome in said["outcomes"]] == ["vafl", "cascaded"]
    assert said["outcomes"][0]["success"] == 1.0
    page = write_report(tmp_path / "a").read_text()
    assert "Attack: label-inference" in page and 'id="attack"' in page and "100.00 ± 0.00 %" in page
    assert "colonnade attack label-inference" in page  # the command
    assert f"Data: {data}" in page
    code, _, err = colonnade("attack", "label-inference", *arguments)
    assert code == 2 and "exists and is not empty" in err


def test_help_lists_attacks(colonnade) -> None:
    code, out, _ = colonnade("attack", "--help")
    assert code == 0 and "label-inference" in out and "Read labels off the server's answers" in out


def test_unknown_attack(colonnade) -> None:
    code, _, err = colonnade("attack", "label-infernce")
    assert code == 2 and "Did you mean 'label-inference'" in err


def test_refusal_is_one_line(colonnade) -> None:
    code, _, err = colonnade("attack", "label-inference", "--set", "model.server=linear")
    assert code == 2 and len(err.splitlines()) == 1 and "model.server = 'linear'" in err


@pytest.mark.parametrize("attack", ["label-inference", "feature-inversion"])
def test_a_side_of_a_real_federation_is_not_attacked_on_other_data(attack: str, colonnade, tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text('[server]\ndata = "labels.csv"\nlabel = "ill"\n')
    code, out, err = colonnade("attack", attack, "server.toml", "--trials", 1)
    assert code == 2 and out == "" and len(err.splitlines()) == 1
    assert "server.data = 'labels.csv': belongs to one member of a real federation" in err


def test_an_attacker_without_a_method_to_attack(colonnade) -> None:
    code, _, err = colonnade("attack", "label-inference", "--protocols", "flex", "--attackers", "adaptive")
    assert code == 2 and "--attackers = 'adaptive': these attackers cannot attack flex" in err
