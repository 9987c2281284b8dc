"""What a config may say: unknown keys, wrong types, overrides, and the round trip through TOML."""

import tomllib

import pytest
import tomli_w

from colonnade.config.schema import (
    Config,
    RoleRates,
    apply_overrides,
    difference,
    from_dict,
    parse_override,
    read_toml,
    to_dict,
)
from colonnade.config.settle import settled
from colonnade.protocol.errors import ConfigError


def nested(dotted, value):
    for part in reversed(dotted.split(".")):
        value = {part: value}
    return value


@pytest.mark.parametrize(
    ("dotted", "value", "hint"),
    [
        ("dta", {"source": "digits"}, "data"),
        ("data.sorce", "digits", "source"),
        ("model.embeding", 8, "embedding"),
        ("train.learning_rat", 0.1, "learning_rate"),
        ("train.learning_rate", {"server": 0.1, "party": 0.1, "partyy": 1}, "party"),
        ("train.regulariser.wieght", 0.1, "weight"),
        ("clock.lost_after", 1, "lost_after_s"),
        ("clock.compute.mean", 0.1, "mean_s"),
        ("clock.network.latency", 0.1, "latency_s"),
        ("clock.server.compute.mean", 0.1, "mean_s"),
        ("clock.server.netwrk", {}, "network"),
        ("clock.compute", [{"mean": 0.1}], "mean_s"),
        ("clock.faults", [{"party": "party-1", "kind": "crash", "until": 1}], "until_s"),
    ],
)
def test_an_unknown_key_is_refused_with_a_hint(dotted, value, hint):
    with pytest.raises(ConfigError, match=f"unknown key; did you mean '{hint}'.*known here: .*{hint}") as caught:
        from_dict(nested(dotted, value))
    assert caught.value.key.startswith(dotted.split(".")[0])
    assert str(caught.value).startswith(f"{caught.value.key} = ")


def test_an_unknown_key_names_key_and_value():
    with pytest.raises(ConfigError) as caught:
        from_dict({"train": {"learning_rat": 0.25}})
    assert (caught.value.key, caught.value.value) == ("train.learning_rat", 0.25)


@pytest.mark.parametrize(
    ("dotted", "value", "expected"),
    [
        ("train.batch_size", "64", "expected `int`, got `str`"),
        ("train.batch_size", 6.5, "expected `int`, got `float`"),
        ("train.epochs", "many", "expected `float"),
        ("train.learning_rate", {"server": 0.1}, "missing required field `party`"),
        ("data.parties", "four", "expected `int"),
        ("model.party", 5, "expected `str"),
        ("clock.compute.kind", "fast", "nvalid enum value 'fast'"),
        ("clock.faults", {"party": "party-1"}, "expected `array`"),
        ("clock", 5, "expected `object`"),
        ("network.metrics_port", 65536, "from 1 to 65535"),
    ],
)
def test_a_wrong_type_names_key_value_and_what_would_be_right(dotted, value, expected):
    with pytest.raises(ConfigError) as caught:
        from_dict(nested(dotted, value))
    assert (caught.value.key, caught.value.value) == (dotted, value)
    assert expected in caught.value.advice


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train.learning_rate=0.05", ("train.learning_rate", 0.05)),
        ("train.epochs = 3", ("train.epochs", 3)),
        ("model.party=mlp:64", ("model.party", "mlp:64")),
        ('model.party=["linear", "mlp:8"]', ("model.party", ["linear", "mlp:8"])),
        ("clock.compute={kind = 'fixed', mean_s = 1}", ("clock.compute", {"kind": "fixed", "mean_s": 1})),
        ("protocol.name=vafl", ("protocol.name", "vafl")),
        ("data.source=a=b.csv", ("data.source", "a=b.csv")),
        ("x.y=true", ("x.y", True)),
    ],
)
def test_overrides_are_toml_values_or_text(text, expected):
    assert parse_override(text) == expected


@pytest.mark.parametrize("text", ["train.epochs", "=3", " = 3"])
def test_an_override_without_a_key_or_a_value(text):
    with pytest.raises(ConfigError, match="--set = .*must be KEY=VALUE"):
        parse_override(text)


def test_overrides_replace_and_leave_the_original_alone():
    tables = {"train": {"epochs": 3, "seed": 1}, "clock": {"faults": []}}
    changed = apply_overrides(tables, {"train.epochs": 5, "clock.server.network.latency_s": 0.1})
    assert changed["train"] == {"epochs": 5, "seed": 1}
    assert changed["clock"] == {"faults": [], "server": {"network": {"latency_s": 0.1}}}
    assert tables == {"train": {"epochs": 3, "seed": 1}, "clock": {"faults": []}}


