"""How a flat parameter vector is stepped: the optimiser, the regulariser, the average, and their saved state."""

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from colonnade.models.on_device import to_tensor
from colonnade.models.precision import FULL
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.messages import Array

__all__ = ["MOMENTUM", "OptimiserSpec", "Parameters", "Regulariser", "ServerRegulariser"]


MOMENTUM = 0.9  # default of "momentum"
_SHORT = {"sgd": "SGD", "momentum": "SGD", "adam": "Adam"}
AVERAGED = 8  # γ of `Parameters.average`
_UNFIT = ("LBFGS", "SparseAdam")  # LBFGS evaluates the loss several times per step; SparseAdam needs sparse gradients


class OptimiserSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a role's parameters are trained: `name` steps them, and `options` go to the torch class."""

    name: str = "sgd"
    options: dict[str, Any] = {}
    prox: float = 0.0  # μ and the factor of each local step's rate: for methods with local steps
    decay: float = 1.0
    average: bool = False  # evaluation reads an average of θ: for methods with `protocol.average`
    max_norm: float | None = None  # of train.max_gradient_norm: longer gradients are shortened to it; None: any length
    precision: str = FULL  # of the training passes: see precision.py

    def averaging(self, average: bool) -> "OptimiserSpec":
        """Return the same optimiser, with an average of θ if the method's options ask for one."""
        return msgspec.structs.replace(self, average=True) if average else self

    @property
    def plain(self) -> bool:
        """Whether a step is only θ ← θ − η·g; then torch.optim is not used: its first use imports for seconds."""
        return self.name == "sgd" and not self.options

    @property
    def flat_adam(self) -> bool:
        """Whether Colonnade's own Adam can replace torch's."""
        return self.name in FlatAdam.NAMES and set(self.options) <= set(FlatAdam.OPTIONS)

    def check(self) -> None:
        """Raise ConfigError for an optimiser that cannot be made."""
        if self.flat_adam:
            FlatAdam.check(self)
        elif not self.plain:
            self.build(nn.Parameter(torch.zeros(1)))

    def over(self, theta: Tensor) -> "FlatAdam | TorchOptimiser | None":
        """Return what steps θ; None for a plain gradient step."""
        if self.plain:
            return None
        return FlatAdam(theta, self) if self.flat_adam else TorchOptimiser(theta, self)

    def build(self, theta: nn.Parameter) -> torch.optim.Optimizer:
        """Build the torch optimiser over θ."""
        options = {"momentum": MOMENTUM} | self.options if self.name == "momentum" else dict(self.options)
        kind: Any = getattr(torch.optim, _SHORT.get(self.name, self.name), None)
        if not _is_optimiser(kind):
            advice = "use 'sgd', 'momentum', 'adam' or a class of torch.optim by its name, e.g. 'RMSprop'"
            raise ConfigError("train.optimiser", self.name, advice)
        try:
            optimiser: torch.optim.Optimizer = kind([theta], lr=0.0, **options)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                "train.optimiser", options, f"{self.name} does not accept these options: {error}"
            ) from None
        return optimiser


def _is_optimiser(kind: Any) -> bool:
    known = isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    return known and kind is not torch.optim.Optimizer and kind.__name__ not in _UNFIT


