"""swift: VAFL for tables without tuned options, with a slow party. A method of Colonnade's own.

It is `vafl` with four keys set, and has the same roles. Each key can be set back:

    key                        default             instead of
    table                      "mean"              a warm-up, which takes a slow party as long as training does
    average                    true                judging the last weights, which asynchronous steps make noisy
    in_flight                  2                   a party that waits while its upload and gradient travel
    smaller_batches            true                the same batches for a party that steps rarely
"""

from colonnade.algorithms.evaluation import EVALUATION_PAYLOADS
from colonnade.algorithms.exposure import PLAIN_EMBEDDINGS
from colonnade.algorithms.method import Defaults, Method
from colonnade.algorithms.prediction.plain import PlainPredictor
from colonnade.algorithms.swift.config import SwiftOptions
from colonnade.algorithms.vafl import CAPABILITIES
from colonnade.algorithms.vafl.messages import REVEALS, VAFL_PAYLOADS
from colonnade.algorithms.vafl.observations import OBSERVATIONS
from colonnade.algorithms.vafl.party import party_of
from colonnade.algorithms.vafl.server import Server

__all__ = ["METHODS"]

# Fast parties make tens of epochs while the slow one makes a few; weight decay keeps them from overfitting. So does
# the end of a run that does not improve for 20 epochs. The best weights may come early, so evaluations are frequent.
DEFAULTS = Defaults(
    optimiser={"server": "adam", "party": {"name": "AdamW", "weight_decay": 0.1}},
    learning_rate=0.01,
    epochs=100,
    evaluations=200,
    patience=40,
)

METHODS = (
    Method(
        "swift",
        "Colonnade's own, after Chen, Jin, Sun, Yin: VAFL (2020), Alg. 1",
        "asynchronous, quick without tuning: no warm-up, two batches at once, averaging",
        REVEALS,
        SwiftOptions,
        VAFL_PAYLOADS + EVALUATION_PAYLOADS,
        Server,
        party_of,
        exposes=PLAIN_EMBEDDINGS,
        observations=OBSERVATIONS,
        predictor=PlainPredictor(),
        capabilities=CAPABILITIES,
        defaults=DEFAULTS,
        page="swift.md",
    ),
)
