"""live.json of the simulator: while it runs, when it is stopped, and that it changes nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from colonnade.config.schema import from_dict
from colonnade.experiments import run as run_module
from colonnade.experiments.run import Run, prepare, reopen
from colonnade.results import live
from colonnade.results.live import read_live

TABLES: dict[str, Any] = {
    "data": {"source": "digits", "parties": 3},
    "protocol": {"name": "vafl"},
    "model": {"party": "linear", "embedding": 4},
    "train": {"seconds": 6.0, "eval_every": "1s"},
    "clock": {
        "compute": {"mean_s": 0.05},
        "faults": [
            {"party": "party-2", "kind": "offline", "at_s": 1.0, "until_s": 2.0},
            {"party": "party-3", "kind": "crash", "at_s": 1.5, "until_s": 5.0},
            {"party": "party-1", "kind": "late", "at_s": 0.5},
        ],
    },
}


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the file after every slice of events."""
    monkeypatch.setattr(run_module, "SLICE_EVENTS", 50)
    monkeypatch.setattr(live.LiveFile, "due", True)


def watched(run: Run) -> list[dict[str, Any]]:
    """What a reader sees of a run, slice by slice."""
    seen: list[dict[str, Any]] = []

    def look(run: Run) -> None:
        assert run.folder is not None
        if (found := read_live(run.folder.path)) is not None:
            seen.append(found)

    run.execute(look)
    return seen


def test_the_file_follows_the_run(tmp_path: Path, often: None) -> None:
    seen = watched(prepare(from_dict(TABLES), out=tmp_path / "run"))
    clocks = [found["status"]["clock_s"] for found in seen]
    assert clocks == sorted(clocks) and len(clocks) > 10
    assert [found["status"]["state"] for found in seen] == ["training"] * (len(seen) - 1) + ["finished"]
    away = {
        party["name"]
        for found in seen
        for party in found["status"]["parties"]
        if party["state"] == "away" and 2.0 < found["status"]["clock_s"] < 5.0
    }
    assert away == {"party-3"}
    last = seen[-1]
    assert last["status"]["fraction"] == 1.0 and last["summary"]["driver"] == "sim"
    assert last["timeline"]["roles"] == ["server", "party-1", "party-2", "party-3"]
    assert len((tmp_path / "run" / "live.json").read_bytes()) < 30_000


def test_faults_and_evaluations_are_events(tmp_path: Path) -> None:
    prepare(from_dict(TABLES), out=tmp_path / "run").execute()
    events = read_live(tmp_path / "run")["events"]
    found = [(event["kind"], event["who"], event["clock_s"]) for event in events if event["who"]]
    assert found == [
        ("away", "party-1", 0.0),
        ("joined", "party-1", 0.5),
        ("away", "party-2", 1.0),
        ("away", "party-3", 1.5),
        ("back", "party-2", 2.0),
        ("back", "party-3", 5.0),
    ]
    assert sum(event["kind"] == "evaluation" for event in events) >= 6
    assert (events[-1]["kind"], events[-1]["text"]) == ("run", "finished")


def test_the_result_is_the_same_with_and_without_a_watched_folder(tmp_path: Path, often: None) -> None:
    alone = prepare(from_dict(TABLES)).execute()
    beside = prepare(from_dict(TABLES), out=tmp_path / "run").execute()
    assert beside["trace_sha256"] == alone["trace_sha256"] and beside["weights_sha256"] == alone["weights_sha256"]


def test_threads_change_nothing(tmp_path: Path, often: None) -> None:
    seen = watched(prepare(from_dict(TABLES), out=tmp_path / "run", workers=2))
    assert seen[-1]["status"]["state"] == "finished"
    alone = prepare(from_dict(TABLES)).execute()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["trace_sha256"] == alone["trace_sha256"]


def test_what_was_spent_is_beside_the_budget(tmp_path: Path) -> None:
    private = {
        "privacy": {"mechanism": "output", "clip": 1.0, "noise": 30.0},
        "party": {"budgets": {"party-1": {"epsilon": 500.0, "delta": 1e-5}}},
    }
    summary = prepare(from_dict(TABLES | private), out=tmp_path / "run").execute()
    spent = read_live(tmp_path / "run")["privacy"]
    assert {name: one["budget"] for name, one in spent.items()} == {"party-1": 500.0, "party-2": None, "party-3": None}
    for name, one in summary["privacy"]["parties"].items():
        assert spent[name]["epsilon"] == pytest.approx(one["epsilon"])


def test_a_stopped_run_says_so_and_goes_on_with_its_events(tmp_path: Path) -> None:
    run = prepare(from_dict(TABLES), out=tmp_path / "run")

    def stop(run: Run) -> None:
        if run.clock_s > 2.5:
            run._stop()

    with pytest.raises(KeyboardInterrupt):
        run.execute(stop)
    run.close_ledgers()
    assert read_live(tmp_path / "run")["status"]["state"] == "stopped"
    reopen(from_dict(TABLES), tmp_path / "run").execute()
    events = read_live(tmp_path / "run")["events"]
    assert [event["text"] for event in events if event["kind"] == "run"] == ["stopped", "finished"]
    assert len([event for event in events if event["kind"] == "away"]) == 3, "no fault is there twice"


def test_a_run_that_fails_says_so(tmp_path: Path, often: None, monkeypatch: pytest.MonkeyPatch) -> None:
    run = prepare(from_dict(TABLES), out=tmp_path / "run")
    with pytest.raises(ZeroDivisionError):
        run.execute(lambda run: 1 / 0)
    found = read_live(tmp_path / "run")
    assert found["status"]["state"] == "failed" and found["events"][-1]["text"] == "failed"


def test_a_slow_slice_returns_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that take long, such as those of a large network, do not keep the page waiting for 500 of them."""
    simulator = prepare(from_dict(TABLES)).simulator
    assert simulator.advance(10_000, within_s=0.0)
    assert simulator.trace.events <= 1
