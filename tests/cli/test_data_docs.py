"""docs/data.md: `colonnade data` and other dialects work as the page says."""

import gzip
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars
import pytest
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


def made_up_files(folder):
    """Files under the names and with the columns that the commands of the page name."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(60, 4)).astype(np.float32), random.integers(0, 2, 60)
    bank = polars.DataFrame({"nr": np.arange(60), "age": x[:, 0], "income": x[:, 1], "bought": y})
    bank.write_csv(folder / "bank.csv")
    bank.drop("nr").write_parquet(folder / "bank.parquet")
    np.savez(folder / "bank.npz", x=x, y=y)
    texts = [f"offer {i} now" if label else f"meeting at {i}" for i, label in enumerate(y)]
    polars.DataFrame({"subject": texts, "body": texts[::-1], "kind": y}).write_csv(folder / "mail.csv")
    np.savez(folder / "two.npz", x_bank=x[:, :2], x_shop=x[:, 2:], y=y)
    lines = "".join(f"{2 * label - 1} 1:{row[0]:.3f} 3:{row[1]:.3f}\n" for row, label in zip(x, y, strict=True))
    with gzip.open(folder / "rows.svm.gz", "wt") as file:
        file.write(lines)
    (folder / "downloads").mkdir()
    for name in ("a9a", "a9a.t"):
        (folder / "downloads" / name).write_text(lines)
    names = ["ID", "LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "default.payment.next.month"]
    codes = np.column_stack([np.arange(60), random.integers(1, 9, 60), random.integers(1, 3, (60, 3)), y])
    (folder / "data/uci-credit-card").mkdir(parents=True)
    with gzip.open(folder / "data/uci-credit-card/UCI_Credit_Card.csv.gz", "wt") as file:
        file.write(polars.DataFrame(codes, schema=names, orient="row").write_csv())


BLOCKS = re.sub(r"\\\n *", "", PAGE)
RUNS = re.findall(r"(?:^    |\| `)colonnade (run --set data.source=[^`|\n]*)", BLOCKS, re.MULTILINE)
# Files that their owners publish: the repository does not have them.
PUBLISHED = ("mnist", "cifar10", "a9a --set data.dir", "mfeat", "physionet2012", "adult.data")


def test_the_page_has_these_commands():
    assert len(RUNS) == 17 and sum(f"data.source={name}" in run for run in RUNS for name in PUBLISHED) == 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    made_up_files(folder)
    return folder


def test_the_commands_of_the_page_train(folder, monkeypatch):
    """Those of the table of sources, too."""
    monkeypatch.chdir(folder)
    short = ["--set", "train.updates=2", "--set", "model.party=linear", "--set", "data.parties=2"]
    for run in RUNS:
        if not any(f"data.source={name}" in run for name in PUBLISHED):
            made = CliRunner().invoke(app, [*shlex.split(run), *short])
            assert made.exit_code == 0, f"{run}\n{made.output}{made.exception}"


def test_vertibench_measures_a_split_as_the_page_says():
    """In its own process: vertibench leaves a pool of threads open."""
    pytest.importorskip("vertibench", reason="the extra vertibench is not installed")
    program = re.search(r"```python\n(import numpy as np\n.*?vertibench.*?)```", PAGE, re.DOTALL)[1]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "[0.64" in done.stdout and "-0.013" in done.stdout
