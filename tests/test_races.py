"""compare and sweep from Python: the numbers of the runs as DataFrames, and what a notebook shows."""

import re
import sys
from types import SimpleNamespace

import polars
import pytest
from torch import nn

import colonnade
from colonnade.cli.in_notebook import NotebookLive
from colonnade.cli.progress_bars import RaceBoard
from colonnade.protocol.errors import ConfigError


@pytest.fixture(scope="module")
def data():
    return colonnade.split(colonnade.load("wine"), parties=2)


QUICK = {"epochs": 2, "embedding": 4, "optimiser": "adam", "learning_rate": 0.02}


@pytest.fixture(scope="module")
def race(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("race") / "race"
    protocols = {"sync": "sync", "<all of them>": {"name": "t-sync", "t": 2}, "masked": "asysqn-sgd"}
    return colonnade.compare(data, protocols, "mlp:8", seeds=2, target=0.3, out=out, **QUICK), out


def test_a_race_gives_the_numbers_of_its_runs(race, data):
    comparison, _ = race
    one = colonnade.train(data, "sync", "mlp:8", target=0.3, seed=1, **QUICK)
    run = comparison.runs.filter(method="sync", seed=1).row(0, named=True)
    assert run["value"] == one.summary["value"] and run["bytes_up"] == one.summary["bytes_up"]
    means = comparison.table.filter(method="sync").row(0, named=True)
    assert means["accuracy"] == pytest.approx(comparison.runs.filter(method="sync")["value"].mean())
    assert means["reached"] == 2 and means["flaw"] == ""
    rows = comparison.metrics.filter(method="sync", seed=1)
    assert rows["value"].to_list() == one.metrics["value"].to_list()
    assert set(comparison.unsuitable) == {"masked"} and "at least 3 parties" in comparison.unsuitable["masked"]


def test_a_race_shows_itself(race):
    comparison, out = race
    html = comparison._repr_html_()
    assert "&lt;all of them&gt;" in html and "<all of them>" not in html and "<script" not in html
    assert "Took no part" in html and comparison.winners.split(":")[0] in html
    assert repr(comparison).startswith("Comparison(sync, <all of them>; 4 runs; ")
    assert {trace.name for trace in comparison.plot().data} >= {"sync", "<all of them>"}
    assert len(list(out.glob("*/summary.json"))) == 4 and (out / "comparison.json").is_file()
    with pytest.raises(ConfigError, match="exists and is not empty"):
        colonnade.compare(None, ["sync"], out=out)


def test_a_sweep_chooses_on_the_validation_rows(data):
    sweep = colonnade.sweep(
        data, {"learning_rate": [1e-6, 0.05], "party_model": ["linear"]}, ["sync", "vafl"], epochs=2
    )
    assert sweep.table.columns[:3] == ["method", "train.learning_rate", "model.party"] and len(sweep.table) == 4
    assert sweep.best["train.learning_rate"].to_list() == [0.05, 0.05]
    assert sweep.best["edges"][0] == "train.learning_rate" and sweep.best["chosen_on"][0] == "validation"
    best = sweep.table.filter(polars.col("method") == "sync", polars.col("train.learning_rate") == 0.05).row(
        0, named=True
    )
    one = colonnade.train(data, "sync", "linear", epochs=2, learning_rate=0.05)
    assert best["validation"] == one.summary["validation_value"] and best["test"] == one.summary["value"]
    assert sweep._repr_html_().count('class="best"') == 2
    assert repr(sweep).startswith("Sweep(4 runs; best sync: learning_rate = 0.05, party = linear; vafl: ")


def test_ones_own_module_races(data):
    own = [nn.Linear(7, 3), lambda inputs, outputs: nn.Sequential(nn.Linear(inputs, outputs))]
    comparison = colonnade.compare(data, ["sync", "asysqn-sgd"], own, embedding=3, updates=4, seeds=1)
    assert comparison.runs["status"].to_list() == ["finished"]
    assert comparison.runs["value"][0] == colonnade.train(data, "sync", own, embedding=3, updates=4).summary["value"]
    assert list(comparison.unsuitable) == ["asysqn-sgd"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda data: colonnade.compare(data, ["vaffl"]), "unknown method; did you mean 'vafl'"),
        (lambda data: colonnade.compare(data, ["sync"], seeds=0), "must be 1 or more"),
        (lambda data: colonnade.compare(data, ["sync"], learning_rat=1), "did you mean 'learning_rate'"),
        (lambda data: colonnade.sweep(data, {}), "name at least one key"),
        (lambda data: colonnade.sweep(data, {"learning_rate": 0.1}), "must be a list of values"),
        (lambda data: colonnade.sweep(data, {"learning_rate": [0.1, 0.1]}), "names a value twice"),
        (lambda data: colonnade.sweep(data, {"seed": [1]}, by="time-to-target"), "needs a target"),
    ],
)
def test_what_is_refused(data, call, message):
    with pytest.raises(ConfigError, match=message):
        call(data)


def test_progress_in_a_notebook_is_one_output_that_is_replaced(data, monkeypatch):
    """With the display function of a kernel; everything else is real."""
    shown = []

    def display(content, raw, display_id):
        shown.append(content["text/plain"])
        return SimpleNamespace(update=lambda content, raw: shown.__setitem__(-1, content["text/plain"]))

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    monkeypatch.setattr("colonnade.cli.progress_bars.in_notebook", lambda: True)
    seen = []
    board = RaceBoard()
    assert isinstance(board._live, NotebookLive)
    with board:
        entry = SimpleNamespace(folder="sync-seed0", label="sync", seed=0, error="", summary=None)
        board.show([entry], entry, None)
        seen.append(shown[-1])
    assert re.search(r"sync +│ 0 +│ done", seen[0]) and shown == [""]
    colonnade.train(data, "sync", "linear", updates=2, progress=True)
    assert shown == ["", ""]
