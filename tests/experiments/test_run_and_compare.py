"""Runs and races: the files in a folder, what a summary says; one failure does not stop the others."""

import json
import math

import pytest

from colonnade.config.schema import from_dict, read_toml
from colonnade.experiments.compare import compare, contestants
from colonnade.experiments.ranking import mean_and_spread
from colonnade.experiments.run import prepare
from colonnade.protocol.errors import CheckpointError, ConfigError, DataError
from colonnade.results.folder import RunFolder
from colonnade.results.summary import time_to_target

SMALL = {
    "data": {"source": "digits", "parties": 2},
    "model": {"party": "linear", "embedding": 4},
    "train": {"updates": 12, "batch_size": 64, "eval_every": 4, "checkpoint_every": 5},
}
KEYS = {
    "protocol", "parties", "seed", "driver", "status", "note", "warnings", "updates", "epochs", "clock_s", "wall_s",
    "metric", "value", "accuracy", "loss", "target", "time_to_target_s", "messages", "bytes_up", "bytes_down",
    "bytes_eval", "staleness", "utilisation", "privacy", "trace_sha256", "weights_sha256",
}  # fmt: skip


def small(**sections):
    return {**SMALL, **{name: {**SMALL.get(name, {}), **fields} for name, fields in sections.items()}}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One run, its folder and its summary."""
    path = tmp_path_factory.mktemp("runs") / "deep" / "run"
    run = prepare(from_dict(small(protocol={"name": "t-sync"}, train={"target": 0.15, "learning_rate": 0.5})), out=path)
    return run, path, run.execute()


def test_the_summary_has_every_key_of_the_design(finished):
    _, path, summary = finished
    assert set(summary) >= KEYS
    assert json.loads((path / "summary.json").read_text()) == summary
    assert (summary["protocol"], summary["parties"], summary["driver"], summary["status"]) == (
        "t-sync",
        2,
        "sim",
        "finished",
    )
    assert set(summary["staleness"]) == {"mean", "p95", "max"}
    assert set(summary["utilisation"]) == {"server", "party-1", "party-2"}
    assert all(0 <= share <= 1 for share in summary["utilisation"].values())
    assert len(summary["trace_sha256"]) == len(summary["weights_sha256"]) == 64
    assert summary["updates"] == 12 and summary["value"] == summary["accuracy"]
    assert summary["bytes_up"] + summary["bytes_down"] == sum(summary["bytes_by_kind"].values())
    assert summary["bytes_eval"] > 0


def test_the_folder_holds_config_and_metrics(finished):
    run, path, summary = finished
    assert from_dict(read_toml(path / "config.toml")) == run.federation.config
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert rows == run.rows
    assert [row["update"] for row in rows] == [0, 4, 8, 12]
    last = rows[-1]
    assert (last["test_value"], last["test_loss"]) == (summary["value"], summary["loss"])
    assert (last["value"], last["loss"]) == (summary["validation_value"], summary["validation_loss"])
    assert [row.get("test_value") for row in rows[:-1]] == [None] * 3
    assert {row["rows"] for row in rows} == {"validation"}
    held_out = len(run.federation.data.y_test)
    assert summary["validation_rows"] + summary["test_rows"] == held_out and summary["validation_rows"] > 0
    assert sorted(p.name for p in path.iterdir() if p.name.startswith(".")) == [], "no temporary file is left"


def test_time_to_target_is_the_first_evaluation_that_reached_it(finished):
    run, _, summary = finished
    reached = [row["clock_s"] for row in run.rows if row["value"] >= 0.15]
    assert summary["target"] == 0.15 and reached and summary["time_to_target_s"] == reached[0]


@pytest.mark.parametrize(
    ("metric", "target", "values", "expected"),
    [
        ("accuracy", 0.5, [0.1, 0.5, 0.4], 1.0),
        ("accuracy", 0.5, [0.1, None, 0.6], 2.0),
        ("accuracy", 0.9, [0.1, 0.5, 0.4], None),
        ("accuracy", None, [0.1, 0.5, 0.4], None),
        ("mae", 0.5, [0.9, 0.4, 0.6], 1.0),
        ("mae", 0.5, [0.9, 0.8, 0.6], None),
    ],
)
def test_time_to_target_goes_the_way_of_the_metric(metric, target, values, expected):
    train = {"target": target} if target is not None else {}
    source = "diabetes" if metric == "mae" else "digits"
    run = prepare(from_dict(small(data={"source": source}, train={"metric": metric, **train})))
    rows = [{"clock_s": float(place), "value": value} for place, value in enumerate(values)]
    assert time_to_target(rows, run.federation.training.metric, run.federation.plan.target) == expected


def test_a_full_folder_is_refused_and_an_empty_one_taken(tmp_path):
    config = from_dict(SMALL)
    (tmp_path / "empty").mkdir()
    assert prepare(config, out=tmp_path / "empty").folder.path == tmp_path / "empty"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").write_text("mine")
    for taken in (tmp_path / "full", tmp_path / "full" / "note.txt"):
        with pytest.raises(ConfigError, match=r"--out = '.*': exists and is not empty"):
            prepare(config, out=taken)
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["note.txt"]


def test_reopening_what_is_not_there_or_not_the_same(tmp_path):
    config = from_dict(SMALL)
    with pytest.raises(CheckpointError, match="this folder holds no run"):
        RunFolder.reopen(tmp_path, config)
    RunFolder.create(tmp_path / "run", config)
    RunFolder.reopen(tmp_path / "run", config)
    with pytest.raises(CheckpointError, match=r"another config \(train.batch_size: 64 there, 65 here\)"):
        RunFolder.reopen(tmp_path / "run", from_dict(small(train={"batch_size": 65})))


def test_the_same_seed_is_the_same_run_and_another_is_not():
    summaries = [prepare(from_dict(small(train={"seed": seed}))).execute() for seed in (3, 3, 4)]
    digests = [(summary["trace_sha256"], summary["weights_sha256"]) for summary in summaries]
    assert digests[0] == digests[1] != digests[2]


def test_a_diverged_run_is_reported_with_what_it_has(tmp_path):
    run = prepare(from_dict(small(train={"learning_rate": 1e20, "updates": 200})), out=tmp_path / "run")
    summary = run.execute()
    assert summary["status"] == "diverged"
    assert "party-1: its held-out embeddings have left ±1e+06; lower train.learning_rate" in summary["note"]
    text = (tmp_path / "run" / "summary.json").read_text()
    assert "NaN" not in text and "Infinity" not in text


def test_a_run_that_can_never_continue_names_the_missing_parties():
    clock = {"faults": [{"party": "party-2", "kind": "crash", "at_s": 0.0}]}
    summary = prepare(from_dict(small(protocol={"name": "sync"}, clock=clock))).execute()
    assert summary["status"] == "stalled" and summary["note"] == "waits for party-2 and cannot continue"


# --- races


def test_shared_keys_go_to_those_that_have_them():
    tables = small(protocol={"name": "sync", "max_delay": 7, "t": 2})
    race = {one.label: one.tables["protocol"] for one in contestants(tables, ["sync", "vafl", "t-sync"])}
    assert race == {
        "sync": {"name": "sync"},
        "vafl": {"name": "vafl", "max_delay": 7},
        "t-sync": {"name": "t-sync", "max_delay": 7, "t": 2},
    }


def test_overrides_of_one_method():
    tables = small() | {
        "methods": {
            "slow": {"protocol.name": "vafl", "protocol.extra_rows": 2, "train.learning_rate": 0.01},
            "sync": {"train.learning_rate": 0.7},
            "unused": {"train.learning_rate": 9},
        }
    }
    race = {one.label: one.tables for one in contestants(tables, ["sync", "slow", "vafl"])}
    assert race["slow"]["protocol"] == {"name": "vafl", "extra_rows": 2}
    assert [race[label]["train"].get("learning_rate") for label in ("sync", "slow", "vafl")] == [0.7, 0.01, None]
    assert all(race[label]["train"]["updates"] == 12 and "methods" not in race[label] for label in race)


def test_overrides_may_be_written_as_tables_too():
    """`train.learning_rate = 0.03` under [methods.vafl], without quotes, is a table in TOML."""
    nested = {"protocol": {"name": "vafl", "max_delay": 3}, "train": {"learning_rate": 0.03}}
    (one,) = contestants(small() | {"methods": {"mine": nested}}, ["mine"])
    assert one.tables["protocol"] == {"name": "vafl", "max_delay": 3}
    assert one.tables["train"] == SMALL["train"] | {"learning_rate": 0.03}, "the rest of [train] stays"


@pytest.mark.parametrize(
    ("tables", "labels", "message"),
    [
        (small(), ["vafl", "vaffl"], "protocol.name = 'vaffl': unknown method; did you mean 'vafl'"),
        (small(), [], "--protocols = '': name at least one of"),
        (small(protocol={"t": 2}), ["vafl", "sync"], "protocol.t = 2: no method of vafl, sync has this key"),
        (small(protocol={"t": 9}), ["t-sync"], "protocol.t = 9"),
        (small() | {"methods": {"vafl": {"train.lr": 1}}}, ["vafl"], "train.lr = 1: unknown key"),
        (small(), ["vafl", "sync", "vafl"], "--protocols = .*vafl.*twice"),
    ],
)
def test_a_race_is_refused_before_its_first_run(tables, labels, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        compare(tables, labels, 1, tmp_path / "race")
    assert not (tmp_path / "race").exists()


def test_a_race_needs_seeds_and_an_empty_folder(tmp_path):
    with pytest.raises(ConfigError, match="--seeds = 0: must be 1 or more"):
        compare(small(), ["vafl"], 0, tmp_path / "race")
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(ConfigError, match="--out = .* exists and is not empty"):
        compare(small(), ["vafl"], 1, tmp_path)


def test_a_failing_run_is_reported_and_the_others_go_on(tmp_path):
    tables = small(train={"seed": 5}) | {
        "methods": {"wild": {"protocol.name": "vafl", "train.learning_rate": 1e20, "train.updates": 100}}
    }
    seen = []
    entries = compare(tables, ["wild", "sync", "centralised"], 2, tmp_path / "race", lambda *args: seen.append(args[1]))
    assert [(entry.label, entry.seed) for entry in entries] == [
        ("wild", 5), ("wild", 6), ("sync", 5), ("sync", 6), ("centralised", 5), ("centralised", 6),
    ]  # fmt: skip
    assert [bool(entry.error) for entry in entries] == [True, True, False, False, False, False]
    assert "lower train.learning_rate" in entries[0].error
    assert all(any(entry is one for one in seen) for entry in entries)
    written = json.loads((tmp_path / "race" / "comparison.json").read_text())
    assert [(one["label"], one["seed"]) for one in written] == [(entry.label, entry.seed) for entry in entries]
    for entry, one in zip(entries, written, strict=True):
        folder = tmp_path / "race" / entry.folder
        assert {"config.toml", "metrics.jsonl", "summary.json"} <= {path.name for path in folder.iterdir()}
        summary = json.loads((folder / "summary.json").read_text())
        assert set(summary) >= KEYS and one == {"label": entry.label, **summary}
    assert written[2]["weights_sha256"] != written[3]["weights_sha256"], "two seeds"


def test_a_run_that_cannot_even_begin_is_reported_too(tmp_path, monkeypatch):
    """Only the first seed is tried before the race: a later one may still be refused."""

    def prepare_but_for_one(config, data, out, load_data):
        if out is not None and config.train.seed == 1:
            raise DataError("party-1: no luck with this seed")
        return prepare(config, data, out, load_data)

    monkeypatch.setattr("colonnade.experiments.compare.prepare", prepare_but_for_one)
    entries = compare(small(), ["sync"], 3, tmp_path / "race")
    assert [entry.error for entry in entries] == ["", "party-1: no luck with this seed", ""]
    assert [one["seed"] for one in json.loads((tmp_path / "race" / "comparison.json").read_text())] == [0, 2]


def test_mean_and_spread():
    assert mean_and_spread([1.0, 2.0, 3.0]) == (2.0, 1.0, 3, 3)
    assert mean_and_spread([5.0]) == (5.0, 0.0, 1, 1)
    assert mean_and_spread([1.0, None]) == (1.0, 0.0, 1, 2)
    assert mean_and_spread([None]) is None and mean_and_spread([]) is None
    value = mean_and_spread([1.0, 2.0])
    assert value is not None and value.spread == pytest.approx(math.sqrt(0.5))
