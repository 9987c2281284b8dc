"""examples/spam_csv.py: the table of texts that an item of the book trains on."""

import csv
import json
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "examples" / "spam_csv.py"
MIXED = """From: a@example.org
Subject: =?utf-8?q?hello?=
Content-Type: multipart/alternative; boundary=xx

--xx
Content-Type: text/html

<p>second choice</p>
--xx
Content-Type: text/plain

first,  choice
of "two"
--xx--
"""


def convert(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments)])
    runpy.run_path(str(SCRIPT), run_name="__main__")


def test_one_row_for_each_mail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mails = {"easy-ham-1": MIXED, "spam-2": "Subject: win\nContent-Type: text/html\n\n<b>now</b>\n", "hard-ham-1": "\n"}
    for group, text in mails.items():
        folder = tmp_path / "package" / "data" / group
        folder.mkdir(parents=True)
        (folder / "00001.abc.json").write_text(json.dumps({"id": "00001", "group": group, "text": text}), "utf-8")
    convert(monkeypatch, tmp_path / "package", tmp_path / "out" / "spam.csv")
    with (tmp_path / "out" / "spam.csv").open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [
            ["nr", "subject", "body", "kind"],
            ["easy-ham-1/00001", "=?utf-8?q?hello?=", 'first, choice of "two"', "ham"],
            ["hard-ham-1/00001", "", "", "ham"],
            ["spam-2/00001", "win", "<b>now</b>", "spam"],
        ]


def test_a_folder_without_mails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="no e-mails in data"):
        convert(monkeypatch, tmp_path, tmp_path / "spam.csv")
    assert not (tmp_path / "spam.csv").exists()
