"""`colonnade privacy plan CONFIG`: the planned noise holds for the fastest party of a real run."""

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.config.resolve import load_partition
from colonnade.config.schema import apply_overrides, from_dict
from colonnade.data import Partition
from colonnade.experiments.plan_noise import Asked, plan_noise
from colonnade.experiments.run import prepare
from colonnade.privacy.gaussian import epsilon_of, mu_for
from colonnade.protocol.errors import ConfigError

SLOW = {
    "data": {"source": "digits", "parties": 3, "scale": "none"},
    "model": {"party": "mlp:8", "embedding": 4},
    "train": {"epochs": 1.0, "batch_size": 16, "learning_rate": 0.01, "eval_every": "0.5 epochs"},
    "clock": {"compute": [{"mean_s": 0.01}, {"kind": "exponential", "mean_s": 0.01}, {"mean_s": 0.05}]},
    "privacy": {"clip": 1.0},
}
DP_SGD = {"local_updates": "dp-sgd", "dp_sgd": {"clip": 0.5, "noise": 1.0}}


@pytest.fixture(scope="module")
def data() -> Partition:
    """A few rows of digits."""
    whole = load_partition(from_dict(SLOW))
    train, test = (tuple(x[:160] for x in whole.train), tuple(x[:40] for x in whole.test))
    return replace(whole, train=train, test=test, y_train=whole.y_train[:160], y_test=whole.y_test[:40], validation=15)


CASES = [
    ({"name": "vafl"}, {"clip": 1.0}),
    ({"name": "adaptive-flex", "A": 0.1}, {"clip": 2.0, **DP_SGD}),
    ({"name": "cascaded"}, {"clip": 1.0, "local_updates": "answers"}),
    ({"name": "t-sync", "t": 2}, {"clip": 1.0, "mechanism": "neurons"}),
]


@pytest.mark.parametrize(("protocol", "privacy"), CASES, ids=lambda table: table.get("name", ""))
def test_with_the_planned_noise_no_party_withdraws_and_none_spends_more(protocol, privacy, data):
    config = from_dict(SLOW | {"protocol": protocol, "privacy": privacy})
    found = plan_noise(config, data, Asked(epsilon=10.0), lambda done: None)
    most = max(need.mu(found.noise) for need in found.needs)
    chosen = {"privacy.noise": found.noise.rows, "privacy.mechanism": privacy.get("mechanism", "output")}
    if found.noise.steps is not None:
        chosen["privacy.dp_sgd.noise"] = found.noise.steps
    budget = {"party.budget": {"epsilon": 10.0, "delta": 1e-5}}
    tables = apply_overrides(SLOW | {"protocol": protocol, "privacy": privacy}, chosen | budget)
    summary = prepare(from_dict(tables), data).execute()
    assert summary["status"] == "finished" and not summary["privacy"].get("withdrawn"), summary["note"]
    parties = summary["privacy"]["parties"]
    for need in found.needs:
        told = parties[need.party]
        assert told["rows"] == need.rows and told["by_kind"].get("step", 0) == need.steps
        assert told["mu"] <= need.mu(found.noise) * (1 + 1e-9)
    assert max(told["epsilon"] for told in parties.values()) <= epsilon_of(most, 1e-5) * (1 + 1e-9) <= 10.0


def test_the_fastest_party_decides(data):
    config = from_dict(SLOW | {"protocol": {"name": "vafl"}})
    found = plan_noise(config, data, Asked(mu=1.0), lambda done: None)
    slow, fast = found.needs[2], max(found.needs[:2], key=lambda need: need.uploads)
    assert fast.uploads > 1.5 * slow.uploads
    assert fast.mu(found.noise) == pytest.approx(1.0, rel=1e-5) and slow.mu(found.noise) < 0.95
    back = plan_noise(config, data, Asked(noise=found.noise.rows), lambda done: None)
    assert [need.mu(back.noise) for need in back.needs] == [need.mu(found.noise) for need in found.needs]


def test_every_party_may_have_a_budget_of_its_own(data):
    """The slow one wants more privacy, and then it is the one that decides."""
    budgets = {"party-1": 20.0, "party-2": 20.0, "party-3": 1.0}
    tables = SLOW | {"party": {"budgets": {name: {"epsilon": e, "delta": 1e-5} for name, e in budgets.items()}}}
    found = plan_noise(from_dict(tables), data, Asked(), lambda done: None)
    assert found.needs[2].mu(found.noise) == pytest.approx(mu_for(1.0, 1e-5), rel=1e-5)
    assert found.needs[0].mu(found.noise) < mu_for(20.0, 1e-5)


def plan(tmp_path, *arguments):
    path = tmp_path / "own.toml"
    path.write_text("[data]\nparties = 2\n[model]\nembedding = 4\n[train]\nupdates = 30\n[privacy]\nclip = 1.0\n")
    words = ["privacy", "plan", str(path), *arguments]
    return CliRunner().invoke(app, words, env={"COLUMNS": "200"}, catch_exceptions=False).output


def test_at_the_command_line(tmp_path):
    text = plan(tmp_path, "--epsilon", "10", "--set", "clock.compute=[{mean_s = 0.01}, {mean_s = 0.1}]")
    assert "party-1" in text and "privacy.clip = 1, privacy.noise = " in text
    assert (
        "Assumed: swift on digits (1294 training, 144 validation and 359 test rows), 30 updates, "
        "the speeds of [clock], seed 0" in text
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give one of them"),
        (("--epsilon", "1", "--updates", "500"), "--updates = 500: is counted by a dry run"),
        (("--epsilon", "1", "--set", "protocol.name=wait"), "wait has no place for it"),
        (("--epsilon", "1", "--set", "protocol.name=cascaded", "--gradient-clip", "1"), "cascaded has 'plain' and"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_planned_is_refused(tmp_path, arguments, words):
    with pytest.raises(ConfigError, match=words):
        plan(tmp_path, *arguments)


def test_without_a_config_the_sizes_are_needed():
    words = ["privacy", "plan", "--epsilon", "1", "--clip", "1", "--rows", "100", "--batch-size", "10"]
    with pytest.raises(ConfigError, match=r"--updates = None: needed, unless a CONFIG.toml is named"):
        CliRunner().invoke(app, words, catch_exceptions=False)
