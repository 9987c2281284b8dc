"""Networks for zeroth-order methods: a party's embedding at other parameters, the server's loss in float64.

The two losses of a pair differ by about μ·|∇|. In float32 that is mostly rounding noise (digest, part 2), so the server
computes losses in float64 from the float32 parameters. Both losses of a pair use the same random draws and buffers.
"""

from collections.abc import Iterable

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from colonnade.models.blackbox import BlackBoxNetwork
from colonnade.models.build import Factory, party_model
from colonnade.models.network import Network, pulled_back
from colonnade.models.objective import Objective
from colonnade.models.on_device import to_array
from colonnade.models.optimiser import OptimiserSpec, Regulariser
from colonnade.models.precision import FULL
from colonnade.models.server import ServerNetwork, aggregate
from colonnade.privacy.guard import Guard
from colonnade.protocol.messages import Array

__all__ = ["ProbedNetwork", "ProbedServerNetwork", "probed_network"]


class ProbedNetwork(Network):
    """A party's torch module that is never differentiated."""

    def __init__(self, module: nn.Module, optimiser: OptimiserSpec, regulariser: Regulariser | None = None) -> None:
        # A difference of two passes: bfloat16 would round it away.
        super().__init__(module, msgspec.structs.replace(optimiser, precision=FULL), regulariser)
        self._twin = self.twin()

    @torch.no_grad()
    def embed(self, x: Array, seed: int) -> Array:
        """Return the output at θ in training mode."""
        values: Array = to_array(self.run(self.tensor(x), seed))
        return values

    def embed_at(self, theta: Array, x: Array, seed: int) -> Array:
        """Return the output at other parameters, with the same draws and buffers."""
        self._twin.move(self.tensor(theta))
        values: Array = to_array(self._twin.run(self.tensor(x), seed))
        return values


def probed_network(
    model: Factory,
    shape: tuple[int, ...],
    outputs: int,
    seed: int,
    who: str,
    optimiser: OptimiserSpec,
    regulariser: Regulariser | None = None,
    device: str = "cpu",
    guard: Guard | None = None,
) -> ProbedNetwork | BlackBoxNetwork:
    """Make a party's network for a zeroth-order method: a torch module, or a black box."""
    made = party_model(model, shape, outputs, seed, who)
    if isinstance(made, nn.Module):
        module = guard.wrap(made) if guard is not None else made
        return ProbedNetwork(module.to(device), optimiser, regulariser)
    network = BlackBoxNetwork(made, outputs, seed, who, optimiser, regulariser)
    network.embed(np.zeros((2, int(np.prod(shape))), np.float32), 0)  # refuse a bad model now rather than later
    if guard is not None:
        network.function = guard.wrap_function(made)
    return network


class ProbedServerNetwork(ServerNetwork):
    """θ_0 with losses in float64."""

    def __init__(
        self,
        module: nn.Module,
        optimiser: OptimiserSpec,
        objective: Objective,
        how: str,
        parties: int,
        regulariser: Regulariser | None = None,
    ) -> None:
        super().__init__(module, optimiser, objective, how, parties, regulariser)
        self._twin = self.twin(torch.float64)

    @torch.no_grad()
    def losses_at(self, theta: Array | None, inputs: Iterable[Array], targets: Array, seed: int) -> list[Array]:
        """Return, for each of several h, the loss of every row (float64) at θ, or at the committed θ_0 if θ is None."""
        self._twin.move(self.theta if theta is None else self.tensor(theta))
        return [self._row_losses(self.tensor(h).double(), self.tensor(targets), seed) for h in inputs]

    def _row_losses(self, h: Tensor, targets: Tensor, seed: int) -> Array:
        output = self._twin.run(aggregate(self._how, h, self._parties), seed)
        losses: Array = self.objective.row_losses(output, targets).cpu().numpy()
        return losses

    def gradient(self, h: Array, targets: Array, seed: int, onward: bool = False) -> Array:
        """Return ∇θ_0 of the mean loss, in float32 as for any first-order server; does not compute ∂ℓ/∂h."""
        output = self.run(aggregate(self._how, self.tensor(h), self._parties), seed, onward)
        if not self.parameters:
            return np.zeros(0, np.float32)
        loss = self.objective.loss(output, self.tensor(targets))
        return self.joined(pulled_back(loss, torch.ones_like(loss), self.parameters))

    @torch.no_grad()
    def observe(self, h: Array, seed: int, onward: bool = False) -> None:
        """Run a pass only to update the buffers (BatchNorm's averages), when no gradient is taken."""
        if self.averages:
            self.run(aggregate(self._how, self.tensor(h), self._parties), seed, onward)
