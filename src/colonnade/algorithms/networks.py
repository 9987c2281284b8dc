"""The server's half as most methods make it."""

from typing import TypeVar

from colonnade.algorithms.method import Options, ServerSetup
from colonnade.models import (
    Objective,
    OptimiserSpec,
    ServerNetwork,
    aggregated_width,
    server_module,
    with_party_dropout,
)
from colonnade.protocol.role import SERVER
from colonnade.protocol.seeds import derive

__all__ = ["server_network"]

N = TypeVar("N", bound=ServerNetwork)


def server_network(
    setup: ServerSetup[Options], kind: type[N], optimiser: OptimiserSpec | None = None, *, lacking: bool = False
) -> N:
    """θ_0, behind party dropout where the config asks for it; `lacking`: rows may lack some parties' blocks."""
    training = setup.training
    inputs = aggregated_width(setup.aggregate, setup.widths)
    module = server_module(setup.model, inputs, setup.task.outputs, derive(training.seed, "init", SERVER))
    module, how = with_party_dropout(module, training.party_dropout, setup.widths, setup.aggregate, lacking)
    objective = Objective(setup.task, setup.y_train)
    spec = (optimiser or training.server_optimiser).averaging(setup.options.average)
    return kind(module.to(setup.device), spec, objective, how, len(setup.parties))
