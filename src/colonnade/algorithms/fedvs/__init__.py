"""FedVS (Li et al., ICML 2023): coded secret sharing, so that stragglers cost nothing and colluders learn nothing.

    symbol              here
    N, K, T             parties, `protocol.K` segments of the rows, `protocol.T` colluders
    R = 2(K+T−1)+1      `needed`, answers that decode
    X̃, W̃                coded data and models (holdings.py); F, G, ψ, α, β: privacy/sharing.py
    S                   `summed`, agreed in every exchange (sum_agreement.py)
    |B|                 `places` of a segment: K·|B| is `train.batch_size`
    H, ∇_H              the average embedding, and the gradient that every party gets
    l_x, l_w, X̂, Ŵ      bits after the point; powers of the data and rounded weights (coding.py)

`fedvs` is Algorithm 1. `wait`, `ignore` and `wait-dp` are the baselines of Sec. 6.2, in plain numbers.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from colonnade.algorithms.evaluation import EVALUATION_PAYLOADS
from colonnade.algorithms.exposure import NOISY_EMBEDDINGS, PLAIN_EMBEDDINGS, SUMS
from colonnade.algorithms.fedvs.config import FedvsOptions, IgnoreOptions, PlainOptions, WaitDpOptions, WaitOptions
from colonnade.algorithms.fedvs.messages import CODED_PAYLOADS
from colonnade.algorithms.fedvs.observations import OBSERVATIONS, PLAIN
from colonnade.algorithms.fedvs.party import Party, polynomial_module
from colonnade.algorithms.fedvs.plain_messages import PLAIN_PAYLOADS
from colonnade.algorithms.fedvs.plain_party import PlainParty
from colonnade.algorithms.fedvs.plain_server import PlainServer
from colonnade.algorithms.fedvs.prediction import CodedPredictor
from colonnade.algorithms.fedvs.server import Server
from colonnade.algorithms.leaving import LEAVING_PAYLOADS
from colonnade.algorithms.method import OPTIONAL_KEYS, Capabilities, Defaults, Method, PartySetup, ServerSetup
from colonnade.algorithms.prediction.plain import PlainPredictor
from colonnade.algorithms.remarks import Remark
from colonnade.privacy.sharing import Segmentation

__all__ = ["METHODS", "check"]

_PAPER = "Li et al.: FedVS (ICML 2023)"
# On a walk, batches of an epoch have no rows in common. Sums over common rows could be subtracted (`answered`).
_KEYS = tuple(key for key in OPTIONAL_KEYS if key != "sampling")
_LABELS = "every party: ∇_H of every batch, from which labels can be inferred (its sign often is the label)"
_REVEALS = (
    "server: the sum of the embeddings of the set S, of training and test rows, and how many of a party's weights were "
    "clipped; blinding hides the rest of the coded answers (without blinding the server sees all of ψ, and two rounds "
    "give away data). If S changes from one round to the next, the sums differ by about one party's embedding; with "
    "the same weights, the same rows are never summed over two sets. The server also sees which party has stepped "
    "since it last shared. "
    f"{_LABELS}, and each other's number of columns and which weights were summed; "
    "up to T parties together: nothing more of the others' data and models (T + 1 could find a model, K + T data). "
    "This holds if all members follow the protocol; a server that colludes with a party of S learns the sum "
    "without its part"
)
_PLAIN = f"server: every party's embeddings; {_LABELS}"
_NOISY = (
    f"server: every party's embeddings, each row clipped and perturbed: ε′ for one release of one row, far more for "
    f"all that a party uploads (`privacy` in the summary); {_LABELS}, itself computed from perturbed embeddings"
)
_PAGE = "fedvs.md"
MEAN = "mean"
# Chosen on credit card, a9a, mfeat and digits: docs/results/fedvs.md. `fedvs` needs columns within ±1.
DEFAULTS = Defaults(scale="clipped", party="polynomial:1", server="mlp:32", aggregate=MEAN)
NOISY_DEFAULTS = replace(DEFAULTS, learning_rate=0.002)  # at 0.01 it follows the noise, worse than the majority class


def check(server: ServerSetup[FedvsOptions], parties: Sequence[PartySetup[FedvsOptions]]) -> tuple[str, ...]:
    """Raise if sums do not fit into the field; returns a note if rows are padded."""
    options = server.options
    modules = [polynomial_module(setup) for setup in parties]
    options.check_bound(sum(len(module.weight) for module in modules), max(module.degree for module in modules))
    notes, segments = [], options.segments(len(parties))
    validation = server.training.validation
    sizes = {"training": len(server.y_train), "validation": validation, "test": len(server.y_test) - validation}
    for what, rows in sizes.items():
        padding = Segmentation(rows, segments).padding
        if padding:
            notes.append(f"{rows} {what} rows do not divide by K = {segments}: they are padded with {padding} empty")
    return tuple(notes)


def _baseline(
    name: str, summary: str, reveals: str, options: type[PlainOptions], defaults: Defaults = DEFAULTS
) -> Method[Any]:
    payloads = PLAIN_PAYLOADS + EVALUATION_PAYLOADS + LEAVING_PAYLOADS
    paper = f"{_PAPER}, Sec. 6.2"
    return Method(
        name, paper, summary, reveals, options, payloads, PlainServer, PlainParty,
        exposes=NOISY_EMBEDDINGS if issubclass(options, WaitDpOptions) else PLAIN_EMBEDDINGS, observations=PLAIN,
        predictor=PlainPredictor(), capabilities=Capabilities(aggregates=(MEAN,), train_keys=OPTIONAL_KEYS),
        defaults=defaults, page=_PAGE,
    )  # fmt: skip


METHODS = (
    Method(
        "fedvs",
        f"{_PAPER}, Alg. 1",
        "rounds on secret shares; any 2(K+T−1)+1 answers give the sum of all embeddings",
        _REVEALS,
        FedvsOptions,
        (*CODED_PAYLOADS, *EVALUATION_PAYLOADS, Remark),
        Server,
        Party,
        check=check,
        exposes=SUMS,
        observations=OBSERVATIONS,
        predictor=CodedPredictor(),
        capabilities=Capabilities(peers=True, party_models=("polynomial",), aggregates=(MEAN,), train_keys=_KEYS),
        defaults=replace(DEFAULTS, patience=0),
        page=_PAGE,
    ),
    _baseline("wait", "rounds of averaged embeddings; waits for the slowest", _PLAIN, WaitOptions),
    _baseline("ignore", "rounds of averaged embeddings; leaves out the parties that are late", _PLAIN, IgnoreOptions),
    _baseline("wait-dp", "wait, with clipped and perturbed embeddings", _NOISY, WaitDpOptions, NOISY_DEFAULTS),
)
