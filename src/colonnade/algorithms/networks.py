"""The server's network as most methods make it, and a party's learning rate."""

from typing import Any, TypeVar

import numpy as np

from colonnade.algorithms.method import Options, ServerSetup
from colonnade.algorithms.training import Training
from colonnade.models import (
    OptimiserSpec,
    PartyDropout,
    ServerNetwork,
    aggregated_width,
    server_module,
    with_party_dropout,
)
from colonnade.models.continued import Continued
from colonnade.protocol.role import SERVER
from colonnade.protocol.seeds import derive

__all__ = ["party_rate", "server_network"]

WIDE = 16.0  # ‖x‖₁ of a row; chosen on credit card, a9a, mfeat and digits
SAMPLE = 4096  # rows

N = TypeVar("N", bound=ServerNetwork)


def server_network(
    setup: ServerSetup[Options], kind: type[N], optimiser: OptimiserSpec | None = None, *, lacking: bool = False
) -> N:
    """Build θ_0, behind party dropout if the config asks for it. With `lacking`, rows may lack some parties' blocks."""
    training = setup.training
    inputs = aggregated_width(setup.aggregate, setup.widths)
    module = server_module(setup.model, inputs, setup.task.outputs, derive(training.seed, "init", SERVER))
    module, how = with_party_dropout(module, training.party_dropout, setup.widths, setup.aggregate, lacking)
    if isinstance(module, PartyDropout) and isinstance(setup.model, Continued):
        module.fallback.data = setup.model.fallback(module.fallback.data)
    objective = setup.objective()
    spec = (optimiser or training.server_optimiser).averaging(setup.options.average)
    penalty = training.server_regulariser
    return kind(module.to(setup.device), spec, objective, how, len(setup.parties), penalty)


def party_rate(training: Training, index: int, x: Any) -> float:
    """Return a party's learning rate. With `learning_rate = "auto"` it is lower for wide rows.

    A step of Adam moves each weight by about the rate, and so the first layer's output by rate·‖x‖₁. With hundreds of
    columns, one step moves the output so far that rows in the server's table belong to a different network. The party
    measures its own columns only, and sends nothing about them.
    """
    rate = training.party_rates[index]
    if not training.measured or not len(x):
        return rate
    rows = np.linspace(0, len(x) - 1, min(len(x), SAMPLE)).astype(np.int64)
    size = float(np.nan_to_num(np.abs(np.asarray(x[rows]))).sum(1).mean())
    return rate * min(1.0, WIDE / max(size, 1e-9))
