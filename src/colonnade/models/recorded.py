"""Passes of a network on a GPU, recorded once and replayed: two launches in place of hundreds.

With small images and batches a GPU is done before the processor has asked for the next layer. A recording
(torch.cuda.make_graphed_callables) is for one shape of batch; others are computed layer by layer, as are the first.
"""

import warnings
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["Recorder"]

AFTER = 5  # passes of the same shape: cuDNN has chosen its kernels by then
Pass = Callable[[Tensor], Tensor]


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
        self._seen: Counter[tuple[torch.Size, bool]] = Counter()
        self._recorded: tuple[tuple[torch.Size, bool], Pass] | None = None

    def pass_for(self, x: Tensor) -> tuple[Pass, bool]:
        """How to compute x, and whether by the recording, whose results the next pass overwrites.

        Recording runs the module a few times: buffers are to be set afterwards.
        """
        key = (x.shape, x.requires_grad)
        if self._recorded is not None:
            ours = key == self._recorded[0] and torch.is_grad_enabled()
            return (self._recorded[1], True) if ours else (self._module, False)
        if x.device.type == "cpu" or not torch.is_grad_enabled():
            return self._module, False
        self._seen[key] += 1
        if self._seen[key] < AFTER:
            return self._module, False
        self._recorded = key, self._record(x)
        return self._recorded[1], True

    def _record(self, x: Tensor) -> Pass:
        sample = x.detach().clone().requires_grad_(x.requires_grad)
        with warnings.catch_warnings():  # of streams that differ: the last eager pass may still be there
            warnings.simplefilter("ignore", UserWarning)
            recording: Pass = torch.cuda.make_graphed_callables(_Whole(self._module), (sample,))  # type: ignore[assignment]
        return recording
