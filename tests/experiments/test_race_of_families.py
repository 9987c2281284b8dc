"""A race of methods that cannot all use one model, or cannot all run on the same data."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from colonnade.algorithms import METHODS
from colonnade.config.schema import from_dict, read_toml
from colonnade.experiments.compare import compare, contestants, entries_of, expanded, unsuitable, usual_labels
from colonnade.experiments.run import prepare
from colonnade.experiments.sweep import best_of, grid_contestants, parse_grid, that_ran
from colonnade.protocol.errors import ConfigError
from colonnade.report.page import write_report

TABLES: dict[str, Any] = {
    "data": {"source": "breast-cancer", "parties": 4, "test_fraction": 0.6},
    "model": {"party": "mlp:4", "embedding": 2, "aggregate": "concat"},
    "train": {"updates": 3, "batch_size": 16, "optimiser": "adam", "learning_rate": 0.01, "eval_every": 3},
}
FAMILIES = ["vafl", "cascaded", "flex", "asysqn-sgd", "fedvs"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All five families, and one that cannot run."""
    path = tmp_path_factory.mktemp("race") / "families"
    tables = TABLES | {"methods": {"many": {"protocol.name": "fedvs", "protocol.K": 3}}}
    entries = compare(tables, [*FAMILIES, "many"], 1, path)
    assert [bool(entry.summary) for entry in entries] == [True] * 5 + [False]
    assert [entry.error for entry in entries] == [""] * 6, "what cannot run has not failed"
    assert list(unsuitable(entries)) == ["many"]
    return path


def test_every_family_runs_with_what_it_can_use(folder: Path) -> None:
    written = json.loads((folder / "comparison.json").read_text())
    assert [one["label"] for one in written] == FAMILIES
    assert {one["label"]: list(one["adapted"].values()) for one in written if "adapted" in one} == {
        "asysqn-sgd": ["linear", "own step", "own rate"], "fedvs": ["polynomial:1", "mean"],
    }  # fmt: skip
    model = from_dict(read_toml(folder / "fedvs-seed0" / "config.toml")).model
    assert (model.party, model.aggregate) == ("polynomial:1", "mean")
    assert from_dict(read_toml(folder / "vafl-seed0" / "config.toml")).model.party == "mlp:4"


def test_the_reason_of_one_that_cannot_is_kept(folder: Path) -> None:
    (reason,) = json.loads((folder / "unsuitable.json").read_text()).items()
    assert reason[0] == "many" and "there are 4 parties" in reason[1]
    assert not (folder / "many-seed0").exists()


def test_the_report_names_both(folder: Path) -> None:
    page = write_report(folder).read_text(encoding="utf-8")
    assert re.search(r"<td>fedvs<br>[^\n]*?<br><span class='quiet'>polynomial:1, mean</span></td>", page)
    assert "<h2>Took no part</h2>" in page and "<td>many</td><td>protocol.K = 3" in page
    assert "<th>clock s</th>" in page


def test_typed_again_nothing_is_repeated(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/summary.json")}
    entries = compare(TABLES, FAMILIES, 1, folder)
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*/summary.json")} == before
    assert entries[-1].summary is not None and entries[-1].summary["adapted"]["model.party"] == "polynomial:1"
    assert json.loads((folder / "unsuitable.json").read_text()) == {}, "of this race, not of the last one"


def test_which_methods_race_if_none_is_named() -> None:
    assert usual_labels({}) == ["swift", "vafl", "t-sync", "sync"]
    own = {"protocol": {"name": "fedvs"}, "methods": {"vafl": {}, "other": {"protocol.name": "sync"}}}
    assert usual_labels(own) == ["fedvs", "vafl", "other", "swift", "t-sync", "sync"]


def test_if_none_can_run_all_reasons_are_told(tmp_path: Path) -> None:
    tables = TABLES | {"data": {"source": "digits", "parties": 2}}
    with pytest.raises(ConfigError, match="no method can run") as refused:
        compare(tables, ["fedvs", "asysqn-sgd"], 1, tmp_path / "race")
    assert "\n  fedvs: protocol.T = 1" in str(refused.value)
    assert "\n  asysqn-sgd: data.parties = 2" in str(refused.value)
    assert not (tmp_path / "race").exists()


def test_a_mistake_that_is_the_same_for_all_is_told_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^train.metric = 'acuracy': "):
        compare(TABLES | {"train": {"metric": "acuracy"}}, ["sync", "vafl"], 1, tmp_path / "race")
    with pytest.raises(ConfigError, match=r"^data.source = .nowhere\.csv.: "):
        compare(TABLES | {"data": {"source": "nowhere.csv"}}, ["sync", "fedvs"], 1, tmp_path / "race")


def test_a_misspelt_option_of_one_method_refuses_the_race(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="protocol.KK = 1: fedvs: unknown key"):
        compare(TABLES | {"methods": {"fedvs": {"protocol.KK": 1}}}, ["sync", "fedvs"], 1, tmp_path / "race")


def test_each_method_has_its_own_defaults_and_overrides_win() -> None:
    own = {"fedvs": {"model.party": "polynomial:3"}, "vafl": {"train.learning_rate": 0.5}}
    tables = {"data": TABLES["data"], "methods": own}
    entries = entries_of(contestants(tables, ["sync", "vafl", "wait", "fedvs"]), 1)
    assert [entry.adapted for entry in entries] == [{}] * 4
    settled = {entry.label: prepare(entry.config).federation.config for entry in entries}
    default = {name: METHODS[name].defaults for name in settled}
    assert settled["sync"].model.party == default["sync"].party
    assert settled["wait"].model.aggregate == default["wait"].aggregate == "mean"
    assert settled["fedvs"].model.party == "polynomial:3" != default["fedvs"].party
    assert settled["vafl"].train.learning_rate == 0.5


def test_a_model_that_the_config_names_is_used_by_all_that_can() -> None:
    entries = entries_of(contestants({"model": {"party": "dense"}}, ["all"]), 1)
    assert {entry.label for entry in entries if entry.config.model.party != "dense"} == {
        name for name, method in METHODS.items() if method.capabilities.party_models or method.defaults.party is None
    }  # fmt: skip


def test_all_is_every_method_and_every_variant() -> None:
    tables = {"methods": {"ahead": {"protocol.name": "vafl", "protocol.extra_rows": 1}}}
    labels = expanded(tables, ["sync", "all"])
    assert labels[0] == "sync" and labels[-1] == "ahead" and sorted(labels) == sorted([*METHODS, "ahead"])
    assert [one.label for one in contestants(TABLES, ["all"])] == list(METHODS)
    assert expanded({"methods": {"all": {"protocol.name": "vafl"}}}, ["all"]) == ["all"], "a variant of this name"


def test_a_point_of_a_grid_is_never_replaced(tmp_path: Path) -> None:
    """A run's label says what it is."""
    grid = parse_grid(["model.party=mlp:4,polynomial:1"])
    entries = entries_of(grid_contestants(TABLES, ["fedvs"], grid), 1)
    assert [entry.config.model.party for entry in entries] == ["mlp:4", "polynomial:1"]
    assert [entry.adapted for entry in entries] == [{"model.aggregate": "mean"}] * 2
    entries[0].unsuitable = "needs a polynomial"
    assert that_ran(entries, ["fedvs", "vafl"], grid) == ["fedvs"] and best_of(entries, ["fedvs"], grid) == []
