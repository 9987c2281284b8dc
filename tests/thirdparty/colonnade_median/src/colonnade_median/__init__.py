"""Rounds on the middle of the parties' embeddings: coordinate-wise median, or trimmed mean. See median.md.

symbol      here
h_m         `values` of an `Upload`, (batch, width)
H           `center`: for each number the mean of the `taken` middle ones of all h_m
∂H/∂h_m     `share` of party m: 1/taken where its number was taken, 0 elsewhere
"""

from colonnade.algorithms.evaluation import EVALUATION_PAYLOADS
from colonnade.algorithms.leaving import LEAVING_PAYLOADS
from colonnade.algorithms.method import Defaults, Method
from colonnade.algorithms.prediction.plain import PlainPredictor
from colonnade_median.config import MedianOptions
from colonnade_median.messages import PAYLOADS
from colonnade_median.observations import OBSERVATIONS
from colonnade_median.party import Party
from colonnade_median.server import Server

__all__ = ["METHOD"]

METHOD = Method(
    "median",
    "coordinate-wise median; Yin et al. (ICML 2018) for gradients",
    "rounds; the server takes the middle of the parties' embeddings, so that one absurd party moves nothing",
    "server: every party's embeddings; each party: the loss gradient of its own embeddings (which tells labels)",
    MedianOptions,
    (*PAYLOADS, *EVALUATION_PAYLOADS, *LEAVING_PAYLOADS),
    Server,
    Party,
    predictor=PlainPredictor(),
    observations=OBSERVATIONS,
    defaults=Defaults(aggregate="mean"),
    page="https://example.org/colonnade-median/median.md",
)
