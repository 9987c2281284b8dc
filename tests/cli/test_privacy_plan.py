"""`colonnade privacy plan` and `colonnade privacy ledger`: their printed output."""

import json
from math import inf

import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.drivers.ledger_file import LedgerFile
from colonnade.privacy.gaussian import epsilon_of, mu_for
from colonnade.privacy.ledger import Ledger
from colonnade.protocol.errors import CheckpointError, ConfigError

SIZES = ("--rows", "1000", "--batch-size", "100", "--updates", "30", "--clip", "2", "--test-rows", "200",
         "--evaluations", "5")  # fmt: skip


def run(*arguments):
    return CliRunner().invoke(app, ["privacy", *arguments], env={"COLUMNS": "200"}, catch_exceptions=False).output


def number(text, key):
    return float(text.partition(f"{key} = ")[2].split()[0].rstrip(",:;}"))


def test_the_noise_for_an_epsilon_and_back():
    text = run("plan", *SIZES, "--epsilon", "10")
    noise = number(text, "privacy.noise")
    assert "5000 rows uploaded" in text, "1000 + 3000 + 5·200"
    assert noise == pytest.approx(2 * 2 * 5000**0.5 / mu_for(10, 1e-5), rel=1e-5)
    back = run("plan", *SIZES, "--noise", str(noise))
    assert number(back, "ε") == pytest.approx(10, rel=1e-4)
    assert number(run("plan", *SIZES, "--mu", "1", "--no-warm-up"), "privacy.noise") == pytest.approx(4 * 4000**0.5)
    assert "does not hold against the server" in text and number(text.partition("claim")[2], "μ") < 0.1


def test_with_private_steps_a_record_pays_for_its_own_row():
    text = run("plan", *SIZES, "--epsilon", "3", "--gradient-clip", "1")
    assert "uploaded up to 5 times, and in up to 3 steps" in text, "evaluations are more than 1 + 3 uploads"
    noise, steps = number(text, "privacy.noise"), number(text.partition("dp_sgd")[2], "noise")
    back = run("plan", *SIZES, "--noise", str(noise), "--gradient-clip", "1", "--gradient-noise", str(steps))
    assert number(back.partition("dp_sgd")[2], "ε") == pytest.approx(3, rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give exactly one of them"),
        (("--epsilon", "1", "--noise", "2"), "give exactly one of them"),
        (("--noise", "-1"), "--noise = -1.0: must be above 0"),
        (("--epsilon", "1", "--delta", "1"), "between 0 and 1"),
        (("--epsilon", "1", "--rows", "0"), "--rows = 0: must be 1 or more"),
        (("--noise", "1", "--gradient-clip", "1"), "give both --gradient-noise and --gradient-clip"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_planned_is_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        run("plan", *SIZES, *arguments)


def test_a_large_delta_is_warned_of():
    assert "Warning: δ = 0.01 is not below 1/1000" in run("plan", *SIZES, "--epsilon", "1", "--delta", "0.01")


@pytest.fixture
def path(tmp_path):
    terms = {"party": "clinic", "mechanism": "output", "clip": 1.0, "noise": 5.0, "inner": 0.0, "delta": 1e-5,
             "local_updates": "plain", "dp_sgd": None, "train_rows": 100, "test_rows": 20}  # fmt: skip
    ledger = Ledger(terms)
    ledger.keep(LedgerFile(tmp_path / "ledger.jsonl"))
    for what, rows in (("warm-up", 100), *[("batch", 10)] * 6, ("evaluation", 20)):
        ledger.enter(what, "gaussian", 2 * rows**0.5, 5.0, "train", rows, None, inf)
    ledger.close()
    return tmp_path / "ledger.jsonl"


def test_a_ledger_as_a_table(path):
    text = run("ledger", str(path), "--last", "3")
    mu = 0.4 * 180**0.5
    line = " ".join(text.split())  # a narrow terminal wraps long lines, and the cells of the table
    assert "clinic, mechanism output, rows clipped to norm 1, noise 5, local updates plain" in line
    assert f"μ = {mu:.6g}, ε = {epsilon_of(mu, 1e-5):.6g} at δ = 1e-05. The chain is whole." in line
    assert {"training", "batches"} <= set(line.split()) and "The newest 3 of 8 releases" in line
    run("ledger", str(path), "--out", str(path.with_name("spent.html")))
    page = path.with_name("spent.html").read_text(encoding="utf-8")
    assert f"μ = {mu:.6g}, ε = {epsilon_of(mu, 1e-5):.6g}" in page and "<script" not in page
    both = run("ledger", str(path), str(path))
    assert f"μ = {mu * 2**0.5:.6g}" in both, "two runs on the same records add up"


def test_an_edited_ledger_is_not_shown(path):
    lines = path.read_text().splitlines()
    lines[2] = json.dumps(json.loads(lines[2]) | {"rows": 1})
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(CheckpointError, match="line 3 does not follow"):
        run("ledger", str(path))
