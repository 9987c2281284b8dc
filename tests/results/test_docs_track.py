"""docs/track.md: its config is valid, its program runs, and it lists what is sent."""

import re
import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.config.schema import from_dict
from colonnade.results.track import numbers_of

PAGE = (Path(__file__).parents[2] / "docs" / "track.md").read_text(encoding="utf-8")


def block(language):
    return re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[1]


def test_the_config_is_one():
    assert from_dict(tomllib.loads(block("toml"))).track.to == ["mlflow", "tensorboard", "wandb"]


def test_the_program_runs(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(block("python"), "docs/track.md", "exec"), names)
    assert names["result"].summary["note"] == "" and len(names["race"].runs) == 2
    assert len(list(tmp_path.glob("runs/wine-tracked/tensorboard/*"))) == 1
    assert len(list(tmp_path.glob("runs/track/tensorboard/*"))) == 2


def test_the_program_runs_without_a_tracker(tmp_path, monkeypatch):
    """All of it but the trackers, which may not be installed."""
    monkeypatch.chdir(tmp_path)
    program, names = re.sub(r"track=(\[.*?\]|\{.*?\})(?=[,)])", "track=[]", block("python")), {}
    exec(program, names)
    assert names["result"].summary["status"] == "finished" and len(names["race"].runs) == 2


def test_the_command_tracks_or_names_the_extra(tmp_path, monkeypatch):
    """`tensorboard --logdir` is a server and is not started."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "race.toml").write_text('[data]\nsource = "wine"\nparties = 2\n[train]\nupdates = 2\n')
    command = re.search(r"^    colonnade (compare race.toml .*)$", PAGE, re.MULTILINE)[1]
    made = CliRunner().invoke(app, shlex.split(command))
    if find_spec("tensorboard"):
        assert made.exit_code == 0 and len(list(tmp_path.glob("runs/*/*/tensorboard/*"))) == 2, made.output
    else:
        assert "pip install 'colonnade[track]'" in str(made.exception) and not (tmp_path / "runs").exists()


def test_the_page_names_the_numbers_that_are_sent():
    row = {"value": 1, "accuracy": 1, "loss": 1, "train_loss": 1, "clock_s": 1, "wall_s": 1, "epochs": 1, "missing": []}
    assert [key for key in numbers_of(row) if f"`{key}`" not in PAGE] == ["missing_parties"]
