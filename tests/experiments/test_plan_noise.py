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


@pytest.mark.parametrize("privacy", [DP_SGD | {"clip": 1.0}, {"clip": 1.0, "local_updates": "answers"}])
def test_no_plan_for_records_that_chance_draws(privacy, data):
    name = "vafl" if "dp_sgd" in privacy else "cascaded"
    train = SLOW["train"] | {"sampling": "iid"}
    config = from_dict(SLOW | {"protocol": {"name": name}, "privacy": privacy, "train": train})
    with pytest.raises(ConfigError, match="train.sampling = 'iid': chance decides how often a record is drawn"):
        plan_noise(config, data, Asked(epsilon=10.0, speeds="clock"), lambda done: None)


CASES = [
    ({"name": "vafl"}, {"clip": 1.0}),
    ({"name": "adaptive-flex", "A": 0.1}, {"clip": 2.0, **DP_SGD}),
    ({"name": "cascaded"}, {"clip": 1.0, "local_updates": "answers"}),
    ({"name": "t-sync", "t": 2}, {"clip": 1.0, "mechanism": "neurons"}),
    ({"name": "cascaded", "difference": "central"}, {"clip": 1.0, "local_updates": "answers"}),
]


@pytest.mark.parametrize(("protocol", "privacy"), CASES, ids=lambda table: table.get("name", ""))
def test_with_the_planned_noise_no_party_withdraws_and_none_spends_more(protocol, privacy, data):
    config = from_dict(SLOW | {"protocol": protocol, "privacy": privacy})
    found = plan_noise(config, data, Asked(epsilon=10.0, speeds="clock"), lambda done: None)
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
    found = plan_noise(config, data, Asked(mu=1.0, speeds="clock"), lambda done: None)
    slow, fast = found.needs[2], max(found.needs[:2], key=lambda need: need.uploads)
    assert fast.uploads > 1.5 * slow.uploads
    assert fast.mu(found.noise) == pytest.approx(1.0, rel=1e-5) and slow.mu(found.noise) < 0.95
    back = plan_noise(config, data, Asked(noise=found.noise.rows, speeds="clock"), lambda done: None)
    assert [need.mu(back.noise) for need in back.needs] == [need.mu(found.noise) for need in found.needs]


def test_every_party_may_have_a_budget_of_its_own(data):
    """The slow party wants more privacy, so its budget decides."""
    budgets = {"party-1": 20.0, "party-2": 20.0, "party-3": 1.0}
    tables = SLOW | {"party": {"budgets": {name: {"epsilon": e, "delta": 1e-5} for name, e in budgets.items()}}}
    found = plan_noise(from_dict(tables), data, Asked(speeds="clock"), lambda done: None)
    assert found.needs[2].mu(found.noise) == pytest.approx(mu_for(1.0, 1e-5), rel=1e-5)
    assert found.needs[0].mu(found.noise) < mu_for(20.0, 1e-5)


UNEVEN = [{"mean_s": 0.01}, {"mean_s": 0.01}, {"mean_s": 0.1}]  # one party is ten times slower


@pytest.mark.parametrize("method", ["vafl", "swift", "t-sync"])
def test_a_plan_that_knows_no_speeds_holds_for_the_fastest_party_of_any_run(method, data):
    """A plan with equal speeds does not hold: it counts less than the ledger of the fast parties."""
    privacy = {"mechanism": "output", "clip": 1.0, "noise": 1.0}
    tables = {key: value for key, value in SLOW.items() if key != "clock"}
    tables |= {"protocol": {"name": method}, "privacy": privacy}
    found = plan_noise(from_dict(tables), data, Asked(noise=1.0), lambda done: None)
    equal = max(need.mu(found.noise) for need in found.counted.by_clock)
    told = prepare(from_dict(tables | {"clock": {"compute": UNEVEN}}), data).execute()["privacy"]["parties"]
    spent = max(one["mu"] for one in told.values())
    assert equal < spent <= found.needs[0].mu(found.noise)


