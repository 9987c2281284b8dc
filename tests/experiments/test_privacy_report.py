"""`colonnade privacy report`: its counts are those of a run, and it says what it cannot know."""

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
import tomli_w
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.config.schema import apply_overrides, from_dict
from colonnade.config.settle import settled
from colonnade.experiments.attempts import Attempt
from colonnade.experiments.made_up import holding
from colonnade.experiments.outflow import outflow
from colonnade.experiments.privacy_report import config_digest, privacy_report
from colonnade.experiments.run import prepare
from colonnade.protocol.errors import ConfigError
from colonnade.report.document import as_html, as_text
from colonnade.report.privacy_words import in_words, number

CLINIC = {
    "model": {"party": "linear", "embedding": 2},
    "protocol": {"name": "vafl"},
    "train": {"updates": 40, "batch_size": 16, "eval_every": 10, "learning_rate": 0.01},
    "network": {"parties": ["clinic", "lab", "shop"], "certificate": "clinic.pem"},
    "party": {"data": "not-here.csv"},
    "privacy": {"mechanism": "output", "clip": 1.0, "noise": 20.0},
}
NOW = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


def made(changes=None, rows=120):
    config = from_dict(apply_overrides(CLINIC, changes or {}))
    return privacy_report(config, lambda text, done: None, rows=rows, columns=6, now=NOW)


def words(report):
    return as_text(in_words(report, "clinic.toml", "colonnade privacy report clinic.toml"), 4000)


@pytest.fixture(scope="module")
def report():
    return made()


def test_what_leaves_is_what_a_run_sends(report):
    data = report.held.data
    run = prepare(from_dict(CLINIC), data)
    run.execute()
    counted, size = run.simulator.traffic.by_kind["Embeddings"]
    flows = [flow for flow in report.outflow.flows if flow.kind == "Embeddings"]
    assert report.outflow.whole
    assert (sum(flow.messages for flow in flows), sum(flow.size_bytes for flow in flows)) == (counted, size)
    judged = sum(flow.size_bytes for flow in report.outflow.flows if flow.kind == "EvaluationReply")
    assert 0 < judged <= run.simulator.traffic.evaluation_bytes, "which has the questions, too"


def test_a_long_run_is_extrapolated(report, monkeypatch):
    monkeypatch.setattr("colonnade.experiments.outflow.SIMULATED", 20)
    monkeypatch.setattr("colonnade.experiments.run.SLICE_EVENTS", 5)
    part = outflow(from_dict(CLINIC), report.held.data, lambda done: None)
    assert not part.whole and part.updates == 20
    whole = {(flow.sender, flow.kind): flow for flow in report.outflow.flows}
    for flow in part.flows:
        measured = whole[flow.sender, flow.kind]
        assert flow.messages == pytest.approx(measured.messages, rel=0.2)
        assert flow.size_bytes == pytest.approx(measured.size_bytes, rel=0.2)


def test_a_fast_party_is_not_told_too_low_an_epsilon(report):
    """The ledger of a run in which two parties are ten times slower."""
    slow = {"clock.compute": [{"mean_s": 0.01}, {"mean_s": 0.1}, {"mean_s": 0.1}]}
    told = prepare(from_dict(apply_overrides(CLINIC, slow)), report.held.data).execute()["privacy"]["parties"]
    equal = max(report.spending.epsilon(need) for need in report.spending.counted.by_clock)
    most = report.spending.epsilon(report.spending.most)
    assert equal < told["clinic"]["epsilon"] <= most
    text = words(report)
    assert f"ε of at most {number(most)} at δ = 1e-05" in text and "one party may make nearly all uploads" in text


def test_it_is_the_partys_own_view(report):
    assert report.held.view == "clinic" and not report.held.real
    text = words(report)
    assert "the config of the party clinic" in text and "all rows are made up" in text and "lab," not in text
    assert "2026-01-02 03:04 UTC" in text and report.digest in text
    assert "every party has 6 columns (--columns)" in text and "120 rows" in text


def test_its_own_file_is_used_if_it_is_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(50, 3))
    np.savetxt("clinic.csv", rows, delimiter=",", header="a,b,c", comments="")
    config = from_dict(apply_overrides(CLINIC, {"party.data": "clinic.csv"}))
    held = holding(config, None, None, 4)
    assert held.real == {"clinic"} and [block.shape for block in held.data.train] == [(36, 3), (36, 4), (36, 4)]
    with pytest.raises(
        ConfigError, match="--rows = 9: leave it out: the table that this config names gives the number"
    ):
        holding(config, None, 9, None)


