"""AsySQN: asynchronous stochastic quasi-Newton for linear models, party to party (Q. Zhang, B. Gu et al.; 2021).

    symbol                  here
    θ_i, θ_i^ℓ              `theta`, margins: wᵀx_i of the whole model, of one party's columns
    L(θ, y), H(θ, y), σ′    `Loss.value`, `.derivative`, `.second_derivative`
    λ/2·‖w‖²  (28)          `penalty`; λ is `l2`
    s, ȳ, ŷ, ρ  (12), (13)  the pairs of a `Memory`: step, curvature, damped curvature, 1/(sᵀŷ)
    γ_k, δ of Alg. 1        `Memory.gamma` (the scale of H_{k,0}⁻¹) and `delta`, its floor
    H_k v_k                 `Memory.direction`
    T1, T2 of Alg. 2        `aggregation_trees`: up the first goes Σ(θ+δ), up the second Σδ
    δ_ℓ of Alg. 2           `privacy.masking.masks`: uniform modulo 2⁶⁴, never used twice

Every party holds the labels, as the paper assumes, and no server takes part in training.
"""

from typing import Any

from colonnade.algorithms.asysqn.config import (
    AfOptions,
    AfSagaOptions,
    AfSvrgOptions,
    AsyOptions,
    AsySagaOptions,
    AsySvrgOptions,
    LinearOptions,
    SynOptions,
    SynSagaOptions,
    SynSvrgOptions,
)
from colonnade.algorithms.asysqn.coordinator import LinearCoordinator
from colonnade.algorithms.asysqn.messages import ASYSQN_PAYLOADS
from colonnade.algorithms.asysqn.party import Party
from colonnade.algorithms.asysqn.prediction import SummedPredictor
from colonnade.algorithms.evaluation import EVALUATION_PAYLOADS
from colonnade.algorithms.exposure import MARGINS
from colonnade.algorithms.method import Capabilities, Defaults, Method

__all__ = ["METHODS"]

_PAPER = "Zhang, Gu et al.: AsySQN (2021)"
_REVEALS = (
    "every party holds the labels; no server computes anything: the coordinator sees digests of the labels, numbers of"
    " rows, nonzeros and steps, and the metrics of evaluations. Parties, with masking = 'on': all parties learn the "
    "sum of all margins wᵀx of every batch's rows (with share = false, or a rate of your own, only the party that asks"
    " for the batch learns it, except at SVRG's snapshots and in synchronous rounds), and which rows are asked for. "
    "With extrapolate = true, the default of SVRG without a rate of your own, they also learn inner products of all "
    "weights at two snapshots, summed over the parties. Partial sums are masked: one party alone, or two together, see"
    " no more; three may (a party's neighbours on both trees). Sums over the same rows differ by what the parties "
    "changed in between: if only one party moved, by its own change. Sums with and without a party that was lost or "
    "came back are not of the same rows at the same weights, but rows are summed again in a later epoch: near the "
    "optimum weights hardly move, and the difference then approximates that party's margins. With masking = 'off': "
    "also the partial sums of a party's children, single parties' margins among them"
)


def _method(name: str, algorithm: str, summary: str, options: type[LinearOptions]) -> Method[Any]:
    return Method(
        name,
        f"{_PAPER}, {algorithm}",
        summary,
        _REVEALS,
        options,
        ASYSQN_PAYLOADS + EVALUATION_PAYLOADS,
        LinearCoordinator,
        Party,
        exposes=MARGINS,
        predictor=SummedPredictor(),
        capabilities=Capabilities(party_labels=True, peers=True, sparse=True, train_keys=("sampling",)),
        defaults=Defaults(party=None, optimiser="sgd", learning_rate="auto", batch_size=256, epochs=30.0, patience=0),
        page="asysqn.md",
    )


_LINEAR = "linear: "
METHODS = (
    _method(
        "asysqn-sgd",
        "Alg. 3",
        f"{_LINEAR}asynchronous quasi-Newton steps, each party on batches of its own",
        AsyOptions,
    ),
    _method(
        "asysqn-svrg",
        "Alg. 4",
        f"{_LINEAR}asysqn-sgd, with its noise reduced by a snapshot in every epoch",
        AsySvrgOptions,
    ),
    _method(
        "asysqn-saga", "Alg. 5", f"{_LINEAR}asysqn-sgd, with its noise reduced by each row's last slope", AsySagaOptions
    ),
    _method("afsgd", "AFSGD-VP", f"{_LINEAR}asysqn-sgd with plain gradient steps (H = I)", AfOptions),
    _method("afsvrg", "AFSVRG-VP", f"{_LINEAR}asysqn-svrg with plain gradient steps (H = I)", AfSvrgOptions),
    _method("afsaga", "AFSAGA-VP", f"{_LINEAR}asysqn-saga with plain gradient steps (H = I)", AfSagaOptions),
    _method("synsqn-sgd", "Alg. 3 in rounds", f"{_LINEAR}asysqn-sgd in rounds that wait for every party", SynOptions),
    _method(
        "synsqn-svrg", "Alg. 4 in rounds", f"{_LINEAR}asysqn-svrg in rounds that wait for every party", SynSvrgOptions
    ),
    _method(
        "synsqn-saga", "Alg. 5 in rounds", f"{_LINEAR}asysqn-saga in rounds that wait for every party", SynSagaOptions
    ),
)
