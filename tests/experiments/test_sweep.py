"""Grids: every method at every point, the best one named, finished points not repeated."""

import json
import signal
import subprocess
import sys
import time

import pytest

from colonnade.config.schema import from_dict
from colonnade.experiments.compare import Entry, entries_of, race
from colonnade.experiments.sweep import best_of, check_by, grid_contestants, parse_grid
from colonnade.protocol.errors import CheckpointError, ConfigError

SMALL = {
    "data": {"source": "breast-cancer", "parties": 2},
    "model": {"party": "linear", "embedding": 2},
    "train": {"updates": 8, "batch_size": 32},
}
RATES = {"train.learning_rate": [0.01, 0.1, 1.0]}


def test_a_grid_is_read():
    texts = ["train.learning_rate=0.01, 0.1", "protocol.order=upload-first,query-first"]
    assert parse_grid(texts) == {
        "train.learning_rate": [0.01, 0.1],
        "protocol.order": ["upload-first", "query-first"],
    }


@pytest.mark.parametrize(
    "texts", [[], ["train.learning_rate"], ["train.seed="], ["a.b=1,1"], ["a.b=1", "a.b=2"]], ids=str
)
def test_what_is_no_grid_is_refused(texts):
    with pytest.raises(ConfigError, match="--grid"):
        parse_grid(texts)


def entry(label, value, seed=0, error="", test=0.0, time_s=None):
    summary = {
        "metric": "accuracy", "value": test, "loss": -test, "status": "finished", "time_to_target_s": time_s,
        "validation_rows": 10, "validation_value": value, "validation_loss": value,
    }  # fmt: skip
    return Entry(label, seed, from_dict({}), summary, [], error)


def test_the_best_is_a_mean_over_seeds_and_edges_are_named():
    values = {0.01: (0.5, 0.7), 0.1: (0.9, 0.2), 1.0: (0.4, 0.9)}
    entries = [
        entry(f"vafl learning_rate={rate}", value, seed)
        for rate, pair in values.items()
        for seed, value in enumerate(pair)
    ]
    (best,) = best_of(entries, ["vafl"], RATES)
    assert best.point == {"train.learning_rate": 1.0} and best.validation == pytest.approx(0.65)
    assert best.edges == ["train.learning_rate"]
    entries[-1].summary["status"] = "diverged"  # a point with a failed run cannot win
    (best,) = best_of(entries, ["vafl"], RATES)
    assert best.point == {"train.learning_rate": 0.01} and best.edges
    entries[0].summary["warnings"] = ["no update was made"]  # a point with a warning cannot win either
    (best,) = best_of(entries, ["vafl"], RATES)
    assert best.point == {"train.learning_rate": 0.1}


def test_the_middle_is_no_edge_and_words_have_none():
    grid = RATES | {"protocol.order": ["upload-first", "query-first"]}
    entries = [
        entry(f"vafl learning_rate={rate} order={order}", 1.0 - abs(rate - 0.1))
        for rate in RATES["train.learning_rate"]
        for order in grid["protocol.order"]
    ]
    (best,) = best_of(entries, ["vafl"], grid)
    assert best.point["train.learning_rate"] == 0.1 and best.edges == []


def test_a_smaller_loss_is_better():
    entries = [entry(f"vafl learning_rate={rate}", rate) for rate in RATES["train.learning_rate"]]
    for one in entries:
        one.summary["metric"] = "loss"
    assert best_of(entries, ["vafl"], RATES)[0].point == {"train.learning_rate": 0.01}
    for one in entries:
        one.summary["metric"] = "accuracy"
    assert best_of(entries, ["vafl"], RATES, "loss")[0].point == {"train.learning_rate": 0.01}


def test_the_choice_is_made_on_validation_rows_and_on_test_rows_only_if_there_are_no_others():
    tests = {0.01: 0.9, 0.1: 0.5, 1.0: 0.4}
    entries = [entry(f"vafl learning_rate={rate}", rate, test=test) for rate, test in tests.items()]
    (best,) = best_of(entries, ["vafl"], RATES)
    assert (best.point["train.learning_rate"], best.chosen_on) == (1.0, "validation")
    assert (best.validation, best.test) == (1.0, 0.4)
    for one in entries:
        one.summary |= {"validation_rows": 0, "validation_value": None, "validation_loss": None}
    (best,) = best_of(entries, ["vafl"], RATES)
    assert (best.point["train.learning_rate"], best.chosen_on, best.validation) == (0.01, "test", None)


@pytest.mark.parametrize(
    ("times", "wins"),
    [
        ({0.01: (3.0, 5.0), 0.1: (2.0, 4.0), 1.0: (1.0, None)}, 0.1),  # both seeds, before the fastest
        ({0.01: (None, None), 0.1: (9.0, None), 1.0: (None, 8.0)}, 1.0),
        ({0.01: (None, None), 0.1: (None, None), 1.0: (None, None)}, None),
    ],
)
def test_by_time_to_target(times, wins):
    entries = [
        entry(f"vafl learning_rate={rate}", 0.5, seed, time_s=time)
        for rate, pair in times.items()
        for seed, time in enumerate(pair)
    ]
    found = best_of(entries, ["vafl"], RATES, "time-to-target")
    assert [best.point["train.learning_rate"] for best in found] == ([wins] if wins else [])


