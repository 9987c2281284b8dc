"""Colonnade from Python: the quickstart, a user's own modules, the shown results, and errors."""

import json
import sys

import numpy as np
import polars
import pytest
import torch
from torch import nn

import colonnade
from colonnade.protocol.errors import ConfigError, DataError, ModelError


@pytest.fixture(scope="module")
def data():
    return colonnade.split(colonnade.load("digits"), parties=2)


@pytest.fixture(scope="module")
def result(data):
    return colonnade.train(data, "vafl", "mlp:16", epochs=3, embedding=8, batch_size=32, learning_rate=0.2)


def test_the_quickstart_runs(capsys):
    """The program of the package's docstring, with a shorter run."""
    code = "\n".join(colonnade.__doc__.splitlines()[1:])
    assert "epochs=20" in code
    exec(code.replace("epochs=20", "epochs=2"), {})
    assert 0.3 < float(capsys.readouterr().out) <= 1


def test_all_public_names_exist():
    assert all(getattr(colonnade, name) is not None for name in colonnade.__all__)
    with pytest.raises(AttributeError, match="module 'colonnade' has no attribute 'trian'"):
        colonnade.trian  # noqa: B018


def test_metrics_is_a_table_with_a_row_per_evaluation(result):
    metrics = result.metrics
    assert isinstance(metrics, polars.DataFrame) and len(metrics) == 41
    assert {"clock_s", "update", "epochs", "value", "accuracy", "loss", "train_loss", "bytes_up"} <= set(
        metrics.columns
    )
    assert metrics["accuracy"][-1] == result.summary["validation_value"]
    assert metrics["test_accuracy"][-1] == result.summary["accuracy"] > 0.6
    assert metrics["clock_s"].is_sorted() and metrics["clock_s"][-1] == result.summary["clock_s"]


def test_plot(result):
    figure = result.plot()
    assert type(figure).__name__ == "Figure"
    assert figure.data[0].name == "vafl" and len(figure.data[0].x) == len(result.metrics)
    assert list(result.plot("update").data[0].x) == result.metrics["update"].to_list()


def test_a_result_says_what_is_wrong_with_it(data, result):
    assert result.warnings == result.summary["warnings"] == []
    assert repr(result) == f"Result(vafl: finished, accuracy {result.summary['value']:.4f})"
    assert result.plot().layout.title.text is None
    wild = colonnade.train(data, "vafl", "linear", updates=20, embedding=4, learning_rate=1e20)
    (warning,) = wild.warnings
    assert warning.startswith("diverged at update ") and warning in repr(wild)
    assert wild.plot().layout.title.text == wild.plot("loss").layout.title.text == warning


@pytest.mark.parametrize(
    ("source", "method"), [("digits", "vafl"), ("breast-cancer", "sync"), ("diabetes", "centralised")]
)
def test_predict_on_raw_rows_is_what_the_summary_says(source, method):
    table = colonnade.load(source)
    data = colonnade.split(table, parties=3, split_seed=1)
    result = colonnade.train(data, method, "linear", embedding=6, epochs=2, learning_rate=0.05)
    order = np.random.Generator(np.random.PCG64(1)).permutation(len(table.x))
    y_test = data.y_test[data.validation :]
    test = order[: len(y_test)]
    np.testing.assert_array_equal(table.y[test], y_test)
    raw = table.x[test]
    prediction = result.predict(raw)
    if source == "diabetes":
        assert prediction.shape == (len(test),)
        assert np.sqrt(np.mean((prediction - y_test) ** 2)) == pytest.approx(result.summary["value"], rel=1e-5)
        assert result.summary["accuracy"] is None
    else:
        np.testing.assert_allclose(prediction.sum(1), 1)
        assert np.mean(prediction.argmax(1) == y_test) == result.summary["accuracy"]
    blocks = [raw[:, index] for index in data.indices]
    np.testing.assert_allclose(result.predict(blocks), prediction, rtol=1e-5)


