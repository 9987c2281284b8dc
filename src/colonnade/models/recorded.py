"""Record the passes of a network on a GPU once and replay them: two launches instead of hundreds.

With small images and batches a GPU finishes before the processor has launched the next layer. A recording
(torch.cuda.make_graphed_callables) fits one shape of batch. Other shapes, and the first passes, run layer by layer.
"""

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Recorder"]

AFTER = 5  # passes of the same shape: by then cuDNN has chosen its kernels
Pass = Callable[[Tensor], Tensor]
Key = tuple[torch.Size, bool]  # of an input: its shape, and whether its gradient is needed


class _Whole(nn.Module):
    """A wrapper to record, so that the module inside stays unchanged."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.inside(x)
        return output


class Recorder:
    """Holds a module's recording, once there is one.

    It is only for layers that are deterministic and draw no random numbers.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._seen: Counter[Key] = Counter()
        self._tried = False
        self._recorded: tuple[Key, Pass] | None = None

    def pass_for(self, x: Tensor) -> tuple[Pass, bool]:
        """Return how to compute x, and whether that is the recording, whose results the next pass overwrites.

        Recording runs the module a few times, so the caller must set the buffers afterwards.
        """
        if x.is_cpu:
            return self._module, False
        key = (x.shape, x.requires_grad)
        if self._tried:
            recorded, replay = self._recorded or (None, self._module)
            return (replay, True) if key == recorded and torch.is_grad_enabled() else (self._module, False)
        if not torch.is_grad_enabled():
            return self._module, False
        self._seen[key] += 1
        if self._seen[key] < AFTER:
            return self._module, False
        self._tried, self._recorded = True, self._record(x)
        return self.pass_for(x)

    def _record(self, x: Tensor) -> tuple[Key, Pass] | None:
        """Record the module; None if it cannot be recorded, which is not an error."""
        sample = x.detach().clone().requires_grad_(x.requires_grad)
        with warnings.catch_warnings():  # about streams that differ: the graph of the last eager pass may still exist
            warnings.simplefilter("ignore", UserWarning)
            try:
                recording: Any = torch.cuda.make_graphed_callables(_Whole(self._module), (sample,))
            except RuntimeError:
                return None
        return (x.shape, x.requires_grad), recording
