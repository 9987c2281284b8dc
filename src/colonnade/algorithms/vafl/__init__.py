"""VAFL: a Method of Vertical Asynchronous Federated Learning (T. Chen, X. Jin, Y. Sun, W. Yin; 2020).

    symbol          here
    θ_0, θ_m        `network` of the server, of party m
    h_{n,m}         a row of `values` in `Embeddings`; kept in the server's `EmbeddingTable`
    ∂ℓ/∂h_{n,m}     a row of `values` in `Gradient`
    k               `update`: how many steps θ_0 has taken
    τ_{n,m}         `EmbeddingTable.ages`
    D, t            `max_delay`, `t`

`vafl` is Algorithm 1, `t-sync` Algorithm 2. `swift` has its own package and the same roles. The lock-step baseline
`sync` and the oracle are in `lockstep`.
"""

from colonnade.algorithms.evaluation import EVALUATION_PAYLOADS
from colonnade.algorithms.exposure import PLAIN_EMBEDDINGS
from colonnade.algorithms.method import OPTIONAL_KEYS, Capabilities, Method
from colonnade.algorithms.prediction.plain import PlainPredictor
from colonnade.algorithms.vafl.config import TSyncOptions, VaflOptions
from colonnade.algorithms.vafl.messages import REVEALS, VAFL_PAYLOADS
from colonnade.algorithms.vafl.observations import OBSERVATIONS
from colonnade.algorithms.vafl.party import party_of
from colonnade.algorithms.vafl.server import Server

__all__ = ["CAPABILITIES", "METHODS"]

_PAPER = "Chen, Jin, Sun, Yin: VAFL (2020)"
_PAGE = "vafl.md"
CAPABILITIES = Capabilities(
    party_dropout=True, local_updates=("plain", "dp-sgd"), lacking=True, train_keys=OPTIONAL_KEYS
)
_PAYLOADS = VAFL_PAYLOADS + EVALUATION_PAYLOADS

METHODS = (
    Method(
        "vafl",
        f"{_PAPER}, Alg. 1",
        "asynchronous: parties upload when they are ready, the server uses the newest it has",
        REVEALS,
        VaflOptions,
        _PAYLOADS,
        Server,
        party_of,
        exposes=PLAIN_EMBEDDINGS,
        observations=OBSERVATIONS,
        predictor=PlainPredictor(),
        capabilities=CAPABILITIES,
        page=_PAGE,
    ),
    Method(
        "t-sync",
        f"{_PAPER}, Alg. 2",
        "the server steps when t parties have uploaded, by the average of their gradients",
        REVEALS,
        TSyncOptions,
        _PAYLOADS,
        Server,
        party_of,
        exposes=PLAIN_EMBEDDINGS,
        observations=OBSERVATIONS,
        predictor=PlainPredictor(),
        capabilities=CAPABILITIES,
        page=_PAGE,
    ),
)
