"""How a flat parameter vector is stepped: the optimiser, the regulariser, the average, and the state that they keep."""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from colonnade.models.on_device import to_tensor
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.messages import Array

__all__ = ["MOMENTUM", "OptimiserSpec", "Parameters", "Regulariser"]


MOMENTUM = 0.9  # of "momentum", unless its options say otherwise
_SHORT = {"sgd": "SGD", "momentum": "SGD", "adam": "Adam"}
AVERAGED = 8  # γ of `Parameters.average`
_UNFIT = ("LBFGS", "SparseAdam")  # the one asks for the loss again and again, the other for sparse gradients


class OptimiserSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which optimiser steps a role's parameters; `options` go to the torch class."""

    name: str = "sgd"
    options: dict[str, Any] = {}
    prox: float = 0.0  # μ and the factor of each local step's rate: for methods with local steps
    decay: float = 1.0
    average: bool = False  # evaluation reads an average of θ: for methods with `protocol.average`

    def averaging(self, average: bool) -> "OptimiserSpec":
        """The same optimiser, with an average of θ if the method's options ask for one."""
        return msgspec.structs.replace(self, average=True) if average else self

    @property
    def plain(self) -> bool:
        """θ ← θ − η·g and nothing else; then torch.optim is left alone: its first use imports for seconds."""
        return self.name == "sgd" and not self.options

    def check(self) -> None:
        """Refuse an optimiser that cannot be made."""
        if not self.plain:
            self.build(nn.Parameter(torch.zeros(1)))

    def build(self, theta: nn.Parameter) -> torch.optim.Optimizer:
        """The torch optimiser over θ."""
        options = {"momentum": MOMENTUM} | self.options if self.name == "momentum" else dict(self.options)
        kind: Any = getattr(torch.optim, _SHORT.get(self.name, self.name), None)
        if not _is_optimiser(kind):
            advice = "use 'sgd', 'momentum', 'adam' or a class of torch.optim by its name, e.g. 'RMSprop'"
            raise ConfigError("train.optimiser", self.name, advice)
        try:
            optimiser: torch.optim.Optimizer = kind([theta], lr=0.0, **options)
        except (TypeError, ValueError) as error:
            raise ConfigError("train.optimiser", options, f"{self.name} refuses these options: {error}") from None
        return optimiser


def _is_optimiser(kind: Any) -> bool:
    known = isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    return known and kind is not torch.optim.Optimizer and kind.__name__ not in _UNFIT


class Regulariser(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """r(θ_m) of VAFL Eq. (1): weight·‖θ‖²/2 (l2) or weight·‖θ‖₁ (l1)."""

    kind: str = "none"
    weight: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in ("none", "l1", "l2"):
            raise ConfigError("train.regulariser.kind", self.kind, "use 'none', 'l1' or 'l2'")
        if not self.weight >= 0:
            raise ConfigError("train.regulariser.weight", self.weight, "must be 0 or more")

    def add_gradient(self, gradient: Tensor, theta: Tensor) -> None:
        """gradient += ∇r(θ)."""
        if self.kind == "l2":
            gradient.add_(theta, alpha=self.weight)
        elif self.kind == "l1":
            gradient.add_(torch.sign(theta), alpha=self.weight)


class Parameters:
    """A flat vector θ that is stepped and saved; what it parameterises is up to the subclass.

    `average` weights late steps more than early ones: θ̄ ← θ̄ + (γ+1)/(n+γ)·(θ_n − θ̄), the polynomial-decay average of
    O. Shamir, T. Zhang (2013, Sec. 4) with γ = 8. About the last n/9 steps count. It starts at θ_1, and costs nothing
    where the optimiser's spec does not ask for it. Training never reads it, so it is post-processing for privacy.
    """

    def __init__(self, theta: Tensor, optimiser: OptimiserSpec, regulariser: Regulariser | None = None) -> None:
        if optimiser.prox or optimiser.decay != 1.0:
            advice = "`prox` and `decay` are for methods with local steps, such as 'flex'"
            raise ConfigError("train.optimiser", {"prox": optimiser.prox, "decay": optimiser.decay}, advice)
        self.theta = theta
        self.average = theta.clone() if optimiser.average else None
        self._regulariser = regulariser or Regulariser()
        self._flat = nn.Parameter(theta, requires_grad=theta.numel() > 0)
        self._optimiser = None if optimiser.plain else optimiser.build(self._flat)
        self.steps = 0

    def tensor(self, array: Array) -> Tensor:
        """An array where the parameters are."""
        return to_tensor(array).to(self.theta.device, non_blocking=True)

    def vector(self) -> Array:
        """θ as an array."""
        values: Array = self.theta.cpu().numpy()
        return values

    @property
    def judged(self) -> Tensor:
        """What evaluation and prediction read: the average of θ, or θ itself."""
        return self.theta if self.average is None else self.average

    def apply(self, gradient: Array, rate: float, buffers: list[Array] | None = None) -> None:
        """θ ← θ − rate·(gradient + ∇r(θ)), by the role's optimiser."""
        self.steps += 1
        if not len(gradient):
            return
        step = self.tensor(gradient)
        if self._regulariser.kind != "none":
            step = step.clone()
            self._regulariser.add_gradient(step, self.theta)
        if self._optimiser is None:  # what torch.optim.SGD does, without its 15 µs of bookkeeping
            self.theta.add_(step, alpha=-rate)
        else:
            self._flat.grad = step
            self._optimiser.param_groups[0]["lr"] = rate
            self._optimiser.step()
        if self.average is not None:
            self.average.lerp_(self.theta, (AVERAGED + 1) / (self.steps + AVERAGED))

    def forget(self) -> None:
        """What the optimiser remembers of earlier steps."""
        if self._optimiser is not None:
            self._optimiser.state.clear()

    def digest(self) -> str:
        """sha256 of the parameters that evaluation reads."""
        return hashlib.sha256(self.judged.cpu().numpy().tobytes()).hexdigest()

    def save(self) -> dict[str, Any]:
        """Parameters, their average and optimiser state."""
        average = {} if self.average is None else {"average": self.average.cpu().numpy().copy()}
        state = self._optimiser.state.get(self._flat, {}) if self._optimiser is not None else {}
        return {
            "theta": self.vector().copy(),
            "optimiser": {name: _plain_value(value) for name, value in state.items()},
            "steps": self.steps,
        } | average

    def load(self, saved: Mapping[str, Any]) -> None:
        """The reverse of `save`."""
        self.theta.copy_(to_tensor(saved["theta"]))
        if self.average is not None:
            self.average.copy_(to_tensor(saved["average"]))
        if self._optimiser is not None:
            self._optimiser.state.clear()
            state = {name: self._placed(value) for name, value in saved["optimiser"].items()}
            if state:
                self._optimiser.state[self._flat] = state
        self.steps = saved["steps"]

    def _placed(self, value: Any) -> Any:
        """An optimiser's state: averages lie beside θ, its count of steps (a scalar) does not."""
        if not isinstance(value, np.ndarray):
            return value
        tensor = torch.from_numpy(np.array(value))
        return tensor.to(self.theta.device) if tensor.ndim else tensor


def _plain_value(value: Any) -> Any:
    return value.cpu().numpy().copy() if isinstance(value, Tensor) else value