def test_what_cannot_be_chosen_by_is_refused():
    assert check_by("loss", {}) == "loss"
    assert check_by("time-to-target", {"train": {"target": 0.9}}) == "time-to-target"
    with pytest.raises(ConfigError, match="--by = 'time-to-target': needs a target"):
        check_by("time-to-target", {"train": {}})
    with pytest.raises(ConfigError, match="--by = 'accuracy': use 'metric', 'loss' or"):
        check_by("accuracy", {})


def test_what_is_finished_is_read_and_what_was_cut_off_goes_on(tmp_path):
    def entries():
        return entries_of(grid_contestants(SMALL, ["vafl", "sync"], RATES), 1)

    whole = race(entries(), tmp_path / "whole")
    out, started = tmp_path / "cut", []
    with pytest.raises(KeyboardInterrupt):
        race(entries(), out, lambda _, one, run: started.append(one) or _interrupt(len(started) > 8))
    done = {path.parent.name: path.stat().st_mtime_ns for path in out.glob("*/summary.json")}
    assert 0 < len(done) < 6
    again = race(entries(), out)
    assert all((out / name / "summary.json").stat().st_mtime_ns == when for name, when in done.items())
    for one, other in zip(whole, again, strict=True):
        assert one.summary["weights_sha256"] == other.summary["weights_sha256"]
        assert [row["value"] for row in one.rows] == [row["value"] for row in other.rows]
    listed = json.loads((out / "comparison.json").read_text())
    assert [one["label"] for one in listed] == [one.label for one in whole]


def _interrupt(now):
    if now:
        raise KeyboardInterrupt


def test_a_folder_that_was_being_made_when_the_kill_came(tmp_path):
    def entries():
        return entries_of(grid_contestants(SMALL, ["vafl"], {"train.learning_rate": [0.1, 0.2]}), 1)

    race(entries(), tmp_path / "out")
    half = tmp_path / "out" / entries()[1].folder
    for path in half.iterdir():
        path.unlink()
    (half / "metrics.jsonl").touch()
    assert [entry.error for entry in race(entries(), tmp_path / "out")] == ["", ""]
    assert (half / "summary.json").is_file()


def test_a_folder_with_another_race_is_refused(tmp_path):
    race(entries_of(grid_contestants(SMALL, ["vafl"], {"train.learning_rate": [0.1]}), 1), tmp_path / "out")
    other = SMALL | {"train": {"updates": 9, "batch_size": 32}}
    with pytest.raises(CheckpointError, match="another config"):
        race(entries_of(grid_contestants(other, ["vafl"], {"train.learning_rate": [0.1]}), 1), tmp_path / "out")


@pytest.mark.slow
def test_killed_in_the_middle_and_typed_again(tmp_path):
    """SIGKILL, as an operator would send it; then the same command."""
    (tmp_path / "small.toml").write_text(
        '[data]\nsource = "breast-cancer"\nparties = 2\n[model]\nparty = "linear"\nembedding = 2\n'
        "[train]\nupdates = 30\nbatch_size = 32\n"
    )
    command = [sys.executable, "-m", "colonnade", "sweep", "small.toml", "--grid", "train.learning_rate=0.01,0.1"]
    command += ["--protocols", "sync,vafl", "--seeds", "2", "--out", "out"]
    first = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(finished := list((tmp_path / "out").glob("*/summary.json"))) < 2 and first.poll() is None:
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    times = {path: path.stat().st_mtime_ns for path in finished}
    second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert second.returncode == 0, second.stderr
    assert all(path.stat().st_mtime_ns == when for path, when in times.items())
    assert len(json.loads((tmp_path / "out" / "comparison.json").read_text())) == 8
    assert "sync: best at train.learning_rate" in second.stdout and "Warning: the best value" in second.stdout


@pytest.mark.slow
def test_three_methods_four_rates_three_seeds_on_ray_killed_in_the_middle_and_typed_again(tmp_path):
    """SIGKILL of the command; its Ray ends with it, and the second command finishes the work."""
    (tmp_path / "small.toml").write_text(
        '[data]\nsource = "breast-cancer"\nparties = 2\n[model]\nparty = "linear"\nembedding = 2\n'
        "[train]\nupdates = 200\nbatch_size = 32\n"
    )
    command = [sys.executable, "-m", "colonnade", "sweep", "small.toml", "--workers", "ray", "--out", "out"]
    command += ["--grid", "train.learning_rate=0.01,0.03,0.1,0.3", "--protocols", "sync,vafl,t-sync", "--seeds", "3"]
    command += ["--set", "protocol.t=1"]
    first = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(list((tmp_path / "out").glob("*/summary.json"))) < 12 and first.poll() is None:
        time.sleep(0.01)
    assert first.poll() is None, "it ended before the kill"
    first.send_signal(signal.SIGKILL)
    first.wait()
    finished = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*/summary.json")}
    second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert second.returncode == 0, second.stderr
    assert 12 <= len(finished) < 36 and all(path.stat().st_mtime_ns == when for path, when in finished.items())
    listed = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert len({(one["label"], one["seed"]) for one in listed}) == 36
    assert all(one["status"] == "finished" for one in listed)
    for method in ("sync", "vafl", "t-sync"):
        assert f"{method}: best at train.learning_rate" in second.stdout
