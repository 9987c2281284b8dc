"""Find the nearest setting that a method can use: several methods share one config, and it does not suit all of them.

`run` refuses a setting that the method cannot use. A comparison changes it for that method alone, and names the change.
It changes only the model and the step. It never changes data or `[privacy]`: a method that cannot use those takes no
part.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from colonnade.algorithms.method import Method
from colonnade.config.resolve import method_of, mixes
from colonnade.config.schema import Config, ModelConfig, TrainConfig
from colonnade.models.build import nearest_model, refuse_unknown
from colonnade.models.precision import FULL, MIXED

__all__ = ["Fitted", "fitted"]

LINEAR, CONCAT, SGD, CPU = "linear", "concat", "sgd", "cpu"


class _Change(NamedTuple):
    value: Any
    words: str  # the change in words, for a table


@dataclass(frozen=True, slots=True)
class Fitted:
    """The config with the changes, and the changes in words: dotted key → words."""

    config: Config
    changes: dict[str, str]


def fitted(config: Config, own: Collection[str] = ()) -> Fitted:
    """Return the config, changed where its method cannot use it; `own` are dotted keys meant for this method alone.

    Those keys stay: if the method cannot use them, it is refused as by `run`.
    """
    method, _ = method_of(config.protocol)
    _refuse_misspelt(config.model)
    model = {name: change for name, change in _model(config.model, method).items() if f"model.{name}" not in own}
    train = {name: change for name, change in _train(config.train, method).items() if f"train.{name}" not in own}
    changed = msgspec.structs.replace(
        config,
        model=msgspec.structs.replace(config.model, **_values(model)),
        train=msgspec.structs.replace(config.train, **_values(train)),
    )
    words = {f"model.{name}": change.words for name, change in model.items()}
    return Fitted(changed, words | {f"train.{name}": change.words for name, change in train.items()})


def _refuse_misspelt(model: ModelConfig) -> None:
    """Refuse unknown model names here: a method that changes or ignores model.party would hide the mistake."""
    for party in [model.party] if isinstance(model.party, str) else model.party or ():
        refuse_unknown(party, "model.party")


def _values(changes: Mapping[str, _Change]) -> dict[str, Any]:
    return {name: change.value for name, change in changes.items()}


def _model(model: ModelConfig, method: Method[Any]) -> dict[str, _Change]:
    """Return the changes by the names of [model]'s fields.

    A field that is left out has the method's default, and fits.
    """
    can, changes = method.capabilities, {}
    if model.party is not None and (party := _party(model.party, method)) != model.party:
        changes["party"] = _Change(party, party if isinstance(party, str) else " | ".join(party))
    if can.aggregates and model.aggregate is not None and model.aggregate not in can.aggregates:
        changes["aggregate"] = _Change(can.aggregates[0], can.aggregates[0])
    if can.aggregates and CONCAT not in can.aggregates and isinstance(model.embedding, list):
        width = max(model.embedding, default=1)
        if model.embedding != [width] * len(model.embedding):
            changes["embedding"] = _Change(width, f"embedding {width}")
    if method.defaults.party is None and model.device != CPU:
        changes["device"] = _Change(CPU, CPU)
    if model.precision == MIXED and not mixes(method):
        changes["precision"] = _Change(FULL, FULL)
    return changes


def _party(party: str | list[str], method: Method[Any]) -> str | list[str]:
    """Return the nearest party model; a method without networks has a linear model."""
    kinds, otherwise = method.capabilities.party_models, method.defaults.party
    if otherwise is None:
        return LINEAR
    if not kinds:
        return party
    if isinstance(party, str):
        return nearest_model(party, kinds, otherwise)
    return [nearest_model(one, kinds, otherwise) for one in party]


def _train(train: TrainConfig, method: Method[Any]) -> dict[str, _Change]:
    """Return the changes by the names of [train]'s fields: a method without networks has its own step and penalty."""
    if method.defaults.party is not None:
        return {}
    usual, changes = TrainConfig(), {}
    if train.optimiser not in (usual.optimiser, SGD):
        changes["optimiser"] = _Change(usual.optimiser, "own step")
        if train.learning_rate != usual.learning_rate:  # the rate was meant for that optimiser
            changes["learning_rate"] = _Change(usual.learning_rate, "own rate")
    if train.regulariser != usual.regulariser:
        changes["regulariser"] = _Change(usual.regulariser, "own penalty")
    if train.server_regulariser is not None:
        changes["server_regulariser"] = _Change(None, "own penalty")
    if train.max_gradient_norm is not None:
        changes["max_gradient_norm"] = _Change(None, "own step")
    if train.loss is not None:
        changes |= {"loss": _Change(None, "own loss"), "huber_delta": _Change(None, "own loss")}
    return changes
