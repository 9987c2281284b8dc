"""Passes of a network on a GPU, recorded once and replayed: two launches in place of hundreds.

With small images and batches a GPU is done before the processor has asked for the next layer. A recording
(torch.cuda.make_graphed_callables) is for one shape of batch; others are computed layer by layer, as are the first.
"""

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Recorder"]

AFTER = 5  # passes of the same shape: cuDNN has chosen its kernels by then
Pass = Callable[[Tensor], Tensor]
Key = tuple[torch.Size, bool]  # of an input: its shape, and whether its gradient is wanted


class _Whole(nn.Module):
    """The module that is recorded; the one inside stays as it is."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.inside(x)
        return output


class Recorder:
    """Knows a module's recording, once there is one. Only for layers that do the same every time, and draw nothing."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._seen: Counter[Key] = Counter()
        self._tried = False
        self._recorded: tuple[Key, Pass] | None = None

    def pass_for(self, x: Tensor) -> tuple[Pass, bool]:
        """How to compute x, and whether by the recording, whose results the next pass overwrites.

        Recording runs the module a few times: buffers are to be set afterwards.
        """
        key = (x.shape, x.requires_grad)
        if self._tried:
            recorded, replay = self._recorded or (None, self._module)
            return (replay, True) if key == recorded and torch.is_grad_enabled() else (self._module, False)
        if x.device.type == "cpu" or not torch.is_grad_enabled():
            return self._module, False
        self._seen[key] += 1
        if self._seen[key] < AFTER:
            return self._module, False
        self._tried, self._recorded = True, self._record(x)
        return self.pass_for(x)

    def _record(self, x: Tensor) -> tuple[Key, Pass] | None:
        """None: it cannot be recorded, which is no reason to stop."""
        sample = x.detach().clone().requires_grad_(x.requires_grad)
        with warnings.catch_warnings():  # of streams that differ: the last eager pass may still be there
            warnings.simplefilter("ignore", UserWarning)
            try:
                recording: Any = torch.cuda.make_graphed_callables(_Whole(self._module), (sample,))
            except RuntimeError:
                return None
        return (x.shape, x.requires_grad), recording
