"""What a method gets if it cannot use the configured model, and which settings it does not get."""

from typing import Any

import pytest

from colonnade.algorithms import METHODS
from colonnade.config.fitting import fitted
from colonnade.config.schema import from_dict
from colonnade.experiments.run import prepare
from colonnade.protocol.errors import ColonnadeError, ConfigError, ModelError


def tables(name: str, **sections: dict[str, Any]) -> dict[str, Any]:
    return {"protocol": {"name": name}, "data": {"source": "breast-cancer", "parties": 4}, **sections}


def changes(name: str, own: tuple[str, ...] = (), **sections: dict[str, Any]) -> dict[str, str]:
    return fitted(from_dict(tables(name, **sections)), own).changes


MLP = {"party": "mlp:8", "embedding": 4, "aggregate": "concat"}


@pytest.mark.parametrize(
    ("name", "model", "words"),
    [
        ("fedvs", MLP, ["polynomial:1", "mean"]),
        ("fedvs", MLP | {"party": "dense", "aggregate": "max"}, ["polynomial:1", "mean"]),
        ("fedvs", MLP | {"party": "linear"}, ["polynomial:1", "mean"]),
        ("fedvs", MLP | {"party": "my.module:Network"}, ["polynomial:1", "mean"]),
        ("fedvs", MLP | {"party": "polynomial:3", "aggregate": "mean"}, []),
        ("fedvs", MLP | {"party": ["linear", "polynomial:2"]}, ["polynomial:1 | polynomial:2", "mean"]),
        ("wait", MLP, ["mean"]),
        ("wait", MLP | {"embedding": [4, 8, 4, 4]}, ["mean", "embedding 8"]),
        ("wait", MLP | {"embedding": [4, 4, 4, 4], "aggregate": "mean"}, []),
        ("asysqn-sgd", MLP, ["linear"]),
        ("asysqn-sgd", MLP | {"party": "linear", "device": "cuda"}, ["cpu"]),
        ("vafl", MLP | {"embedding": [4, 8, 4, 4], "device": "cuda"}, []),
    ],
)
def test_the_nearest_model(name: str, model: dict[str, Any], words: list[str]) -> None:
    assert list(changes(name, model=model).values()) == words


def test_a_method_without_networks_keeps_its_own_step() -> None:
    train = {"optimiser": "adam", "learning_rate": 0.02, "regulariser": {"kind": "l2", "weight": 0.1}}
    model = {"party": "linear"}
    found = changes("asysqn-sgd", model=model, train=train)
    assert found == {
        "train.optimiser": "own step", "train.learning_rate": "own rate", "train.regulariser": "own penalty",
    }  # fmt: skip
    assert not changes("vafl", model=model, train=train)
    assert changes("asysqn-sgd", train={"max_gradient_norm": 1.0}) == {"train.max_gradient_norm": "own step"}
    penalty = {"server_regulariser": {"kind": "l2", "weight": 0.1}}
    assert changes("asysqn-sgd", train=penalty) == {"train.server_regulariser": "own penalty"}
    loss = {"loss": "huber", "huber_delta": 0.5}
    assert changes("asysqn-sgd", train=loss) == {"train.loss": "own loss", "train.huber_delta": "own loss"}
    assert not changes("vafl", train=loss)
    assert not changes("asysqn-sgd", model=model, train={"optimiser": "sgd", "learning_rate": 0.02}), "the rate is kept"


def test_what_is_meant_for_the_method_itself_stays() -> None:
    train = {"optimiser": "adam", "learning_rate": 0.02}
    assert changes("fedvs", ("model.party",), model=MLP) == {"model.aggregate": "mean"}
    own = ("train.learning_rate", "model.party")
    assert changes("asysqn-sgd", own, model=MLP, train=train) == {"train.optimiser": "own step"}


@pytest.mark.parametrize("name", METHODS)
def test_what_a_config_leaves_open_is_the_methods_own_and_fits(name: str) -> None:
    config = from_dict(tables(name, train={"updates": 1}))
    suited = fitted(config)
    assert suited.changes == {} and suited.config == config
    assert prepare(suited.config).federation.config.model.party == (METHODS[name].defaults.party or "linear")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_given_what_it_can_use(name: str) -> None:
    """The contract of all methods: a method declares in its capabilities which models it cannot use."""
    model = {"party": "mlp:4", "embedding": [2, 3, 2, 2], "aggregate": "concat"}
    train = {"optimiser": "adam", "learning_rate": 0.01, "regulariser": {"kind": "l2", "weight": 0.1}, "updates": 1}
    prepare(fitted(from_dict(tables(name, model=model, train=train))).config)


def test_a_run_is_still_refused_what_its_method_cannot_use() -> None:
    for name, advice in (("fedvs", "use e.g. 'polynomial:2'"), ("wait", "use 'mean'")):
        with pytest.raises(ColonnadeError, match=advice):
            prepare(from_dict(tables(name, model=MLP)))


def test_privacy_is_never_dropped() -> None:
    privacy = {"mechanism": "output", "clip": 1.0, "noise": 0.5}
    suited = fitted(from_dict(tables("fedvs", model=MLP, privacy=privacy)))
    assert suited.config.privacy.on
    with pytest.raises(ConfigError, match=r"privacy.mechanism = 'output': fedvs cannot add noise"):
        prepare(suited.config)


def test_a_misspelt_model_is_refused_also_where_it_would_be_replaced() -> None:
    for name in ("fedvs", "asysqn-sgd", "vafl"):
        with pytest.raises(ModelError, match="model.party = 'lineer': unknown model"):
            changes(name, model={"party": "lineer"})
