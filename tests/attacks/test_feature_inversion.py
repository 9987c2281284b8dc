"""Feature inversion: it reads columns from plain embeddings, fewer through more noise, and few from sums."""

import json
from itertools import pairwise

import numpy as np
import pytest

from colonnade.attacks.attack import Order, attack
from colonnade.attacks.feature_inversion import FEATURE_INVERSION, Reconstruction, decode_error
from colonnade.protocol.errors import ConfigError
from colonnade.report.page import write_report

TABLES = {"train": {"epochs": 1.0}, "data": {"source": "digits", "parties": 4}}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    out = tmp_path_factory.mktemp("inversion") / "attack"
    order = Order(TABLES, ["vafl", "cascaded", "fedvs"], ["linear"], 1)
    found = attack(FEATURE_INVERSION, order, out, "colonnade attack feature-inversion")
    return {(one.method, one.noise): one.summary() for one in found}, out


@pytest.mark.parametrize("method", ["vafl", "cascaded"])
def test_the_error_grows_with_the_noise(method, outcomes):
    found, _ = outcomes
    noises = sorted(noise for name, noise in found if name == method)
    errors = [found[method, noise]["error"] for noise in noises]
    assert noises == [0.0, 0.1, 0.3, 1.0, 3.0, 10.0]
    assert errors[0] < 0.55 and errors[-1] > 0.9, "8 numbers of 16 pixels; then almost nothing"
    assert all(before < after + 0.03 for before, after in pairwise(errors))
    assert found[method, 0.0]["epsilon"] is None and found[method, 0.1]["epsilon"] > found[method, 10.0]["epsilon"]


def test_sums_of_all_parties_tell_less_than_the_partys_own(outcomes):
    found, _ = outcomes
    assert found["fedvs", 0.0]["error"] > found["vafl", 0.0]["error"] + 0.1
    assert [noise for name, noise in found if name == "fedvs"] == [0.0], "it has no place for noise"


def test_shuffled_pairs_tell_nothing(outcomes):
    assert all(said["control"] > 0.97 for said in outcomes[0].values())


def test_it_is_written_and_reported(outcomes):
    _, out = outcomes
    said = json.loads((out / "attack.json").read_text())
    assert said["attack"] == "feature-inversion" and len(said["outcomes"]) == 13
    page = write_report(out).read_text()
    assert "Attack: feature-inversion" in page and "not accounted" in page


def test_the_noise_of_a_config_is_taken_as_it_is():
    privacy = {"mechanism": "output", "clip": 1.0, "noise": 2.0}
    (one,) = FEATURE_INVERSION.run(Order(TABLES | {"privacy": privacy}, ["flex"], ["linear"], 1))
    assert one.noise == 2.0 and one.trials[0]["epsilon"] > 0


def test_a_decoder_inverts_what_can_be_inverted():
    random = np.random.default_rng(0)
    x = random.normal(size=(600, 4))
    known = random.random(600) < 0.3
    seen = x @ random.normal(size=(4, 6))
    assert decode_error("linear", seen, x, known, 0) < 1e-3
    assert decode_error("network", seen, x, known, 0) < 0.2
    assert decode_error("linear", random.normal(size=(600, 6)), x, known, 0) > 0.95


def test_what_it_cannot_read_is_refused():
    with pytest.raises(ConfigError, match="sends nothing that this attacker can read"):
        FEATURE_INVERSION.run(Order(TABLES, ["wait"], ["linear"], 1))


def test_an_interval_over_trials():
    one = Reconstruction("vafl", "linear", 0.0, [{"error": 0.1}, {"error": 0.3}])
    assert one.error == pytest.approx(0.2) and one.margin == pytest.approx(12.706 * 0.1, rel=1e-3)
