"""[track]: what is sent, what is not, and what happens if a tracker is missing or fails."""

import json

import pytest

import colonnade
from colonnade.config.schema import from_dict
from colonnade.protocol.errors import ConfigError, MissingExtra
from colonnade.results import track, trackers
from colonnade.results.track import numbers_of, settings_of

QUICK = {"party_model": "linear", "embedding": 3, "updates": 6, "eval_every": 2}


@pytest.fixture(scope="module")
def data():
    return colonnade.split(colonnade.load("wine"), parties=2)


class Recorder:
    """A tracker that keeps what it is sent."""

    def __init__(self, opening):
        self.opening, self.rows, self.id, self.ended = opening, [], opening.id or "id-1", None
        RECORDED.append(self)

    def row(self, step, numbers):
        self.rows.append((step, numbers))

    def end(self, status, numbers):
        self.ended = status, numbers


RECORDED: list[Recorder] = []


@pytest.fixture
def recorded(monkeypatch):
    """Stands for a package that need not be installed: the tests of the real ones are below."""
    RECORDED.clear()
    monkeypatch.setitem(track.PACKAGES, "mlflow", "json")
    monkeypatch.setitem(trackers.TRACKERS, "mlflow", Recorder)
    return RECORDED


def test_a_missing_package_is_named_with_the_command(data, tmp_path, monkeypatch):
    monkeypatch.setitem(track.PACKAGES, "wandb", "a_package_that_is_not_there")
    with pytest.raises(MissingExtra, match=r"needs a_package_that_is_not_there, .* pip install 'colonnade\[track\]'"):
        colonnade.train(data, "sync", track=["wandb"], out=tmp_path / "run", **QUICK)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="track.to"):
        colonnade.train(data, "sync", track=["wandbee"], **QUICK)
    monkeypatch.setitem(track.PACKAGES, "wandb", "json")
    with pytest.raises(ConfigError, match="names a tracker twice"):
        track.check_track(from_dict({"track": {"to": ["wandb", "wandb"]}}).track)


def test_the_lines_of_the_metrics_are_sent_and_the_end(data, recorded, tmp_path):
    result = colonnade.train(data, "sync", track={"to": ["mlflow"], "project": "p"}, out=tmp_path / "run-7", **QUICK)
    (one,) = recorded
    assert (one.opening.project, one.opening.name) == ("p", "run-7")
    sent = [(step, numbers["value"], numbers["loss"]) for step, numbers in one.rows]
    assert sent == list(result.metrics.select("update", "value", "loss").iter_rows())
    assert one.ended[0] == "finished" and one.ended[1]["final/value"] == result.summary["value"]
    assert result.summary["note"] == ""
    assert json.loads((tmp_path / "run-7" / "track.json").read_text()) == {"mlflow": "id-1"}


def test_every_run_of_a_race_is_tracked(data, recorded):
    colonnade.compare(data, ["sync", "vafl"], seeds=1, track=["mlflow"], **QUICK)
    assert [one.opening.name for one in recorded] == ["sync-seed0", "vafl-seed0"]
    assert all(one.ended[0] == "finished" for one in recorded)


def test_a_tracker_that_fails_is_given_up_and_named(data, recorded, monkeypatch):
    monkeypatch.setattr(Recorder, "row", lambda self, step, numbers: 1 / 0)
    result = colonnade.train(data, "sync", track=["mlflow"], **QUICK)
    assert result.summary["status"] == "finished"
    assert result.summary["note"] == "tracking with mlflow stopped: ZeroDivisionError: division by zero"
    assert recorded[0].ended is None


def test_a_run_that_is_broken_off_is_told_and_goes_on(data, recorded, tmp_path):
    def broken(run):
        raise KeyboardInterrupt

    run = colonnade.prepare(data, "sync", track=["mlflow"], out=tmp_path / "run", **QUICK | {"updates": 600})
    with pytest.raises(KeyboardInterrupt):
        run.execute(broken)
    assert recorded[0].ended == ("stopped", {})
    again = track.Tracking(run.federation.config, tmp_path / "run")
    again.row({"update": 1, "missing": []})
    again.end("stopped")
    assert recorded[1].opening.id == "id-1"


SECRET = {
    "data": {
        "source": "/home/jenny/patients.csv",
        "dir": "/home/jenny",
        "label": "diagnosis",
        "id": "patient",
        "categorical": ["ward"],
        "split": {"clinic-jenny": ["ward"], "lab": ["x"]},
    },
    "clock": {"compute": {"kind": "trace", "file": "/home/jenny/cpu.tar"},
              "faults": [{"party": "clinic-jenny", "kind": "crash", "at_s": 1}]},
    "network": {"address": "10.1.2.3:7450", "parties": ["clinic-jenny", "lab"], "key": "/home/jenny/key.pem"},
    "party": {"data": "/home/jenny/own.csv"},
    "train": {"learning_rate": 0.5},
}  # fmt: skip


def test_no_path_name_or_address_is_among_the_settings():
    sent = settings_of(from_dict(SECRET))
    text = json.dumps(sent)
    for secret in ("jenny", "diagnosis", "patient", "ward", "lab", "10.1.2.3", ".csv", ".tar"):
        assert secret not in text, secret
    assert sent["data.source"] == "(a file)" and sent["data.split"] == "by columns"
    assert sent["train.learning_rate"] == "0.5" and '"kind": "trace"' in sent["clock.compute"]
    assert settings_of(from_dict({"data": {"source": "wine"}}))["data.source"] == "wine"


def test_of_the_parties_only_their_number_is_sent():
    row = {
        "update": 3,
        "value": 0.5,
        "loss": None,
        "missing": ["clinic-jenny"],
        "staleness": [1.0, 2.0],
        "rows": "test",
    }
    assert numbers_of(row) == {"value": 0.5, "missing_parties": 1.0}


def test_tensorboard_reads_the_file_back(data, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = colonnade.train(data, "sync", track=["tensorboard"], out=tmp_path / "run", **QUICK)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    losses = [(event.step, event.value) for event in events.Scalars("loss")]
    assert [step for step, _ in losses] == result.metrics["update"].to_list()
    assert [loss for _, loss in losses] == pytest.approx(result.metrics["loss"].to_list())
    assert events.Scalars("final/value")[0].value == pytest.approx(result.summary["value"])


def test_mlflow_has_the_run_and_no_name_of_the_user(data, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    result = colonnade.train(data, "sync", track=["mlflow"], out=tmp_path / "run", **QUICK)
    assert result.summary["note"] == ""
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("colonnade").experiment_id])
    assert run.info.status == "FINISHED" and run.data.params["protocol.name"] == "sync"
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [one.value for one in history] == result.metrics["loss"].to_list()
    assert "mlflow.user" not in run.data.tags and "mlflow.source.name" not in run.data.tags


def test_wandb_offline_keeps_the_run_and_nothing_of_the_machine(data, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    result = colonnade.train(data, "sync", track=["wandb"], out=tmp_path / "run", **QUICK)
    assert result.summary["note"] == ""
    (stored,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    content = stored.read_bytes()
    assert b"train_loss" in content and b"protocol.name" in content
    import getpass
    import platform

    assert str(tmp_path).encode() not in content and platform.node().encode() not in content
    assert b"requirements" not in content and getpass.getuser().encode() + b'"' not in content
