"""Torch networks: their names, construction, training as flat vectors, and metrics."""

from colonnade.models.absent import PartyDropout, with_party_dropout
from colonnade.models.build import Factory, party_module, server_module
from colonnade.models.metrics import METRICS, default_metric
from colonnade.models.network import Network
from colonnade.models.objective import LossSpec, Objective
from colonnade.models.optimiser import MOMENTUM, OptimiserSpec, Regulariser, ServerRegulariser
from colonnade.models.server import AGGREGATES, ServerNetwork, aggregated_width, block_of

__all__ = [
    "AGGREGATES",
    "METRICS",
    "MOMENTUM",
    "Factory",
    "LossSpec",
    "Network",
    "Objective",
    "OptimiserSpec",
    "PartyDropout",
    "Regulariser",
    "ServerNetwork",
    "ServerRegulariser",
    "aggregated_width",
    "block_of",
    "default_metric",
    "party_module",
    "server_module",
    "with_party_dropout",
]
