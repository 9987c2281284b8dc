"""docs/data.md: `colonnade data` and other dialects work as the page says."""

import json
import re
from pathlib import Path

from typer.testing import CliRunner

from colonnade.cli.main import app

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")


def test_getting_a_built_in_set_prints_what_the_page_shows():
    console = re.search(r"```console\n\$ colonnade (data get wine)\n(.*?)\$", PAGE, re.DOTALL)
    assert CliRunner().invoke(app, console[1].split()).output == console[2]


def test_the_census_data_as_they_are_published_train(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        "39, State-gov, 77516, Bachelors, 13, Single, Clerk, Own-child, White, Male, 2174, 0, 40, United-States, <=50K",
        "50, ?, 83311, Bachelors, 13, Married, ?, Husband, White, Male, 0, 0, 13, ?, >50K",
    ]
    (tmp_path / "adult.data").write_text("\n".join(rows * 40) + "\n\n")
    command = re.search(r"^    colonnade (run --set data.source=adult.data .*)$", PAGE, re.MULTILINE)[1].split()
    made = CliRunner().invoke(
        app, [*command, "--set", "train.updates=3", "--set", "model.party=linear", "--out", "run"]
    )
    assert made.exit_code == 0, made.output
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["test_rows"] == 16
