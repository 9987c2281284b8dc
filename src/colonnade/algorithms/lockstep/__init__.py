"""The baselines of the asynchronous methods: lock-step training and the oracle.

`sync` is split learning with coordinated batches: every step waits for every party. `centralised` is one model over all
columns. It starts from the same weights and walks through the same batches.
"""

from colonnade.algorithms.evaluation import EVALUATION_PAYLOADS
from colonnade.algorithms.exposure import EVERYTHING, PLAIN_EMBEDDINGS
from colonnade.algorithms.lockstep.centralised import (
    CENTRALISED_PAYLOADS,
    CentralisedOptions,
    JointPredictor,
    centralised,
)
from colonnade.algorithms.lockstep.config import SyncOptions
from colonnade.algorithms.lockstep.observations import OBSERVATIONS
from colonnade.algorithms.lockstep.party import Party
from colonnade.algorithms.lockstep.server import Server
from colonnade.algorithms.method import OPTIONAL_KEYS, Capabilities, Method
from colonnade.algorithms.prediction.plain import PlainPredictor
from colonnade.algorithms.vafl.messages import REVEALS, VAFL_PAYLOADS

__all__ = ["METHODS"]

_PAGE = "vafl.md"

METHODS = (
    Method(
        "centralised",
        "the oracle",
        "one model over all columns, without a federation: a reference for the other methods",
        "everything: all columns and labels are in one place",
        CentralisedOptions,
        CENTRALISED_PAYLOADS + EVALUATION_PAYLOADS,
        server=None,
        party=None,
        joint=centralised,
        exposes=EVERYTHING,
        predictor=JointPredictor(),
        capabilities=Capabilities(train_keys=OPTIONAL_KEYS),
        page=_PAGE,
    ),
    Method(
        "sync",
        "split learning; VAFL's synchronous baseline",
        "coordinated batches, every step waits for every party",
        REVEALS,
        SyncOptions,
        VAFL_PAYLOADS + EVALUATION_PAYLOADS,
        Server,
        Party,
        exposes=PLAIN_EMBEDDINGS,
        observations=OBSERVATIONS,
        predictor=PlainPredictor(),
        capabilities=Capabilities(
            party_dropout=True, local_updates=("plain", "dp-sgd"), lacking=True, train_keys=OPTIONAL_KEYS
        ),
        page=_PAGE,
    ),
)
