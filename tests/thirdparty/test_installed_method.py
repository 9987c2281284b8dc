"""A package that imports Colonnade, and that Colonnade does not know: installed by pip, it adds a whole method."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "src"

# One process for all: importing torch takes longer than the rest.
STORY = """
import json, sys
import colonnade
assert "colonnade_median" not in sys.modules
from colonnade.cli.main import main

def command(*arguments):
    sys.argv = ["colonnade", *arguments]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, arguments

command("protocols")
settings = ["data.source=breast-cancer", "data.parties=3", "model.aggregate=mean", "train.learning_rate=0.1",
            "train.epochs=3", "protocol.name=median", "protocol.taken=1"]
command("run", "--out", "run", *(word for setting in settings for word in ("--set", setting)))
race = ["data.source=breast-cancer", "data.parties=3", "train.updates=3"]
command("compare", "--protocols", "sync,median", "--out", "race", *(word for one in race for word in ("--set", one)))
who = ("--protocols", "median", "--attackers", "curious", "--trials", "1", "--set", settings[0])
command("attack", "label-inference", *who, "--out", "attack")

table = colonnade.load("breast-cancer")
data = colonnade.split(table, parties=3)
result = colonnade.train(data, "median", aggregate="mean", learning_rate=0.1, epochs=3)
test = data.ids[len(data.y_train) + data.validation :].cast(int).to_numpy()
right = (result.predict(table.x[test]).argmax(1) == data.y_test[data.validation :]).mean()
print(json.dumps({"accuracy": result.summary["accuracy"], "right": right}))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """As `pip install` leaves it, in a folder of its own; built from a copy, since builds leave files behind."""
    folder = tmp_path_factory.mktemp("installed")
    copy = shutil.copytree(HERE / "colonnade_median", folder / "source")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--no-compile", "--disable-pip-version-check")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", *options, "--target", folder / "site", copy)
    subprocess.run(pip, check=True, capture_output=True, timeout=120)
    return folder / "site"


def test_the_package_brings_its_method_with_prediction_attack_and_page(installed, tmp_path):
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (SOURCES, installed))), "COLUMNS": "200", "TERM": "dumb",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    told = subprocess.run(
        [sys.executable, "-c", STORY], check=False, cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=240,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert "median" in told.stdout and "Cannot be used" not in told.stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert (summary["protocol"], summary["status"]) == ("median", "finished") and summary["accuracy"] > 0.85
    raced = json.loads((tmp_path / "race" / "comparison.json").read_text(encoding="utf-8"))
    assert [one["label"] for one in raced] == ["sync", "median"], "with its own defaults, and nothing declared"
    (outcome,) = json.loads((tmp_path / "attack" / "attack.json").read_text(encoding="utf-8"))["outcomes"]
    assert outcome["method"] == "median" and outcome["success"] > 0.9, "its gradients tell labels, as its page says"
    found = json.loads(told.stdout.splitlines()[-1])
    assert found["right"] == found["accuracy"] > 0.85, "predictions agree with the evaluation"
    assert "`median`" in (installed / "colonnade_median" / "median.md").read_text(encoding="utf-8")
