"""benchmarks/chosen.py chooses a setting on validation rows and reports it on test rows, after the same training."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from colonnade import load, split
from colonnade.config.schema import from_dict
from colonnade.data import Partition
from colonnade.experiments.run import prepare

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
TABLES: dict[str, Any] = {
    "model": {"party": "linear", "server": "linear", "embedding": 4},
    "protocol": {"name": "vafl"},
    "train": {
        "batch_size": 64, "optimiser": "sgd", "learning_rate": 0.3, "epochs": 1.0, "eval_every": "0.5 epochs",
        "patience": 0, "target": 0.2,
    },
}  # fmt: skip


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    for name in ("chosen", "journal", "late_block"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import chosen

    return chosen


@pytest.fixture
def data() -> Partition:
    return split(load("digits"))


def test_no_validation_row_is_among_the_test_rows(chosen: ModuleType, data: Partition) -> None:
    tested, held = data.without_validation(), len(data.y_train) + data.validation
    assert tested.validation == 0 and len(tested.y_test) == len(data.y_test) - data.validation
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(tested.train, data.train, strict=True))
    assert all(np.array_equal(ours, theirs[-len(ours) :]) for ours, theirs in zip(tested.test, data.test, strict=True))
    assert data.ids is not None and tested.ids is not None
    assert tested.ids.to_list() == [*data.ids[: len(data.y_train)], *data.ids[held:]]


def test_both_are_judgements_of_the_same_training(chosen: ModuleType, data: Partition) -> None:
    chosen.DATA["digits"] = data
    one = chosen.job("digits", TABLES)
    summary = prepare(from_dict(TABLES), data).execute()
    chooses, reports = chosen.judge(one), chosen.judge(one | {"on": "test"})
    assert chooses["value"] == summary["validation_value"] and chooses["time_s"] == summary["time_to_target_s"]
    assert reports["value"] == summary["value"] != chooses["value"]


def test_a_run_stops_at_its_target(chosen: ModuleType, data: Partition) -> None:
    chosen.DATA["digits"] = data
    whole = chosen.judge(chosen.job("digits", TABLES))
    stopped = chosen.judge(chosen.job("digits", TABLES | {"train": TABLES["train"] | {"target": 0.01}}, stop=True))
    assert stopped["status"] == "stopped" and len(stopped["curve"]) < len(whole["curve"])