def test_an_override_cannot_go_below_a_value():
    with pytest.raises(ConfigError, match=r"train.epochs.x = 1: 'epochs' is a value, not a table"):
        apply_overrides({"train": {"epochs": 3}}, {"train.epochs.x": 1})


RICH = {
    "data": {"source": "digits", "split": {"a": ["p0..p31"], "b": ["p32..p63"]}},
    "model": {"party": ["linear", "mlp:8"], "embedding": [4, 8]},
    "protocol": {"name": "t-sync", "t": 2, "pause_s": [0.0, 1.5]},
    "methods": {"ahead": {"protocol.name": "vafl", "protocol.extra_rows": 1}},
    "clock": {
        "compute": [{"kind": "exponential", "mean_s": 0.1}, {"kind": "trace", "cpu": [10.0, 50.0]}],
        "network": {"bandwidth_mbps": float("inf")},
        "faults": [{"party": "a", "kind": "crash", "at_s": 1.0}],
    },
    "train": {
        "learning_rate": {"server": 0.1, "party": [0.1, 0.2]},
        "optimiser": {"server": "adam", "party": {"name": "sgd", "momentum": 0.5}},
        "regulariser": [{"kind": "l2", "weight": 0.1}, {}],
        "updates": 10,
        "eval_every": "2 s",
    },
}


@pytest.mark.parametrize("tables", [{}, RICH], ids=["defaults", "rich"])
def test_the_resolved_config_survives_toml(tables):
    config = from_dict(tables)
    written = tomli_w.dumps(to_dict(config))
    assert from_dict(tomllib.loads(written)) == config
    assert tomli_w.dumps(to_dict(from_dict(tomllib.loads(written)))) == written


def test_every_default_is_written_out():
    written = to_dict(Config())
    assert written["train"]["seed"] == 0 and written["clock"]["server"]["compute"]["mean_s"] == 0.001
    assert "epochs" not in written["train"], "keys that are not set are left out"
    written = to_dict(settled(Config(protocol={"name": "sync"}), rows=200))
    assert (written["train"]["batch_size"], written["train"]["optimiser"], written["train"]["epochs"]) == (
        12,
        "adam",
        20,
    )
    assert written["model"] == {
        "party": "mlp:64", "embedding": 32, "server": "linear", "aggregate": "concat", "device": "cpu",
        "precision": "fp32",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("train", "optimiser", "rate"),
    [
        ({}, "adam", "auto"),
        ({"optimiser": "adam"}, "adam", "auto"),
        ({"optimiser": "RMSprop"}, "RMSprop", 0.01),
        ({"optimiser": "sgd"}, "sgd", 0.1),
        ({"optimiser": "momentum"}, "momentum", 0.02),
        ({"learning_rate": 0.3}, "sgd", 0.3),  # as before methods had defaults
        ({"learning_rate": 0.3, "optimiser": "adam"}, "adam", 0.3),
        ({"optimiser": {"server": "adam", "party": ["sgd", "adam"]}}, None, RoleRates(0.01, [0.1, 0.01])),
    ],
)
def test_the_rate_is_that_of_the_optimiser(train, optimiser, rate):
    found = settled(from_dict({"protocol": {"name": "sync"}, "train": train})).train
    assert found.learning_rate == rate and found.optimiser == (optimiser or train["optimiser"])


def test_a_rate_that_is_no_rate_is_refused_with_what_is_right():
    with pytest.raises(ConfigError, match=r"train.learning_rate = 'fast': give a number, .* or 'auto'"):
        from_dict({"train": {"learning_rate": "fast"}})


def test_difference_names_the_first_key_that_differs():
    assert difference({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 2}}) is None
    assert difference({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}) == "a.c: 2 there, 3 here"
    assert difference({"a": 1}, {}) == "a: 1 there, None here"


def test_reading_files(tmp_path):
    good, bad, latin = tmp_path / "good.toml", tmp_path / "bad.toml", tmp_path / "latin.toml"
    good.write_text("[train]\nepochs = 2\n")
    bad.write_text("[train\nepochs = 2\n")
    latin.write_bytes(b"x = '\xe4'")
    assert read_toml(good) == {"train": {"epochs": 2}}
    with pytest.raises(ConfigError, match=r"CONFIG = '.*bad.toml': is not TOML: .*line 1"):
        read_toml(bad)
    with pytest.raises(ConfigError, match=r"CONFIG = '.*none.toml': there is no such file"):
        read_toml(tmp_path / "none.toml")
    for path in (latin, tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_toml(path)