def test_made_up_rows_give_no_all_clear(report):
    failed = Attempt("feature-inversion", "a server", "columns", 0.0, 0.0, 0.0, "of columns", real=False)
    told = replace(report, attempts=replace(report.attempts, made=[failed], left_out={"other": "cannot be read"}))
    text = words(told)
    assert "shows nothing: made-up rows" in text and "no better than chance" not in text
    assert "other was not run: cannot be read. This says nothing about safety." in text
    real = replace(told, attempts=replace(told.attempts, made=[replace(failed, real=True)]))
    assert "no better than chance in 3 epochs" in words(real)


def test_attacks_stand_beside_chance(report):
    labels = [attempt for attempt in report.attempts.made if attempt.attack == "label-inference"]
    assert labels and all(attempt.succeeds and not attempt.own_model for attempt in labels)
    assert all(0.4 < attempt.chance < 0.6 and 0.3 < attempt.control < 0.7 for attempt in labels)
    assert not replace(labels[0], success=labels[0].chance).succeeds
    assert "with a server that only sums" in words(report)


def test_without_privacy_it_says_so(report):
    spending = replace(report.spending, on=False)
    text = words(replace(report, spending=spending))
    assert "There is no formal guarantee: [privacy] is off in this config." in text
    assert "ε of at most 10 at δ = 1e-05" in text, "what noise it would take"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"protocol": {"name": "fedvs"}, "model": {}}, "Up to 1 of them together learn nothing about the others"),
        ({"protocol": {"name": "asysqn-sgd"}, "model": {}}, "Masks do not protect against three parties"),
    ],
    ids=["fedvs", "asysqn"],
)
def test_a_protection_of_the_methods_own_is_explained(changes, said):
    report = made(changes | {"privacy": {}, "train": {"updates": 4}}, rows=60)
    text = words(report)
    assert report.spending is None and said in text
    assert "cannot add noise, and its messages are not accounted for. That is not ε = 0" in text


def test_the_page_is_the_text_and_everything_is_escaped(report):
    document = in_words(report, "<script>alert(1)</script>.toml", "colonnade <b>")
    page, text = as_html(document), as_text(document, 4000)
    assert (
        "<script" not in page and "http" not in page.replace("http-equiv", "") and "src=" not in page.split("<style")[0]
    )
    assert "&lt;script&gt;" in page and "prefers-color-scheme: dark" in page
    for part in document.parts:
        for sentence in (part.title, *part.paragraphs, *part.points):
            assert sentence in text


def test_at_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tables = apply_overrides(CLINIC, {"train.updates": 4, "protocol.name": "t-sync"})
    (tmp_path / "clinic.toml").write_text(tomli_w.dumps(tables))
    words = ["privacy", "report", "clinic.toml", "--rows", "40", "--columns", "2", "--out", "pages/own.html"]
    text = CliRunner().invoke(app, words, env={"COLUMNS": "100"}, catch_exceptions=False).output
    page = (tmp_path / "pages" / "own.html").read_text(encoding="utf-8")
    assert "Page: pages/own.html" in text and "In short" in text and "<h2>In short</h2>" in page
    assert max(map(len, text.splitlines())) <= 100


def test_the_digest_is_of_the_settled_config():
    config = from_dict(CLINIC)
    spelled = from_dict(apply_overrides(CLINIC, {"model.server": "linear", "train.patience": 0}))
    other = from_dict(apply_overrides(CLINIC, {"privacy.noise": 21.0}))
    first, same, different = (config_digest(settled(one, 100, 10)) for one in (config, spelled, other))
    assert first == same != different


@pytest.mark.parametrize("value", [0.123456, 1.0, 12.34, 99.96, 123.4, 9639.7, 33512.3, 2.104e9])
def test_a_rounded_epsilon_is_never_too_low(value):
    assert value <= float(number(value).replace(",", "")) <= 1.02 * value


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no.toml"], "there is no such file"),
        (["own.toml", "--out", "page.txt"], "must end with .html"),
        (["own.toml", "--rows", "10"], "this is the config of a simulation"),
        (["own.toml", "--set", "protocol.name=centralised"], "has no parties"),
        (["own.toml", "--set", "protocol.name=wait", "--set", "privacy.mechanism=output"], "privacy.clip"),
        (["own.toml", "--set", "network.parties=['a','b']", "--party", "c"], "network.parties has a, b"),
        (
            ["own.toml", "--set", "network.parties=['a','b']", "--set", "party.data=x.csv"],
            "name the party whose config this is",
        ),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_what_cannot_be_reported_is_refused(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.toml").write_text("[train]\nupdates = 5\n")
    with pytest.raises(ConfigError, match=said):
        CliRunner().invoke(app, ["privacy", "report", *arguments], catch_exceptions=False)
