"""Polynomial networks (FedVS Sec. 3): h = Σ_{i ≤ D} x^i W^i, element-wise powers, a 1 appended to x for the bias.

They are linear in W for every degree, so they can be evaluated on secret shares of the powers and of W.
"""

import numpy as np
import torch
from torch import Tensor, nn

from colonnade.protocol.messages import Array

__all__ = ["Polynomial", "powers"]


class Polynomial(nn.Module):
    def __init__(self, inputs: int, outputs: int, degree: int) -> None:
        super().__init__()
        self.degree = degree
        terms = degree * (inputs + 1)
        self.weight = nn.Parameter(torch.empty(terms, outputs))  # W^1 over W^2 over … W^D
        nn.init.uniform_(self.weight, -(terms**-0.5), terms**-0.5)  # the initialisation of nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        """(rows, inputs) → (rows, outputs)."""
        base = torch.cat([x, x.new_ones(len(x), 1)], 1)
        stacked = torch.cat([base**i for i in range(1, self.degree + 1)], 1) if self.degree > 1 else base
        return stacked @ self.weight


def powers(x: Array, degree: int) -> Array:
    """Return (x, 1)^1 … (x, 1)^D side by side, float64: the factor of W; FedVS Alg. 1 l. 3."""
    base = np.concatenate([x.astype(np.float64), np.ones((len(x), 1))], axis=1)
    return np.concatenate([base**i for i in range(1, degree + 1)], axis=1)
