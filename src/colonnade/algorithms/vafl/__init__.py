"""VAFL: a Method of Vertical Asynchronous Federated Learning (T. Chen, X. Jin, Y. Sun, W. Yin; 2020).

    symbol          here
    θ_0, θ_m        `network` of the server, of party m
    h_{n,m}         a row of `values` in `Embeddings`; kept in the server's `EmbeddingTable`
    ∂ℓ/∂h_{n,m}     a row of `values` in `Gradient`
    k               `update`: how often θ_0 was stepped
    τ_{n,m}         `EmbeddingTable.ages`
    D, t            `max_delay`, `t`

`vafl` is Algorithm 1, `t-sync` Algorithm 2, `sync` the lock-step baseline (split learning with coordinated
batches) and `centralised` one model over all columns: the oracle.
"""

from colonnade.algorithms.evaluation import EVALUATION_PAYLOADS
from colonnade.algorithms.method import Method
from colonnade.algorithms.vafl.centralised import CENTRALISED_PAYLOADS, CentralisedOptions, centralised
from colonnade.algorithms.vafl.config import SyncOptions, TSyncOptions, VaflOptions
from colonnade.algorithms.vafl.messages import VAFL_PAYLOADS
from colonnade.algorithms.vafl.observations import LOCKSTEP, OBSERVATIONS
from colonnade.algorithms.vafl.party import Party
from colonnade.algorithms.vafl.server import Server

__all__ = ["METHODS"]

_PAPER = "Chen, Jin, Sun, Yin: VAFL (2020)"
_REVEALS = (
    "server: every party's embeddings and row numbers; each party: the loss gradient of its own embeddings "
    "(which tells labels to a party that looks); parties learn nothing of each other directly"
)
_PAYLOADS = VAFL_PAYLOADS + EVALUATION_PAYLOADS

METHODS = (
    Method(
        "centralised",
        "the oracle",
        "one torch model over all columns, no federation: what the others are measured against",
        "everything: all columns and labels lie in one place",
        CentralisedOptions,
        CENTRALISED_PAYLOADS + EVALUATION_PAYLOADS,
        server=None,
        party=None,
        joint=centralised,
    ),
    Method(
        "sync",
        "split learning; VAFL's synchronous baseline",
        "coordinated batches, every step waits for every party",
        _REVEALS,
        SyncOptions,
        _PAYLOADS,
        Server,
        Party,
        party_dropout=True,
        local_updates=("plain", "dp-sgd"),
        lacking=True,
        observations=LOCKSTEP,
    ),
    Method(
        "vafl",
        f"{_PAPER}, Alg. 1",
        "asynchronous: a party uploads when it is ready, the server uses the newest embeddings it has",
        _REVEALS,
        VaflOptions,
        _PAYLOADS,
        Server,
        Party,
        party_dropout=True,
        local_updates=("plain", "dp-sgd"),
        lacking=True,
        observations=OBSERVATIONS,
    ),
    Method(
        "t-sync",
        f"{_PAPER}, Alg. 2",
        "the server steps when t parties have uploaded, with the average of their gradients",
        _REVEALS,
        TSyncOptions,
        _PAYLOADS,
        Server,
        Party,
        party_dropout=True,
        local_updates=("plain", "dp-sgd"),
        lacking=True,
        observations=OBSERVATIONS,
    ),
)
