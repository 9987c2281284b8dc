"""Small federations of every method, each with one Byzantine member. A method and a seed determine a case."""

from functools import cache
from random import Random
from typing import Any

import numpy as np

from colonnade.algorithms import METHODS, find_method
from colonnade.config.resolve import Federation, federation, scale_of
from colonnade.config.schema import from_dict
from colonnade.data import from_arrays, split
from colonnade.protocol.role import SERVER
from colonnade.testing.adversary import Calm, Casts, Outcome, attempt, record
from colonnade.testing.sweep import Swept, sweep

__all__ = ["METHODS_WITH_PARTIES", "case", "describe", "sweep_case", "variants_of"]

PARTIES, ROWS = 4, 40
# Of methods whose parties sum. A step takes 0.01 s. With the default of 60 s, thousands of steps would follow the end
# of a run while a sum is late, and a case would have to simulate all of them.
PATIENCE_S = 0.2
METHODS_WITH_PARTIES = tuple(name for name, method in METHODS.items() if method.party is not None)
_TABLE: tuple[dict[str, Any], ...] = (
    {},
    {"max_delay": 3},
    {"on_lost": "wait"},
    {"table": "zeros", "batches": "shared"},
)
_VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "vafl": (*_TABLE, {"order": "query-first"}, {"in_flight": 3, "max_delay": 4}, {"smaller_batches": True},
             {"extra_rows": 1.0, "batches": "shared"}),
    "t-sync": (*_TABLE, {"t": 3, "in_flight": 2}),
    "swift": ({}, {"max_delay": 4}, {"on_lost": "wait"}),
    "cascaded": (*_TABLE, {"directions": 3}, {"t": 2}),
    "zoo": _TABLE,
    "frozen": _TABLE,
    "flex": ({}, {"labels": "shared", "max_steps": 4}, {"timeout_s": 0.05, "on_lost": "wait"}),
    "adaptive-flex": ({}, {"labels": "shared", "timeout_s": 0.05, "max_steps": 4}),
    "fedvs": ({}, {"stale": "refuse", "deadline_s": 0.5}, {"K": 1, "blinding": False}),
    "ignore": ({}, {"fastest": 2}),
    "asysqn-sgd": ({}, {"share": True, "ahead": 0}),
    "asysqn-saga": ({}, {"masking": "off", "on_lost": "wait"}, {"share": True, "on_lost": "wait"}),
    "asysqn-svrg": ({}, {"on_lost": "wait"}, {"share": True, "extrapolate": True}),
}  # fmt: skip
_POLYNOMIAL = {"party": "polynomial:2", "embedding": 2, "server": "linear", "aggregate": "mean"}
_PLAIN = {"party": "linear", "embedding": 2, "server": "linear"}


@cache
def _data(scale: str | None) -> Any:
    rows = np.random.default_rng(0)
    x = rows.standard_normal((ROWS, 2 * PARTIES)).astype(np.float32)
    y = (x @ rows.standard_normal(2 * PARTIES) > 0).astype(np.int64)
    return split(from_arrays(x, y), parties=PARTIES, scale=scale)


@cache
def _setting(name: str, variant: int) -> tuple[Federation, Calm, Casts]:
    method = find_method(name)
    patience = {"patience_s": PATIENCE_S} if method.capabilities.party_labels else {}
    tables: dict[str, Any] = {
        "protocol": {"name": name, **patience, **variants_of(name)[variant]},
        "clock": {"compute": {"kind": "exponential", "mean_s": 0.01}},
        "train": {"batch_size": 8, "epochs": 2, "eval_every": "1 epoch", "learning_rate": 0.05},
    }
    if not method.capabilities.party_labels:
        tables["model"] = _POLYNOMIAL if method.capabilities.party_models else _PLAIN
    config = from_dict(tables)
    setting = federation(config, _data(scale_of(config)))
    return setting, record(setting), Casts(setting)


def _drawn(name: str, seed: int) -> tuple[dict[str, Any], str, int]:
    """The options, the liar and the place of the options."""
    draw = Random(f"{name}/{seed}")
    variants = variants_of(name)
    place = draw.randrange(len(variants))
    liar = SERVER if draw.random() < 1 / 3 else draw.choice(_data(None).parties)
    return variants[place], liar, place


def variants_of(name: str) -> tuple[dict[str, Any], ...]:
    """The options with which a method is tried."""
    return _VARIANTS.get(name, ({},))


def case(name: str, seed: int) -> Outcome:
    """Run case `seed` of a method; the server lies in one case of three."""
    _, liar, place = _drawn(name, seed)
    setting, calm, casts = _setting(name, place)
    return attempt(setting, liar, seed, calm, casts)


def describe(name: str, seed: int) -> str:
    """The options of a case, and its liar."""
    options, liar, _ = _drawn(name, seed)
    return f"{options or 'default options'}, {liar} lies"


def sweep_case(name: str, place: int, seed: int = 0, share: float = 1.0) -> Swept:
    """Sweep a method with one of its variants of options."""
    setting, calm, _ = _setting(name, place)
    return sweep(setting, calm, seed, share)
