"""How the roles step, from `[train]`: the loss, the limits and rates of steps, and which keys a method obeys."""

import re
from typing import Any, get_args

from colonnade.algorithms import METHODS
from colonnade.algorithms.method import OPTIONAL_KEYS, Method, Options
from colonnade.algorithms.training import Every, Rule, StepRule
from colonnade.config.schema import RoleNorms, TrainConfig
from colonnade.data import Task
from colonnade.models import LossSpec
from colonnade.privacy.settings import PrivacySettings
from colonnade.protocol.errors import ConfigError

__all__ = ["every_of", "gradient_norms", "loss_of", "refuse_unsupported", "step_rule"]

# Why a linear method cannot obey a key, and what to do instead.
_LINEAR = {
    "loss": "a linear method has its own losses: set protocol.loss ('ridge' or 'huber' for numbers). There is no 'l1': "
    "its second derivative, from which these methods take the size and direction of a step, is 0",
    "server_regulariser": "a linear method has no server network: protocol.l2 is the penalty of all weights",
}


def refuse_unsupported(train: TrainConfig, method: Method[Any]) -> None:
    """Raise ConfigError for a key that the method's roles would ignore."""
    for name in OPTIONAL_KEYS:
        value, key = getattr(train, name), f"train.{name}"
        if value is None or name in method.capabilities.train_keys:
            continue
        if method.defaults.party is None and name in _LINEAR:
            raise ConfigError(key, value, f"{method.name}: {_LINEAR[name]}")
        able = ", ".join(able.name for able in METHODS.values() if name in able.capabilities.train_keys)
        raise ConfigError(key, value, f"{method.name} does not support it: use one of {able}, or leave the key out")


def loss_of(train: TrainConfig, task: Task | None) -> LossSpec:
    """Return the loss of a regression; a party does not know the task."""
    if train.loss is not None and task is not None and task.kind != "regression":
        advice = f"is for numbers as labels, but these labels have {len(task.classes)} classes: leave it out"
        raise ConfigError("train.loss", train.loss, advice)
    if train.huber_delta is not None and train.loss != "huber":
        raise ConfigError("train.huber_delta", train.huber_delta, "needs train.loss = 'huber'")
    delta = 1.0 if train.huber_delta is None else train.huber_delta
    if not 0 < delta < float("inf"):
        advice = "must be above 0 (in standard deviations of the training labels)"
        raise ConfigError("train.huber_delta", delta, advice)
    return LossSpec(train.loss or "squared", delta)


def gradient_norms(
    train: TrainConfig, parties: int, method: Method[Any], privacy: PrivacySettings
) -> tuple[float | None, tuple[float | None, ...]]:
    """Return the longest gradient of the server and of each party; None: any length."""
    key, limit = "train.max_gradient_norm", train.max_gradient_norm
    if limit is None:
        return None, (None,) * parties
    norms = limit if isinstance(limit, RoleNorms) else RoleNorms(limit, limit)
    if method.defaults.party is None:
        advice = f"{method.name} takes its steps from curvature and its own rate; leave this key out"
        raise ConfigError(key, limit, advice)
    of_parties = tuple(norms.party) if isinstance(norms.party, list) else (norms.party,) * parties
    if len(of_parties) != parties:
        raise ConfigError(f"{key}.party", norms.party, f"a list needs one entry for each of {parties} parties")
    for value in (norms.server, *of_parties):
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(key, value, "must be above 0; leave the key out for no limit")
    if privacy.on and privacy.dp_sgd is not None and any(value is not None for value in of_parties):
        advice = (
            "shortens the mean of a batch, but privacy.dp_sgd.clip already shortens the gradient of every record, and "
            "the mean then has noise in it: set it for the server alone, {server = ...}, or leave it out"
        )
        raise ConfigError(key, limit, advice)
    return norms.server, of_parties


def step_rule(train: TrainConfig, limit: Every, batch: int, rows: int, parties: int, options: Options) -> StepRule:
    """Return how the rates change; raises ConfigError for a rule that lacks a number or does not use one."""
    rule = train.step_rule
    if rule not in get_args(Rule):
        raise ConfigError("train.step_rule", rule, f"use one of {', '.join(map(repr, get_args(Rule)))}")
    if not train.step_offset > 0:
        raise ConfigError("train.step_offset", train.step_offset, "must be above 0 (the K0 of 1/(k + K0))")
    sizes = options.threshold(parties) * batch, rows * parties
    planned = limit.updates(*sizes)
    if rule in ("inverse-sqrt", "cosine") and planned is None:
        advice = "needs the number of updates: limit the run by updates or epochs"
        raise ConfigError("train.step_rule", rule, advice)
    factor, every = _steps(train, limit, sizes)
    warm_up = _updates("train.warm_up", train.warm_up, limit, sizes) if train.warm_up is not None else 0
    if planned is not None and warm_up >= planned:
        advice = f"must be shorter than the run: {warm_up} of {planned} updates"
        raise ConfigError("train.warm_up", train.warm_up, advice)
    return StepRule(rule, planned or 1, train.step_offset, factor, every, warm_up)  # type: ignore[arg-type]


def _steps(train: TrainConfig, limit: Every, sizes: tuple[int, int]) -> tuple[float, int]:
    """Return the factor and the updates of step_rule = "step"."""
    if train.step_rule != "step":
        for name in ("step_factor", "step_every"):
            if (value := getattr(train, name)) is not None:
                raise ConfigError(f"train.{name}", value, "needs train.step_rule = 'step'")
        return 1.0, 1
    factor = 0.1 if train.step_factor is None else train.step_factor
    if not 0 < factor <= 1:
        raise ConfigError("train.step_factor", factor, "must be above 0, and at most 1")
    if train.step_every is None:
        advice = "is missing: after how much training the rate falls, e.g. 1000 (updates) or '5 epochs'"
        raise ConfigError("train.step_every", None, advice)
    return factor, _updates("train.step_every", train.step_every, limit, sizes)


def _updates(key: str, value: int | str, limit: Every, sizes: tuple[int, int]) -> int:
    """Parse updates or epochs, and return updates of the global model."""
    updates = every_of(key, value, limit, 1).updates(*sizes)
    if updates is None or updates < 1:
        raise ConfigError(key, value, "give at least 1 update, or e.g. '5 epochs': a rate changes with the updates")
    return updates


_AMOUNT = re.compile(r"^\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(s|seconds?|epochs?|updates?)\s*$")


def every_of(key: str, value: int | str | None, limit: Every, parts: int) -> Every:
    """Parse 50 (updates), "2 s" or "0.5 epochs"; None: a fixed number of parts of the whole run."""
    if value is None:
        amount = limit.amount / parts
        return Every(limit.unit, max(1.0, round(amount)) if limit.unit == "updates" else amount)
    if isinstance(value, int):
        every = Every("updates", value)
    else:
        match = _AMOUNT.match(value)
        if match is None:
            raise ConfigError(key, value, "give a number of updates, or e.g. '2 s' or '0.5 epochs'")
        unit = {"s": "seconds", "e": "epochs", "u": "updates"}[match[2][0]]
        every = Every(unit, float(match[1]))  # type: ignore[arg-type]
    if not 0 < every.amount < float("inf"):
        raise ConfigError(key, value, "must be above 0")
    return every