class Regulariser(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """r(θ_m) of VAFL Eq. (1): weight·‖θ‖²/2 (l2) or weight·‖θ‖₁ (l1)."""

    key: ClassVar[str] = "train.regulariser"

    kind: str = "none"  # "none", "l1" or "l2"
    weight: float = 0.0  # the factor before the penalty

    def __post_init__(self) -> None:
        if self.kind not in ("none", "l1", "l2"):
            raise ConfigError(f"{self.key}.kind", self.kind, "use 'none', 'l1' or 'l2'")
        if not self.weight >= 0:
            raise ConfigError(f"{self.key}.weight", self.weight, "must be 0 or more")

    def value(self, theta: Tensor) -> float:
        """Return r(θ)."""
        if self.kind == "l2":
            return self.weight * theta.square().sum().item() / 2
        return self.weight * theta.abs().sum().item() if self.kind == "l1" else 0.0

    def add_gradient(self, gradient: Tensor, theta: Tensor) -> None:
        """gradient += ∇r(θ)."""
        if self.kind == "l2":
            gradient.add_(theta, alpha=self.weight)
        elif self.kind == "l1":
            gradient.add_(torch.sign(theta), alpha=self.weight)


class ServerRegulariser(Regulariser, frozen=True, forbid_unknown_fields=True):
    """λg(w_0) of VFL-Cascaded Eq. (1), with λ as `weight`. The paper leaves g open; g is as for the parties."""

    key: ClassVar[str] = "train.server_regulariser"


class FlatAdam:
    """Adam (Kingma and Ba, 2015) over one vector, with decoupled weight decay (Loshchilov and Hutter, 2019).

    It gives the same bits as torch.optim.Adam and AdamW on a CPU, in 40 % of their time. It also avoids the second that
    the first use of torch.optim takes to import.
    """

    NAMES = ("adam", "Adam", "AdamW")
    OPTIONS = ("betas", "eps", "weight_decay")

    def __init__(self, theta: Tensor, spec: OptimiserSpec) -> None:
        options, self._decoupled = spec.options, spec.name == "AdamW"
        self._theta, self._eps = theta, float(options.get("eps", 1e-8))
        self._beta1, self._beta2 = map(float, options.get("betas", (0.9, 0.999)))
        self._decay = float(options.get("weight_decay", 0.01 if self._decoupled else 0.0))
        self.forget()

    @staticmethod
    def check(spec: OptimiserSpec) -> None:
        """Refuse options out of range."""
        match spec.options.get("betas", [0.9, 0.999]):
            case [float() | int() as one, float() | int() as other] if 0 <= one < 1 and 0 <= other < 1:
                pass
            case wrong:
                raise ConfigError("train.optimiser", {"betas": wrong}, "give two numbers, each from 0 to below 1")
        for name in ("eps", "weight_decay"):
            value = spec.options.get(name, 0.0)
            if not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise ConfigError("train.optimiser", {name: value}, "must be a number, 0 or more")

    def forget(self) -> None:
        """Reset the state to that before the first step."""
        self._count = 0
        self._mean, self._square = torch.zeros_like(self._theta), torch.zeros_like(self._theta)

    def step(self, gradient: Tensor, rate: float) -> None:
        self._count += 1
        if self._decay and self._decoupled:
            self._theta.mul_(1 - rate * self._decay)
        elif self._decay:
            gradient = gradient.add(self._theta, alpha=self._decay)
        self._mean.lerp_(gradient, 1 - self._beta1)
        self._square.mul_(self._beta2).addcmul_(gradient, gradient, value=1 - self._beta2)
        unbiased = (1 - self._beta2**self._count) ** 0.5
        size = (self._square.sqrt() / unbiased).add_(self._eps)
        self._theta.addcdiv_(self._mean, size, value=-rate / (1 - self._beta1**self._count))

    def save(self) -> dict[str, Any]:
        """Return the state under torch's names; empty before the first step."""
        if not self._count:
            return {}
        averages = {"exp_avg": self._mean, "exp_avg_sq": self._square}
        return {"step": self._count} | {name: _plain_value(value) for name, value in averages.items()}

    def load(self, saved: Mapping[str, Any]) -> None:
        self.forget()
        if saved:
            self._count = int(saved["step"])
            self._mean.copy_(to_tensor(saved["exp_avg"]))
            self._square.copy_(to_tensor(saved["exp_avg_sq"]))


class TorchOptimiser:
    """Any other optimiser of torch.optim."""

    def __init__(self, theta: Tensor, spec: OptimiserSpec) -> None:
        self._flat = nn.Parameter(theta, requires_grad=theta.numel() > 0)
        self._optimiser = spec.build(self._flat)

    def forget(self) -> None:
        """Reset the state to that before the first step."""
        self._optimiser.state.clear()

    def step(self, gradient: Tensor, rate: float) -> None:
        self._flat.grad = gradient
        self._optimiser.param_groups[0]["lr"] = rate
        self._optimiser.step()

    def save(self) -> dict[str, Any]:
        return {name: _plain_value(value) for name, value in self._optimiser.state.get(self._flat, {}).items()}

    def load(self, saved: Mapping[str, Any]) -> None:
        self.forget()
        state = {name: self._placed(value) for name, value in saved.items()}
        if state:
            self._optimiser.state[self._flat] = state

    def _placed(self, value: Any) -> Any:
        """Put averages on θ's device; the count of steps, a scalar, stays on the CPU."""
        if not isinstance(value, np.ndarray):
            return value
        tensor = torch.from_numpy(np.array(value))
        return tensor.to(self._flat.device) if tensor.ndim else tensor


class Parameters:
    """A flat vector θ that is stepped and saved; a subclass defines what it parameterises.

    `average` weights late steps more than early ones: θ̄ ← θ̄ + (γ+1)/(n+γ)·(θ_n − θ̄), the polynomial-decay average of
    O. Shamir, T. Zhang (2013, Sec. 4) with γ = 8. About the last n/9 steps count. It starts at θ_1. It is computed only
    if the optimiser's spec asks for it. Training never reads it, so it is post-processing for privacy.
    """

    def __init__(self, theta: Tensor, optimiser: OptimiserSpec, regulariser: Regulariser | None = None) -> None:
        if optimiser.prox or optimiser.decay != 1.0:
            advice = "`prox` and `decay` are for methods with local steps, such as 'flex'"
            raise ConfigError("train.optimiser", {"prox": optimiser.prox, "decay": optimiser.decay}, advice)
        self.theta = theta
        self.average = theta.clone() if optimiser.average else None
        self._regulariser, self._max_norm = regulariser or Regulariser(), optimiser.max_norm
        self._optimiser = optimiser.over(theta)
        self.steps, self.over = 0, False

    def tensor(self, array: Array) -> Tensor:
        """Return an array as a tensor on the parameters' device."""
        tensor, theta = to_tensor(array), self.theta
        if theta.is_cpu and tensor.is_cpu:
            return tensor  # as `to` would, without its cost for each of a step's many small arrays
        return tensor.to(theta.device, non_blocking=True)

    def vector(self) -> Array:
        """Return θ as an array."""
        values: Array = self.theta.cpu().numpy()
        return values

    @property
    def regulariser(self) -> Regulariser:
        """r(θ), which every step takes into account."""
        return self._regulariser

    @property
    def judged(self) -> Tensor:
        """What evaluation and prediction read: the average of θ, or θ itself."""
        return self.theta if self.average is None else self.average

    def snapshot(self) -> list[Array]:
        """Return a copy of what evaluation and prediction read."""
        return [self.judged.cpu().numpy().copy()]

    def settle_on(self, snapshot: list[Array]) -> None:
        """Read this snapshot from now on; later steps are ignored."""
        self.judged.copy_(to_tensor(snapshot[0]))
        self.over = True

    def apply(self, gradient: Array, rate: float, buffers: list[Array] | None = None) -> None:
        """θ ← θ − rate·(gradient + ∇r(θ)), by the role's optimiser.

        The sum is shortened first if it is longer than `max_norm`. That bounds a step and protects no record: private
        steps clip the gradient of every record instead (`Network.private_gradient`).
        """
        if self.over:
            return
        self.steps += 1
        if not len(gradient):
            return
        step = self.tensor(gradient)
        if self._regulariser.kind != "none":
            step = step.clone()
            self._regulariser.add_gradient(step, self.theta)
        if self._max_norm is not None:
            step = shortened(step, self._max_norm)
        if self._optimiser is None:  # the same as torch.optim.SGD, without its 15 µs of bookkeeping
            self.theta.add_(step, alpha=-rate)
        else:
            self._optimiser.step(step, rate)
        if self.average is not None:
            self.average.lerp_(self.theta, (AVERAGED + 1) / (self.steps + AVERAGED))

    def forget(self) -> None:
        """Reset the optimiser's state to that before the first step."""
        if self._optimiser is not None:
            self._optimiser.forget()

    def digest(self) -> str:
        """Return the sha256 of the parameters that evaluation reads."""
        return hashlib.sha256(self.judged.cpu().numpy().tobytes()).hexdigest()

    def save(self) -> dict[str, Any]:
        """Return the parameters, their average and the optimiser's state."""
        remembered = {} if self._optimiser is None else self._optimiser.save()
        saved = {"theta": self.vector().copy(), "optimiser": remembered, "steps": self.steps, "over": self.over}
        return saved if self.average is None else saved | {"average": self.average.cpu().numpy().copy()}

    def load(self, saved: Mapping[str, Any]) -> None:
        self.theta.copy_(to_tensor(saved["theta"]))
        if self.average is not None:
            self.average.copy_(to_tensor(saved["average"]))
        if self._optimiser is not None:
            self._optimiser.load(saved["optimiser"])
        self.steps, self.over = saved["steps"], saved.get("over", False)


def shortened(gradient: Tensor, max_norm: float) -> Tensor:
    """Scale a gradient down to norm `max_norm`; a shorter one stays."""
    norm = torch.linalg.vector_norm(gradient)
    shorter: Tensor = gradient * (max_norm / norm.clamp_min(1e-30)).clamp_max(1.0)
    return shorter


def _plain_value(value: Any) -> Any:
    return value.cpu().numpy().copy() if isinstance(value, Tensor) else value