def test_predict_refuses_what_does_not_fit(result):
    with pytest.raises(DataError, match=r"rows must be numbers of shape \(rows, 64\)"):
        result.predict(np.zeros((3, 10)))
    with pytest.raises(colonnade.ColonnadeError, match="3 blocks for 2 parties"):
        result.predict([np.zeros((3, 32))] * 3)
    with pytest.raises(DataError, match=r"a block must be numbers of shape \(rows, 32\)"):
        result.predict([np.zeros((3, 32)), np.zeros((3, 31))])


class Own(nn.Module):
    """A class called with (inputs, outputs), with layers that draw and remember."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(inputs, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, outputs))

    def forward(self, x):
        return self.net(x)


@pytest.mark.parametrize(
    "party_model",
    [
        nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 8)),
        Own,
        lambda inputs, outputs: nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.Linear(16, outputs)),
        ["linear", Own],
        (nn.Linear(32, 8), "mlp:16"),
    ],
    ids=["module", "class", "callable", "list", "tuple"],
)
def test_ones_own_models(party_model, data):
    top, before = nn.Linear(16, 10), torch.get_rng_state()
    results = [
        colonnade.train(data, "vafl", party_model, top, embedding=8, epochs=3, batch_size=32, learning_rate=0.2)
        for _ in range(2)
    ]
    assert results[0].summary["accuracy"] > 0.5
    assert results[0].summary["weights_sha256"] == results[1].summary["weights_sha256"]
    assert torch.equal(torch.get_rng_state(), before), "the user's own generator stays"


def test_ones_own_models_in_a_folder(data, tmp_path):
    result = colonnade.train(data, "sync", Own, "linear", embedding=8, updates=5, out=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == result.summary
    assert 'party = "Own"' in (tmp_path / "run" / "config.toml").read_text()


def test_prepare_gives_a_run_that_has_not_started(data):
    run = colonnade.prepare(data, {"name": "t-sync", "t": 2}, "linear", updates=3, clock={"compute": {"mean_s": 1.0}})
    assert run.rows == [] and run.simulator.now == 0
    summary = run.execute()
    assert summary["updates"] == 3 and summary["clock_s"] > 3


def test_progress_shows_and_changes_nothing(data, capsys):
    settings = {"updates": 5, "embedding": 4}
    quiet, shown = (colonnade.train(data, "sync", "linear", progress=p, **settings) for p in (False, True))
    assert quiet.summary["trace_sha256"] == shown.summary["trace_sha256"]
    capsys.readouterr()


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"protocol": "vaffl"}, ConfigError, "protocol.name = 'vaffl': unknown method; did you mean 'vafl'"),
        ({"protocol": {"name": "t-sync", "t": 3}}, ConfigError, "protocol.t = 3: must be between 1 and"),
        ({"learning_rat": 0.1}, ConfigError, "train.learning_rat = 0.1: unknown key; did you mean 'learning_rate'"),
        ({"clock": {"computer": {}}}, ConfigError, "clock.computer = {}: unknown key; did you mean 'compute'"),
        ({"party_model": 5}, ConfigError, "party_model or server_model = 5: give a name, a torch module or a callable"),
        ({"party_model": ["linear"]}, ConfigError, "model.party = .*one entry for each of 2 parties"),
        ({"party_model": nn.Linear(32, 9)}, ModelError, r"model.party of party-1: gives \(2, 9\)"),
        ({"server_model": nn.Linear(64, 9)}, ModelError, r"model.server: gives \(2, 9\).*should be \(2, 10\)"),
        ({"embedding": [8]}, ConfigError, "model.embedding"),
        ({"aggregate": "median"}, ConfigError, "model.aggregate = 'median'"),
        ({"epochs": 1, "updates": 2}, ConfigError, "give only one of them"),
    ],
)
def test_errors_before_anything_starts(settings, error, message, data, tmp_path):
    with pytest.raises(error, match=message):
        colonnade.train(data, **settings, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_importing_the_package_does_not_import_torch():
    import subprocess

    code = "import sys, colonnade; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
