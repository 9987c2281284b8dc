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
        found, penalty = self.slopes(blocks, y), 0.0
        for network, part in zip((self.server, *self.parties), found.parts, strict=True):
            network.regulariser.add_gradient(part, network.judged)
            penalty += network.regulariser.value(network.judged)
        return found._replace(objective=found.objective + penalty)

    def slopes(self, blocks: Sequence[Array], y: Array) -> JointGradient:
        """Return the mean loss and its gradient, without regularisers."""
        networks = [self.server, *self.parties]
        leaves = [network.judged.detach().clone().requires_grad_() for network in networks]
        # cuDNN's recurrent layers have no backward pass in evaluation mode.
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            loss = self._loss(leaves, blocks, y)
            parts = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        return JointGradient(loss.item(), [part.detach().clone() for part in parts])

    def _loss(self, leaves: Sequence[Tensor], blocks: Sequence[Array], y: Array) -> Tensor:
        theta_0, *thetas = leaves
        pairs = zip(self.parties, thetas, blocks, strict=True)
        h = [network.read_at(theta, network.tensor(x)).to(theta_0.device) for network, theta, x in pairs]
        objective = self.server.objective
        output = self.server.output_at(theta_0, self.gathered(torch.cat(h, 1)))
        return objective.loss(output, self.server.tensor(objective.targets(y)))

    def rises(self, party: int, blocks: Sequence[Array], y: Array) -> Callable[[Array], float]:
        """Return the function of a step that gives by how much the mean loss rises with it, from a party's θ_m.

        Embeddings are float32 and losses float64, as zeroth-order methods compute them.
        """
        pairs = zip(self.parties, blocks, strict=True)
        h = [network.tensor(network.read(x)).to(self.server.theta.device) for network, x in pairs]
        own, x = self.parties[party], self.parties[party].tensor(blocks[party])
        objective, top = self.server.objective, self.server.twin_to_read(torch.float64)
        targets = self.server.tensor(objective.targets(y))

        @torch.no_grad()
        def loss(block: Tensor) -> float:
            inputs = self.gathered(torch.cat([*h[:party], block, *h[party + 1 :]], 1))
            return float(objective.loss(top(self.server.aggregated(inputs).double()), targets))

        base = loss(h[party])

        @torch.no_grad()
        def rise(step: Array) -> float:
            return loss(own.read_at(own.judged + own.tensor(step), x).to(h[party].device)) - base

        return rise
