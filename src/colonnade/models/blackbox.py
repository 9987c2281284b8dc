"""A party's model that is not a torch module: any function of a flat parameter vector and rows, differentiable or not.

Only zeroth-order methods can train it (VFL-Cascaded, Sec. III: "model applicability"). A config names it as
`package.module:Class`. Colonnade calls the class with (inputs, outputs); the object has `initial` and can be called.
"""

from typing import Protocol, runtime_checkable

import numpy as np
import torch

from colonnade.models.optimiser import OptimiserSpec, Parameters, Regulariser
from colonnade.protocol.errors import ModelError
from colonnade.protocol.messages import Array

__all__ = ["BlackBox", "BlackBoxNetwork"]


_NUMBERS = "fiu"  # kinds of numpy dtypes


@runtime_checkable
class BlackBox(Protocol):
    """The interface that a user implements."""

    def initial(self, generator: np.random.Generator) -> Array:
        """Return the initial parameters as a flat vector."""

    def __call__(self, theta: Array, rows: Array) -> Array:
        """(rows, columns) → (rows, outputs) at θ; must not change θ."""


class BlackBoxNetwork(Parameters):
    """A black box with its parameters; every call is checked, because the code is the user's."""

    averages = False

    def __init__(
        self,
        function: BlackBox,
        outputs: int,
        seed: int,
        who: str,
        optimiser: OptimiserSpec,
        regulariser: Regulariser | None = None,
    ) -> None:
        self.function, self._outputs, self._who = function, outputs, f"model.party of {who}"
        given = np.asarray(function.initial(np.random.Generator(np.random.PCG64(seed))))
        theta = _float32(given) if given.dtype.kind in _NUMBERS else given
        if theta.ndim != 1 or not len(theta) or theta is given or not np.isfinite(theta).all():
            cause = f"initial() must give a flat vector of finite numbers, not {given.shape} {given.dtype}"
            raise ModelError(f"{self._who}: {cause}")
        super().__init__(torch.from_numpy(theta), optimiser, regulariser)

    def embed(self, x: Array, seed: int) -> Array:
        """Return the embedding at θ; `seed` is unused, a black box draws nothing."""
        return self._call(self.theta.numpy(), x)

    def embed_at(self, theta: Array, x: Array, seed: int) -> Array:
        """Return the embedding at other parameters."""
        return self._call(theta, x)

    def read(self, x: Array) -> Array:
        """Return the embedding at the parameters that evaluation reads: θ or its average."""
        return self._call(self.judged.numpy(), x)

    def renewed(self, x: Array, seed: int, company: Array) -> Array:
        """Return the embedding at θ: a black box has no training mode."""
        return self._call(self.theta.numpy(), x)

    def trained(self) -> dict[str, Array]:
        """Return the parameters that evaluation reads."""
        return {"theta": self.judged.numpy().copy()}

    def buffers_after_forward(self) -> list[Array]:
        """Return []: a black box has no buffers."""
        return []

    def _call(self, theta: Array, x: Array) -> Array:
        guarded, rows = theta.view(), x.view()
        guarded.flags.writeable = rows.flags.writeable = False
        try:
            values = self.function(guarded, rows)
        except Exception as error:  # any error of the user's code: name the model
            if "read-only" in str(error):
                raise ModelError(
                    f"{self._who}: changes its parameters or rows in place; it must work on a copy"
                ) from None
            raise ModelError(f"{self._who}: fails: {type(error).__name__}: {error}") from error
        return self._check(values, len(x))

    def _check(self, values: Array, rows: int) -> Array:
        expected = (rows, self._outputs)
        if not isinstance(values, np.ndarray) or values.shape != expected:
            shape = values.shape if isinstance(values, np.ndarray) else type(values).__name__
            raise ModelError(f"{self._who}: gives {shape} for {rows} rows, should be {expected}")
        if values.dtype.kind not in _NUMBERS:
            raise ModelError(f"{self._who}: gives {values.dtype}, not numbers")
        result = _float32(values)
        if not np.isfinite(result).all():
            raise ModelError(f"{self._who}: gives NaN or infinity")
        return result


def _float32(values: Array) -> Array:
    """Return a copy; too large values become infinite, without a warning."""
    with np.errstate(over="ignore"):
        result: Array = values.astype(np.float32)
    return result
