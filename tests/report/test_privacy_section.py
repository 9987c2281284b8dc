"""The report of a comparison over noise levels: metric against ε, the table, and what is not accounted."""

import json

import pytest

from colonnade.experiments.compare import compare
from colonnade.report.page import write_report

NOISY = {"protocol.name": "vafl", "privacy.mechanism": "output", "privacy.clip": 1.0}
TABLES = {
    "data": {"source": "breast-cancer", "parties": 2},
    "model": {"party": "linear", "embedding": 3},
    "protocol": {"table": "zeros"},
    "train": {"updates": 8, "eval_every": 4},
    "party": {"budgets": {}},
    "methods": {
        "little": NOISY | {"privacy.noise": 1.0},
        "much": NOISY | {"privacy.noise": 30.0},
        "stops": NOISY | {"privacy.noise": 10.0, "party.budgets": {"party-2": {"epsilon": 20.0, "delta": 1e-5}}},
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("noise") / "race"
    entries = compare(TABLES, ["vafl", "little", "much", "stops"], 1, path)
    assert not any(entry.error for entry in entries)
    return path


def test_metric_against_epsilon_is_a_chart_and_the_table_says_which_party_stopped(folder):
    page = write_report(folder).read_text()
    assert "accuracy against ε" in page and 'id="privacy"' in page
    assert "<h2>Privacy</h2>" in page and "this claim does not hold against the server" in page
    assert "its privacy budget does not allow another upload (ε = " in page
    assert page.count("not accounted") >= 3, "vafl without a mechanism, in both tables"


def test_the_summaries_carry_the_numbers(folder):
    said = {one["label"]: one["privacy"] for one in json.loads((folder / "comparison.json").read_text())}
    assert said["vafl"] is None
    assert said["little"]["epsilon"] > said["much"]["epsilon"] > 0
    assert said["little"]["mu"] == pytest.approx(30 * said["much"]["mu"], rel=0.2)
    assert list(said["stops"]["withdrawn"]) == ["party-2"]
    assert (folder / "stops-seed0" / "ledgers" / "party-2.jsonl").is_file()


def test_without_a_mechanism_the_page_has_no_such_section(folder, tmp_path):
    compare({**TABLES, "methods": {}}, ["vafl"], 1, tmp_path / "plain")
    page = write_report(tmp_path / "plain").read_text()
    assert "<h2>Privacy</h2>" not in page and "against ε" not in page and "not accounted" in page
