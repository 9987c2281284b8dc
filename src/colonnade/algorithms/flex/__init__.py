"""Flexible Vertical Federated Learning (Castiglia, Wang, Patterson; 2023): as many local steps as fit before the bell.

    symbol                  here
    θ_0, θ_k                `network` of the server, of party k
    B^r                     the batch of `round` r, from a walk that all parties share
    Φ^r                     `h`, the embeddings of the batch, and θ_0: a `Snapshot`
    τ_k^r, w_k^{r,t}, w̄     `steps` and `weight` of a `Report`; see local.py for the weights of each optimiser
    η_k^r                   the role's rate · `scale`; A_k is `protocol.A`
    t_comm                  the round trip of the links

`flex` is Algorithm 1, `adaptive-flex` Algorithm 2. `p-bcd` has τ = 1. In `sync-min` all roles take the slowest role's
τ, in `sync-max` the fastest role's, and the round waits. With `labels = "server"` parties get ∂ℓ/∂h of the round's
start, with "shared" all of Φ.
"""

from typing import Any

from colonnade.algorithms.evaluation import EVALUATION_PAYLOADS
from colonnade.algorithms.exposure import PLAIN_EMBEDDINGS
from colonnade.algorithms.flex.config import (
    TO_PARTIES,
    TO_SERVER,
    AdaptiveOptions,
    FlexOptions,
    PBcdOptions,
    RoundOptions,
    SyncMaxOptions,
    SyncMinOptions,
)
from colonnade.algorithms.flex.messages import FLEX_PAYLOADS
from colonnade.algorithms.flex.observations import OBSERVATIONS
from colonnade.algorithms.flex.party import Party
from colonnade.algorithms.flex.server import Server
from colonnade.algorithms.method import OPTIONAL_KEYS, Capabilities, Defaults, Method
from colonnade.algorithms.prediction.plain import PlainPredictor

__all__ = ["METHODS"]

_PAPER = "Castiglia et al.: Flex-VFL (2023)"
_REVEALS = f"{TO_SERVER}. With labels = 'server' {TO_PARTIES['server']}. With 'shared' {TO_PARTIES['shared']}"
_CAN = Capabilities(party_dropout=True, local_updates=("plain", "dp-sgd"), train_keys=OPTIONAL_KEYS)
_PAYLOADS = FLEX_PAYLOADS + EVALUATION_PAYLOADS
# Fast parties make tens of epochs while a slow one makes a few: without weight decay they overfit.
_DEFAULTS = Defaults(optimiser={"server": "adam", "party": {"name": "AdamW", "weight_decay": 0.1}})


def _method(name: str, paper: str, summary: str, options: type[RoundOptions]) -> Method[Any]:
    return Method(
        name, paper, summary, _REVEALS, options, _PAYLOADS, Server, Party,
        exposes=PLAIN_EMBEDDINGS, observations=OBSERVATIONS,
        predictor=PlainPredictor(), capabilities=_CAN, defaults=_DEFAULTS, page="flex.md",
    )  # fmt: skip


METHODS = (
    _method(
        "flex", f"{_PAPER}, Alg. 1", "rounds; every party takes as many local steps as fit before a bell", FlexOptions
    ),
    _method(
        "adaptive-flex",
        f"{_PAPER}, Alg. 2",
        "flex, with rates that follow every role's measured speed",
        AdaptiveOptions,
    ),
    _method("p-bcd", f"{_PAPER}, Sec. VII", "rounds of one step by every party; waits for the slowest", PBcdOptions),
    _method(
        "sync-min", f"{_PAPER}, Sec. VII", "rounds; every party takes as many steps as the slowest can", SyncMinOptions
    ),
    _method(
        "sync-max",
        f"{_PAPER}, Sec. VII",
        "rounds; every party takes as many steps as the fastest can; waits for the slowest",
        SyncMaxOptions,
    ),
)
