"""Fill in what a config leaves open from the method: its model, optimiser, rates and length of training.

A method's `Defaults` come from development data (`benchmarks/defaults.py`). A user's setting always wins. A settled
config contains every value, so the `config.toml` of a run and the handshake of a federation name the values in use.
"""

from typing import Any

import msgspec

from colonnade.algorithms import DEFAULT_METHOD, find_method
from colonnade.algorithms.method import Defaults
from colonnade.config.schema import Config, ModelConfig, RoleRates, TrainConfig

__all__ = ["auto_rate", "batch_size_of", "limits_of", "settled"]

LIMITS = ("epochs", "updates", "seconds")
SMALLEST_BATCH, BATCHES = 8, 16
FEW = 10  # evaluations to wait for a better one, if each evaluation costs privacy

# Rates for an optimiser that the user chose. Adam divides a step by the size of recent gradients, so one rate fits many
# tables. Plain SGD does not: its rate is a guess that holds for standardised columns.
_RATES = {"sgd": 0.1, "SGD": 0.1, "momentum": 0.02}
_ANY_OTHER = 0.01


def settled(config: Config, rows: int | None = None, validation: int | None = None) -> Config:
    """Return the config with the method's defaults for all that it leaves open.

    The batch size depends on the number of training rows, the patience on whether there are validation rows. If `rows`
    and `validation` are unknown, both stay open. A method's patience fits its own limit and its own evaluations: if the
    config sets the length of the run or the evaluations, the run continues to its limit.
    """
    defaults = find_method(str(config.protocol.get("name", DEFAULT_METHOD))).defaults
    model, train = _model(config.model, defaults), _train(config.train, defaults)
    if train.batch_size is None and rows is not None:
        train = msgspec.structs.replace(train, batch_size=batch_size_of(rows, defaults.batch_size))
    if train.patience is None and validation is not None:
        own = not limits_of(config.train) and config.train.eval_every is None
        patience = min(defaults.patience, FEW) if config.privacy.on else defaults.patience
        train = msgspec.structs.replace(train, patience=patience if validation and own else 0)
    return msgspec.structs.replace(config, model=model, train=train)


def batch_size_of(rows: int, most: int) -> int:
    """Return a size that gives sixteen batches per epoch or more: otherwise a small table has too few steps."""
    return max(SMALLEST_BATCH, min(most, rows // BATCHES))


def limits_of(train: TrainConfig) -> dict[str, float]:
    """Return the limits that a config names; more than one is an error."""
    given = {unit: getattr(train, unit) for unit in LIMITS}
    return {unit: amount for unit, amount in given.items() if amount is not None}


def auto_rate(optimiser: Any) -> float:
    """Return the rate of an optimiser that a user chose without a rate; an unknown optimiser is refused later."""
    name = optimiser.get("name") if isinstance(optimiser, dict) else optimiser
    return _RATES.get(str(name), _ANY_OTHER)


def _model(model: ModelConfig, defaults: Defaults) -> ModelConfig:
    return msgspec.structs.replace(
        model,
        party=defaults.party or "linear" if model.party is None else model.party,
        embedding=defaults.embedding if model.embedding is None else model.embedding,
        server=defaults.server if model.server is None else model.server,
        aggregate=defaults.aggregate if model.aggregate is None else model.aggregate,
    )


def _train(train: TrainConfig, defaults: Defaults) -> TrainConfig:
    optimiser, rate = train.optimiser, train.learning_rate
    if optimiser is None:
        optimiser = defaults.optimiser if rate == "auto" else "sgd"  # a rate alone has always meant plain SGD
    if rate == "auto" and optimiser != defaults.optimiser:
        rate = _rate(optimiser)
    return msgspec.structs.replace(
        train,
        optimiser=optimiser,
        learning_rate=rate,
        epochs=train.epochs if limits_of(train) else defaults.epochs,
    )


def _rate(optimiser: str | dict[str, Any]) -> float | RoleRates:
    """Return the usual rate of an optimiser that is not the method's own.

    For its own, "auto" stays and the roles measure.
    """
    if isinstance(optimiser, dict) and {"server", "party"} <= optimiser.keys():
        parties = optimiser["party"]
        of_parties = [auto_rate(one) for one in parties] if isinstance(parties, list) else auto_rate(parties)
        return RoleRates(auto_rate(optimiser["server"]), of_parties)
    return auto_rate(optimiser)