def test_a_party_that_is_asked_for_rows_again_has_a_bound_too(data):
    """With max_delay, speeds between the extremes cost most."""
    clock = {"compute": [{"mean_s": 0.0027}, {"mean_s": 0.1024}, {"mean_s": 0.1393}]}
    tables = SLOW | {"protocol": {"name": "vafl", "max_delay": 1}, "clock": clock}
    tables |= {"privacy": {"mechanism": "output", "clip": 1.0, "noise": 1.0}}
    told = prepare(from_dict(tables), data).execute()["privacy"]["parties"]
    equal = from_dict({key: value for key, value in tables.items() if key != "clock"})
    found = plan_noise(equal, data, Asked(noise=1.0), lambda done: None)
    assert max(one["mu"] for one in told.values()) <= found.needs[0].mu(found.noise)


@pytest.mark.parametrize("privacy", [{"clip": 1.0}, {"clip": 1.0, **DP_SGD}], ids=["plain", "dp-sgd"])
def test_a_long_run_is_extrapolated_upwards(privacy, data, monkeypatch):
    tables = SLOW | {"protocol": {"name": "vafl"}, "privacy": {"mechanism": "output", "noise": 1.0, **privacy}}
    whole = plan_noise(from_dict(tables), data, Asked(noise=1.0), lambda done: None).counted
    monkeypatch.setattr("colonnade.experiments.dry_run.COUNTED", 10)  # of 30 updates
    monkeypatch.setattr("colonnade.experiments.dry_run.MOST_COUNTED", 20)
    monkeypatch.setattr("colonnade.experiments.run.SLICE_EVENTS", 5)  # so that it looks at half of them
    part = plan_noise(from_dict(tables), data, Asked(noise=1.0), lambda done: None).counted
    assert whole.whole and not part.whole
    assert whole.most.of_rows <= part.most.of_rows <= 2 * whole.most.of_rows
    assert whole.most.of_steps <= part.most.of_steps <= 2 * whole.most.of_steps
    assert whole.most.uploads <= part.most.uploads and whole.most.rows <= part.most.rows <= 1.5 * whole.most.rows


def plan(tmp_path, *arguments):
    path = tmp_path / "own.toml"
    path.write_text("[data]\nparties = 2\n[model]\nembedding = 4\n[train]\nupdates = 10\n[privacy]\nclip = 1.0\n")
    words = ["privacy", "plan", str(path), *arguments]
    return CliRunner().invoke(app, words, env={"COLUMNS": "200"}, catch_exceptions=False).output


def test_at_the_command_line(tmp_path):
    text = plan(tmp_path, "--epsilon", "10", "--set", "clock.compute=[{mean_s = 0.01}, {mean_s = 0.1}]")
    assert "party-1" in text and "at any speed" in text and "privacy.clip = 1, privacy.noise = " in text
    assert (
        "Assumed: swift on digits (1294 training, 144 validation and 359 test rows), 10 updates, "
        "seed 0; parties may have any speed: one party may make nearly all uploads" in text
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give exactly one of them"),
        (("--epsilon", "1", "--updates", "500"), "--updates = 500: is counted by a dry run"),
        (("--epsilon", "1", "--set", "protocol.name=wait"), "wait cannot add noise"),
        (
            ("--epsilon", "1", "--set", "protocol.name=cascaded", "--gradient-clip", "1"),
            "cascaded supports 'plain' and",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_planned_is_refused(tmp_path, arguments, words):
    with pytest.raises(ConfigError, match=words):
        plan(tmp_path, *arguments)


def test_without_a_config_the_sizes_are_needed():
    words = ["privacy", "plan", "--epsilon", "1", "--clip", "1", "--rows", "100", "--batch-size", "10"]
    with pytest.raises(ConfigError, match=r"--updates = None: is missing: give it, or a CONFIG.toml"):
        CliRunner().invoke(app, words, catch_exceptions=False)
