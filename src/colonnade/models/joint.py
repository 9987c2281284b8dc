"""The networks of all roles as one function, in one graph: for diagnoses in one place.

    F(θ_0, …, θ_M) = mean ℓ(θ_0; h_1(θ_1), …, h_M(θ_M)) + Σ r_m(θ_m)

F is that of VAFL Eq. (1) over some rows, in evaluation mode, at the weights that evaluations read.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from colonnade.models.network import Network
from colonnade.models.server import ServerNetwork
from colonnade.protocol.messages import Array

__all__ = ["Joint", "JointGradient"]


class JointGradient(NamedTuple):
    """F and ∇F: of the server, then of each party."""

    objective: float
    parts: list[Tensor]

    @property
    def squared_norm(self) -> float:
        """‖∇F‖² over the parameters of all roles."""
        return float(sum(part.double().square().sum().item() for part in self.parts))


class Joint(NamedTuple):
    """The networks, and what makes the input of the server's network from the parties' blocks, side by side."""

    server: ServerNetwork
    parties: Sequence[Network]
    gathered: Callable[[Any], Any]

    def gradient(self, blocks: Sequence[Array], y: Array) -> JointGradient:
        """Return F and ∇F over these rows; `blocks` are the parties' columns."""
        networks = [self.server, *self.parties]
        leaves = [network.judged.detach().clone().requires_grad_() for network in networks]
        # cuDNN's recurrent layers have no backward pass in evaluation mode.
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            loss = self._loss(leaves, blocks, y)
            parts = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        found = [part.detach().clone() for part in parts]
        penalty = 0.0
        for network, gradient, theta in zip(networks, found, leaves, strict=True):
            network.regulariser.add_gradient(gradient, theta.detach())
            penalty += network.regulariser.value(theta.detach())
        return JointGradient(loss.item() + penalty, found)

    def _loss(self, leaves: Sequence[Tensor], blocks: Sequence[Array], y: Array) -> Tensor:
        theta_0, *thetas = leaves
        pairs = zip(self.parties, thetas, blocks, strict=True)
        h = [network.read_at(theta, network.tensor(x)).to(theta_0.device) for network, theta, x in pairs]
        objective = self.server.objective
        output = self.server.output_at(theta_0, self.gathered(torch.cat(h, 1)))
        return objective.loss(output, self.server.tensor(objective.targets(y)))
