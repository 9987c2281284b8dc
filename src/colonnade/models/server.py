"""The server's network: aggregate the parties' embeddings, run θ_0, compute the loss and both gradients."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from colonnade.models.network import Network, pulled_back
from colonnade.models.objective import Objective
from colonnade.models.on_device import contiguous, number, to_array
from colonnade.models.optimiser import OptimiserSpec, Regulariser
from colonnade.protocol.errors import ConfigError, ModelError
from colonnade.protocol.messages import Array, Elsewhere

__all__ = ["AGGREGATES", "Gradients", "ServerNetwork", "aggregate", "aggregated_width", "block_of"]

AGGREGATES = ("concat", "mean", "sum", "max")


def aggregated_width(how: str, widths: tuple[int, ...]) -> int:
    """Return the width of the aggregate of embeddings of these widths."""
    if how not in AGGREGATES:
        raise ConfigError("model.aggregate", how, f"use one of {', '.join(AGGREGATES)}")
    if how == "concat":
        return sum(widths)
    if len(set(widths)) > 1:
        raise ModelError(f"model.aggregate = {how!r} needs equal embedding widths, not {list(widths)}; use 'concat'")
    return widths[0]


def aggregate(how: str, h: Tensor, parties: int) -> Tensor:
    """(rows, Σ widths) → the server network's input."""
    if how == "concat":
        return h
    blocks = h.view(len(h), parties, -1)
    if how == "sum":
        return blocks.sum(1)
    return blocks.mean(1) if how == "mean" else blocks.amax(1)


class Gradients(NamedTuple):
    """The results of one forward and backward pass over a batch."""

    loss: float
    h: Array  # (rows, Σ widths): ∂ℓ/∂h of every party's block; (rows, width) if all parties have the same
    theta_0: Array


def block_of(h: Array, block: slice) -> Array:
    """Return one party's part of `Gradients.h`."""
    part: Array = contiguous(h if h.shape[1] == block.stop - block.start else h[:, block])
    return part


class ServerNetwork(Network):
    """θ_0 after the aggregate, with the task's loss."""

    def __init__(
        self,
        module: nn.Module,
        optimiser: OptimiserSpec,
        objective: Objective,
        how: str,
        parties: int,
        regulariser: Regulariser | None = None,
    ) -> None:
        super().__init__(module, optimiser, regulariser)
        self.objective, self._how, self._parties = objective, how, parties
        self._alike = how in ("sum", "mean")

    def gradients(self, h: Array, targets: Array, seed: int = 0, onward: bool = False) -> Gradients:
        """VAFL Eq. (2a), (2b): both gradients from the same pass, before any step of θ_0; `onward` as in `run`."""
        leaf = self.tensor(h)
        if self._alike:
            leaf = aggregate(self._how, leaf, self._parties).requires_grad_()
            output = self.run(leaf, seed, onward)
        else:
            output = self.run(aggregate(self._how, leaf.requires_grad_(), self._parties), seed, onward)
        loss = self.objective.loss(output, self.tensor(targets))
        value = number(loss)
        of_leaf, *of_theta = pulled_back(loss, torch.ones_like(loss), [leaf, *self.parameters])
        return Gradients(value(), self._of_blocks(of_leaf), self.joined(of_theta))

    def _of_blocks(self, gradient: Tensor) -> Array:
        """Return ∂ℓ/∂h from the gradient of the leaf.

        With a thousand parties, one block is written instead of a thousand.
        """
        values: Array = to_array(gradient / self._parties if self._how == "mean" else self.preserved(gradient))
        return values

    @torch.no_grad()
    def evaluate(self, h: Array | Iterator[Array], targets: Array) -> tuple[float, Array]:
        """Return the mean loss and the predictions of the committed state; the embeddings may come in parts."""
        parts = [self.output(part) for part in (h if isinstance(h, Iterator) else [h])]
        output = parts[0] if len(parts) == 1 else torch.cat(parts)
        return float(self.objective.loss(output, self.tensor(targets))), self.objective.predict(output)

    def output_at(self, theta: Tensor, h: Tensor) -> Tensor:
        """Return the output for embeddings at other parameters, as `read_at`."""
        return self.read_at(theta, self.aggregated(h))

    def aggregated(self, h: Tensor) -> Tensor:
        """Return the network's input from embeddings (rows, Σ widths)."""
        return aggregate(self._how, h, self._parties)

    def predict(self, h: Array) -> Array:
        """Return probabilities, or values, for embeddings (rows, Σ widths)."""
        if self._frozen is not None and not isinstance(h, Elsewhere):
            inputs = h if self._how == "concat" else getattr(h.reshape(len(h), self._parties, -1), self._how)(1)
            if self._frozen.takes(inputs):
                return self.objective.predict_here(self._frozen(inputs))
        return self.objective.predict(self.output(h))

    @torch.no_grad()
    def output(self, h: Array) -> Tensor:
        """Return the committed network's output for embeddings (rows, Σ widths)."""
        output: Tensor = self.reader(aggregate(self._how, self.tensor(h), self._parties))
        return output
