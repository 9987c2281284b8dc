"""VFL with cascaded hybrid optimisation: zeroth-order parties, first-order server (G. Wang, B. Gu et al.; 2023).

    symbol              here
    w_0, w_m            `network` of the server, of party m
    c_{i,m}, ĉ_{i,m}    `values` and `perturbed` of a `Probe`; only c is kept in the server's table
    h, ĥ                `values` of `Losses`: one scalar pair per batch (per direction), never per row
    u, μ, φ(d)          a direction, `smoothing`, `scale_of`: 1 (gaussian) or d (sphere)
    Eq. (3)             ∇̂ = φ(d)/μ·(ĥ − h)·u

`cascaded` is Algorithm 1: asynchronous, parties step by Eq. (3), the server by backpropagation. In `zoo` both step by
Eq. (3). `syn-zoo` is App. B Algorithm 2, with coordinated rounds. `frozen` is the control: its parties never learn.
"""

from colonnade.algorithms.evaluation import EVALUATION_PAYLOADS
from colonnade.algorithms.exposure import LOSSES
from colonnade.algorithms.method import OPTIONAL_KEYS, Capabilities, Defaults, Method
from colonnade.algorithms.prediction.plain import PlainPredictor
from colonnade.algorithms.vafl.messages import VAFL_PAYLOADS
from colonnade.algorithms.zeroth.config import CascadedOptions, FrozenOptions, SynZooOptions, ZooOptions
from colonnade.algorithms.zeroth.messages import ZEROTH_PAYLOADS
from colonnade.algorithms.zeroth.observations import FROZEN, OBSERVATIONS, ROUNDS
from colonnade.algorithms.zeroth.party import LockStepParty, TableParty
from colonnade.algorithms.zeroth.server import LockStepProbing, TableProbing

__all__ = ["METHODS"]

_PAPER = "Wang et al.: cascaded hybrid optimisation (2023)"
_REVEALS = (
    "server: every party's embeddings, perturbed ones too, and row numbers; each party: the mean loss of its own "
    "batches, no gradient: an honest party learns no label from it, but a party that sends made-up embeddings "
    "can read labels off the losses, with or without the rules (docs/attacks.md); parties learn nothing of each "
    "other directly"
)
_PAYLOADS = VAFL_PAYLOADS + ZEROTH_PAYLOADS + EVALUATION_PAYLOADS
_PAGE = "zeroth.md"
# Parties learn only from losses, which the server computes from their uploads.
_CAN = Capabilities(local_updates=("plain", "answers"), train_keys=OPTIONAL_KEYS)
# Adam divides an estimate by its recent size. That size grows with the number of parameters, with φ(d) and with the
# scale of the columns. Parties have one layer: the more parameters, the noisier the estimate. See the page, "Defaults".
_DEFAULTS = Defaults(party="dense", embedding=32, learning_rate=(0.01, 0.003))

METHODS = (
    Method(
        "cascaded",
        f"{_PAPER}, Alg. 1",
        "asynchronous; parties step by loss differences and may be black boxes",
        _REVEALS,
        CascadedOptions,
        _PAYLOADS,
        TableProbing,
        TableParty,
        exposes=LOSSES,
        observations=OBSERVATIONS,
        predictor=PlainPredictor(),
        capabilities=_CAN,
        defaults=_DEFAULTS,
        page=_PAGE,
    ),
    Method(
        "zoo",
        "Zhang et al.: ZOO-VFL (2021), as in Wang et al.",
        "asynchronous; parties and server step by loss differences",
        _REVEALS,
        ZooOptions,
        _PAYLOADS,
        TableProbing,
        TableParty,
        exposes=LOSSES,
        observations=OBSERVATIONS,
        predictor=PlainPredictor(),
        capabilities=_CAN,
        defaults=_DEFAULTS,
        page=_PAGE,
    ),
    Method(
        "syn-zoo",
        f"{_PAPER}, App. B Alg. 2",
        "parties and server step by loss differences, in rounds that wait for every party",
        _REVEALS,
        SynZooOptions,
        _PAYLOADS,
        LockStepProbing,
        LockStepParty,
        exposes=LOSSES,
        observations=ROUNDS,
        predictor=PlainPredictor(),
        capabilities=_CAN,
        defaults=_DEFAULTS,
        page=_PAGE,
    ),
    Method(
        "frozen",
        "the control of zeroth-order methods",
        "asynchronous; parties keep their random networks, only the server learns",
        "server: every party's embeddings and row numbers; each party: the mean loss of its own batches",
        FrozenOptions,
        _PAYLOADS,
        TableProbing,
        TableParty,
        exposes=LOSSES,
        observations=FROZEN,
        predictor=PlainPredictor(),
        capabilities=_CAN,
        defaults=_DEFAULTS,
        page=_PAGE,
    ),
)
