"""Mixed precision: training passes in bfloat16, everything that stays in float32.

| | type |
|---|---|
| parameters, gradients, the optimiser's state, buffers, checkpoints, messages | float32 |
| products and convolutions of a training pass, forward and backward | bfloat16 (torch.autocast chooses the layers) |
| the loss; evaluation and prediction; the probes of a zeroth-order method | float32 or float64, as ever |

bfloat16 has float32's range, so that no loss needs scaling, and 8 bits of its mantissa's 24.
"""

import torch
from torch import Tensor, nn

__all__ = ["FULL", "MIXED", "PRECISIONS", "Mixed"]

FULL, MIXED = "fp32", "bf16"
PRECISIONS = (FULL, MIXED)


class Mixed(nn.Module):
    """A module's passes in bfloat16 with a float32 result; the module inside keeps its own parameters and names."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        """(rows, inputs) float32 → (rows, outputs) float32."""
        # A cache of converted weights would outlive the step that changes them if the pass is recorded.
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
            output: Tensor = self.inside(x)
        return output.float()
