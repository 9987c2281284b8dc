"""`colonnade invite`, `accept` and `admit` as they are typed. tests/deployment/test_invitation.py has the rest."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app, main
from colonnade.config.first import Answers, write_first_config
from colonnade.config.schema import read_toml


@pytest.fixture
def colonnade(monkeypatch, capsys, tmp_path):
    """`colonnade ARGS` in the server's folder: (exit code, output, errors)."""
    write_first_config(tmp_path, Answers("server", ("bank", "shop"), "data/y.csv", "nr", "y"))
    (tmp_path / "t.csv").write_text("nr,a,b\n1,2,3\n")
    monkeypatch.chdir(tmp_path)

    def call(line):
        monkeypatch.setattr(sys, "argv", ["colonnade", *line.split()])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return call


def test_the_codes_are_the_same_on_both_sides(colonnade):
    _, out, _ = colonnade("invite bank shop --address train.example.org:7450")
    codes = [line for line in out.splitlines() if "code" in line][:2]
    _, bank, _ = colonnade("accept bank.invitation --data t.csv --id nr --columns a --set party.scale=none --dir b")
    assert codes[0] in bank and "train.example.org:7450" in bank and "in b, with the answer" in bank
    assert read_toml("b/bank.toml")["party"]["data"] == "../t.csv"
    assert read_toml("b/bank.toml")["party"]["scale"] == "none"
    _, shop, _ = colonnade("accept shop.invitation --data t.csv --id nr --dir s")
    assert codes[1] in shop
    asked = [line.rpartition(": ")[2] for text in (bank, shop) for line in text.splitlines() if "code of" in line]
    _, out, _ = colonnade("admit b/bank.request s/shop.request")
    assert all(code in out for code in asked)
    of_members = next(line for line in out.splitlines() if "code of the members" in line)
    for place in ("b/bank", "s/shop"):
        name = Path(place).name
        assert of_members in colonnade(f"accept {name}.answer --dir {Path(place).parent}")[1]


REFUSED = {
    "invite lab": "NAME = 'lab': is not in network.parties",
    "invite shop --config other.toml": "there is no such file",
    "invite shop --days 0": "--days = 0: must lie between 1 and 366",
    "accept shop.invitation": "--data = None: add the flag",
    "accept t.csv": "is not an invitation, a request or an answer",
    "accept s/shop.request": "the federation takes it: colonnade admit shop.request",
    "accept shop.answer --data t.csv": "is for an invitation; an answer needs only --dir",
    "accept shop.invitation --data t.csv --id nr --set train.seed=1": "only the federation sets it",
    "admit nothing.request": "there is no such file",
    "admit shop.answer": "is an answer, not a request",
}


def test_what_is_refused(colonnade):
    colonnade("invite bank shop")
    for name in ("bank", "shop"):
        colonnade(f"accept {name}.invitation --data t.csv --id nr --dir {name[0]}")
    colonnade("admit b/bank.request s/shop.request")
    for line, said in REFUSED.items():
        code, _, err = colonnade(line)
        assert code == 2 and said in err.replace("\n", " ") and "Traceback" not in err, line


def test_help_has_examples():
    for command in ("invite", "accept", "admit", "check"):
        shown = CliRunner().invoke(app, [command, "--help"]).output
        assert f"colonnade {command}" in shown.partition("Examples")[2]
