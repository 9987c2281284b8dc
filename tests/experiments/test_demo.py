"""The demo's race: every family takes part, each method with settings that suit it."""

from importlib import import_module
from pathlib import Path

import pytest

from colonnade.algorithms import METHODS
from colonnade.config.resolve import load_partition
from colonnade.experiments.compare import Entry, contestants, entries_of
from colonnade.experiments.demo import DEMO, DEMO_METHODS
from colonnade.experiments.run import prepare

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return entries_of(contestants(DEMO, DEMO_METHODS), 1)


def test_all_five_families_race_and_no_method_is_refused_or_given_another_model(entries: list[Entry]) -> None:
    families = {METHODS[entry.config.protocol["name"]].server.__module__.split(".")[2] for entry in entries[1:]}
    assert families == {"vafl", "lockstep", "zeroth", "flex", "fedvs", "asysqn"}
    data = load_partition(entries[0].config)
    assert data.task.kind == "binary" and data.y_train.mean() == pytest.approx(0.5, abs=0.03)
    for entry in entries:
        prepare(entry.config, None, None, load_partition)
        assert not entry.adapted


def test_all_have_the_same_rows_clock_and_target(entries: list[Entry]) -> None:
    assert len({str(entry.config.clock) for entry in entries}) == 1
    assert len({str(entry.config.data) for entry in entries}) == 1
    assert {entry.config.train.target for entry in entries} == {0.88}
    assert {entry.config.train.seconds for entry in entries[1:]} == {20.0}
    assert not entries[0].config.protocol.keys() - {"name"}


def test_the_study_that_found_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    study = import_module("demo")
    assert list(study.GRIDS) and set(study.GRIDS) == set(DEMO_METHODS) - {"centralised"}
    for method, settings in DEMO["methods"].items():
        assert method == "centralised" or settings in study.GRIDS[method]
    own, averaged = ({"method": "sync", "point": point, "seed": 0} for point in ({}, {"protocol.average": True}))
    result = {"score": 0.9, "end": 0.95, "time_s": 3.0, "flaws": []}
    for score, verdict in ((0.904, "The defaults stay."), (0.906, "Chosen: protocol.average = True.")):
        assert study.report([own | result, averaged | result | {"score": score}]).endswith(verdict)
    flawed = averaged | result | {"score": 0.99, "flaws": ["diverged"]}
    assert study.report([own | result, flawed]).endswith("The defaults stay.")
