"""Networks for zeroth-order methods: a party's embedding at other parameters, the server's loss in float64.

The loss pair differs by about μ·|∇|: in float32 that is mostly rounding noise (digest, part 2), so losses are computed
in float64 from the float32 parameters. Both of a pair see the same random layers and the same buffers.
"""

import numpy as np
import torch
from torch import nn

from colonnade.models.blackbox import BlackBoxNetwork
from colonnade.models.build import Factory, party_model
from colonnade.models.network import Network
from colonnade.models.objective import Objective
from colonnade.models.optimiser import OptimiserSpec, Regulariser, to_tensor
from colonnade.models.server import ServerNetwork, aggregate
from colonnade.protocol.messages import Array

__all__ = ["ProbedNetwork", "ProbedServerNetwork", "probed_network"]


class ProbedNetwork(Network):
    """A party's torch module that is never differentiated."""

    def __init__(self, module: nn.Module, optimiser: OptimiserSpec, regulariser: Regulariser | None = None) -> None:
        super().__init__(module, optimiser, regulariser)
        self._twin = self.twin()

    @torch.no_grad()
    def embed(self, x: Array, seed: int) -> Array:
        """The output at θ in training mode."""
        values: Array = self.run(to_tensor(x), seed).numpy()
        return values

    def embed_at(self, theta: Array, x: Array, seed: int) -> Array:
        """The output at other parameters, the rest alike."""
        values: Array = self._twin.run(to_tensor(theta), to_tensor(x), seed).numpy()
        return values


def probed_network(
    model: Factory,
    shape: tuple[int, ...],
    outputs: int,
    seed: int,
    who: str,
    optimiser: OptimiserSpec,
    regulariser: Regulariser | None = None,
) -> ProbedNetwork | BlackBoxNetwork:
    """A party's network for a zeroth-order method: a torch module, or a black box."""
    made = party_model(model, shape, outputs, seed, who)
    if isinstance(made, nn.Module):
        return ProbedNetwork(made, optimiser, regulariser)
    network = BlackBoxNetwork(made, outputs, seed, who, optimiser, regulariser)
    network.embed(np.zeros((2, int(np.prod(shape))), np.float32), 0)  # refused now rather than later
    return network


class ProbedServerNetwork(ServerNetwork):
    """θ_0 with exact losses."""

    def __init__(
        self, module: nn.Module, optimiser: OptimiserSpec, objective: Objective, how: str, parties: int
    ) -> None:
        super().__init__(module, optimiser, objective, how, parties)
        self._twin = self.twin(torch.float64)

    @torch.no_grad()
    def losses_at(self, theta: Array | None, h: Array, targets: Array, seed: int) -> Array:
        """The loss of every row (float64) at θ, or at the committed θ_0."""
        inputs = aggregate(self._how, to_tensor(h).double(), self._parties)
        output = self._twin.run(self.theta if theta is None else to_tensor(theta), inputs, seed)
        losses: Array = self.objective.row_losses(output, to_tensor(targets)).numpy()
        return losses
