"""A network that no longer changes, in numpy: a few rows through small layers.

For one row, torch takes five times as long to find its kernels as the layers need. After a pause its code has left the
processor's cache, and the difference grows. Larger batches and other layers stay with torch. The results differ by
rounding.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from colonnade.protocol.messages import Array, Elsewhere

__all__ = ["Frozen", "freeze"]

MOST_PRODUCTS = 2**18  # rows × weights: above this torch is as fast, and numpy's BLAS may start threads


class Frozen:
    """Copies of the weights of linear layers, with ReLU after some of them."""

    def __init__(self, layers: Sequence[tuple[Array, Array | None, bool]]) -> None:
        self._layers = tuple(layers)  # weight (inputs, outputs), bias, whether ReLU follows
        self._most_rows = MOST_PRODUCTS // max(1, sum(weight.size for weight, _, _ in layers))
        self._inputs = layers[0][0].shape[0]

    def takes(self, x: Array) -> bool:
        """Whether these rows are few enough, and in this process's memory as float32."""
        if isinstance(x, Elsewhere) or x.ndim != 2 or x.dtype != np.float32:
            return False
        return 0 < len(x) <= self._most_rows and x.shape[1] == self._inputs

    def __call__(self, x: Array) -> Array:
        """Return the output, a new array."""
        for weight, bias, bends in self._layers:
            x = np.dot(x, weight)
            if bias is not None:
                x += bias
            if bends:
                np.maximum(x, 0, out=x)
        return x


def freeze(module: nn.Module) -> Frozen | None:
    """Copy the weights of a module; None if it has other layers, or too many weights for even one row."""
    layers: list[tuple[Array, Array | None, bool]] = []
    for part in module if type(module) is nn.Sequential else [module]:
        if type(part) is nn.ReLU and layers:
            layers[-1] = (*layers[-1][:2], True)
        elif type(part) is nn.Linear and _is_plain(part):
            weight = np.array(part.weight.detach().numpy().T, order="C")  # a row times this needs half the time
            layers.append((weight, None if part.bias is None else part.bias.detach().numpy().copy(), False))
        else:
            return None
    fits = layers and sum(weight.size for weight, _, _ in layers) <= MOST_PRODUCTS
    return Frozen(layers) if fits else None


def _is_plain(layer: nn.Linear) -> bool:
    """Whether the layer is float32 in this process's memory, and a call of it does nothing but its product."""
    hooked = (
        layer._forward_hooks
        or layer._forward_pre_hooks
        or "forward" in vars(layer)
        or hasattr(layer, "parametrizations")
    )
    return not hooked and layer.weight.is_cpu and layer.weight.dtype == torch.float32
