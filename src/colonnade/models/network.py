"""A torch module as a flat vector θ, with explicit forward, backward and step.

`forward` and `backward` leave θ, the buffers and torch's generators unchanged, so a role's `compute` may call them.
Only `apply` and `load` change the network. The network caches the graph of the last forward pass. If the graph is gone
(after a restart), `backward` computes it again from the same rows and seed, with the same bits.
"""

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors
from torch.autograd.graph import _engine_run_backward
from torch.func import functional_call, grad, vmap

from colonnade.models.continued import tensors_of
from colonnade.models.frozen import Frozen, freeze
from colonnade.models.on_device import seed_generators, to_array, to_tensor
from colonnade.models.optimiser import OptimiserSpec, Parameters, Regulariser
from colonnade.models.polynomial import Polynomial
from colonnade.models.precision import MIXED, Mixed
from colonnade.models.recorded import Recorder
from colonnade.models.resnet import BasicBlock, Permuted
from colonnade.models.shaped import Recurrent
from colonnade.models.transformer import Attention, TextEncoder
from colonnade.privacy.perturb import MARGIN, Perturbed, Replay, drawing, keeping
from colonnade.protocol.messages import Array

__all__ = ["Network", "Twin", "bind", "draw_in_turn", "flatten", "pulled_back"]

_turn: AbstractContextManager[Any] = nullcontext()  # if several threads compute, only one draws at a time
PRIVATE_ROWS = 256  # rows at a time: each row has its own gradient
READ_ROWS = 1024  # rows at a time: a convolution's maps of more rows leave the processor's cache, and fill the memory

# Layers known to draw no random numbers in training. Any other layer, a subclass too, gets its own generator.
_DRAWS_NOTHING = {
    nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Linear, nn.Bilinear, nn.Identity, nn.Flatten, nn.Unflatten,
    nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Tanh, nn.Sigmoid, nn.Softmax,
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm, nn.Embedding, Recurrent,
    BasicBlock, Permuted, Polynomial, Perturbed, Attention, TextEncoder,
}  # fmt: skip


class Network(Parameters):
    """One role's trainable module."""

    def __init__(self, module: nn.Module, optimiser: OptimiserSpec, regulariser: Regulariser | None = None) -> None:
        self._trainer = module.train()
        self._reader = copy.deepcopy(module).eval().requires_grad_(False)
        self.parameters = [p for p in self._trainer.parameters() if p.requires_grad]
        pairs = zip(self._trainer.parameters(), self._reader.parameters(), strict=True)
        twins = [read for trained, read in pairs if trained.requires_grad]
        super().__init__(flatten(self.parameters), optimiser, regulariser)
        bind(twins, self.judged)
        self._buffers = flatten_by_dtype(list(self._trainer.buffers()))
        self._committed = flatten_by_dtype(list(self._reader.buffers()))
        self._draws = any(_may_draw(part) for part in self._trainer.modules())
        self._training = Mixed(self._trainer) if optimiser.precision == MIXED else self._trainer
        self._recorder = None if self._draws else Recorder(self._training)
        self.averages = bool(self._buffers)  # over rows (BatchNorm): a row's output depends on the whole pass
        # For training mode if `read` differs from it: `read` draws nothing, moves no buffer, and uses the average of θ.
        self._apart = self.twin() if self._draws or self.averages or self.average is not None else None
        self._tape: tuple[int, Tensor] | None = None
        self._frozen: Frozen | None = None

    def run(self, x: Tensor, seed: int, onward: bool = False) -> Tensor:
        """Run one pass in training mode; random layers draw from `seed`.

        Buffers start from the committed ones or, with `onward`, from where the last pass left them.
        """
        starts = [live.clone() for live in self._buffers] if onward else self._committed
        compute, self._replayed = (self._training, False) if self._recorder is None else self._recorder.pass_for(x)
        for live, start in zip(self._buffers, starts, strict=True):
            live.copy_(start)
        with _generator(seed) if self._draws else nullcontext():
            output: Tensor = compute(x)
        return output

    def preserved(self, result: Tensor) -> Tensor:
        """Return a result of the last pass in memory that the next pass does not overwrite."""
        return result.clone() if self._replayed else result

    def forward(self, x: Array, key: int, seed: int) -> Array:
        """Return the output for training rows; keeps its graph under `key` for `backward`."""
        self._tape = None  # an existing graph would disturb a recording
        output = self.run(self.tensor(x), seed)
        self._tape = (key, output)
        values: Array = to_array(self.preserved(output.detach()))
        return values

    def twin(self, dtype: torch.dtype = torch.float32) -> "Twin":
        """Return a copy that runs at other parameters, or in another precision, without changing this network."""
        return Twin(self._trainer, self._committed, self._draws, dtype)

    def copy(self) -> "Network":
        """Return another network over a copy of the module, with its own θ, and without optimiser or average."""
        return Network(copy.deepcopy(self._trainer), OptimiserSpec())

    def follow(self, other: "Network") -> None:
        """Take over the parameters and committed buffers of the network from which this one was copied."""
        self._frozen = None
        self.theta.copy_(other.theta)
        self.commit(other._committed)

    def forget_forward(self) -> None:
        """Drop the graph of the last forward pass."""
        self._tape = None

    def commit(self, buffers: Sequence[Array | Tensor]) -> None:
        """Set the buffers with which the next pass begins."""
        for committed, value in zip(self._committed, buffers, strict=False):
            committed.copy_(value if isinstance(value, Tensor) else self.tensor(value))

    def buffers_after_forward(self) -> list[Array]:
        """Return the buffers (BatchNorm's averages) as the last forward pass left them; `apply` commits them."""
        return [to_array(buffers.clone()) for buffers in self._buffers]

    def backward(self, x: Array, key: int, seed: int, output_gradient: Array) -> Array:
        """Return ∇θ of ⟨output, output_gradient⟩ at the forward pass `key`, as a flat vector."""
        if self._tape is None or self._tape[0] != key:
            self.forward(x, key, seed)
        assert self._tape is not None
        output, self._tape = self._tape[1], None
        if not self.parameters:
            return np.zeros(0, np.float32)
        parts = pulled_back(output, self.tensor(output_gradient), self.parameters)
        return self.joined(parts)

    def joined(self, parts: Sequence[Tensor | None]) -> Array:
        """Join the parameters' gradients into one vector; an unused parameter has zeros."""
        if not self.parameters:
            return np.zeros(0, np.float32)
        used = [
            part if part is not None else torch.zeros_like(parameter)
            for part, parameter in zip(parts, self.parameters, strict=True)
        ]
        gradient: Array = to_array(self.preserved(_flatten_dense_tensors(used)))  # type: ignore[no-untyped-call]
        return gradient

    def private_gradient(
        self, x: Array, seed: int, output_gradient: Array, clip: float, noise: Callable[[int], Array]
    ) -> Array:
        """Compute `backward` with per-record clipping to norm `clip`, and noise on the sum (Abadi et al., 2016).

        A record's part is the gradient of its own loss, as if it were the whole batch. The call runs inside a `Stream`
        that keeps what it draws.
        """
        rows = len(x)
        total = torch.zeros_like(self.theta)
        for start in range(0, rows, PRIVATE_ROWS):
            part = slice(start, start + PRIVATE_ROWS)
            parts = self._gradients_of_records(self.tensor(x[part]), seed, rows * self.tensor(output_gradient[part]))
            norms = torch.linalg.vector_norm(parts, dim=1)
            total += (clip * (1 - MARGIN) / norms.clamp_min(1e-12)).clamp_max(1.0) @ parts
        gradient: Array = total.cpu().numpy()
        return (gradient + noise(len(gradient))) / np.float32(rows)

    def _gradients_of_records(self, x: Tensor, seed: int, output_gradient: Tensor) -> Tensor:
        """Return (rows, parameters): one pass records the draws, then each row runs with exactly the same draws."""
        drawn = keeping()
        with torch.no_grad():
            self.run(x, seed)
        names = {name: p.detach() for name, p in self._trainer.named_parameters() if p.requires_grad}

        def product(theta: dict[str, Tensor], row: Tensor, gradient: Tensor, *draws: Tensor) -> Tensor:
            with drawing(Replay(draws)):
                output = functional_call(self._trainer, theta, (row[None],))
            total: Tensor = (output[0] * gradient).sum()
            return total

        each = (None, *[0] * (2 + len(drawn)))
        parts = vmap(grad(product), each, randomness="different")(names, x, output_gradient, *drawn)
        return torch.cat([parts[name].reshape(len(x), -1) for name in names], dim=1)

    def apply(self, gradient: Array, rate: float, buffers: list[Array] | None = None) -> None:
        """θ ← θ − rate·(gradient + ∇r(θ)), by the role's optimiser; then commits the buffers."""
        self._frozen = None
        if not self.over:
            self.commit(buffers or ())
        super().apply(gradient, rate)

    def snapshot(self) -> list[Array]:
        """Return a copy of what evaluation and prediction read: parameters and buffers."""
        return [*super().snapshot(), *(buffer.cpu().numpy().copy() for buffer in self._committed)]

    def settle_on(self, snapshot: list[Array]) -> None:
        """Read this snapshot from now on; later steps are ignored."""
        self._frozen = None
        super().settle_on(snapshot)
        self.commit(snapshot[1:])

    def freeze(self) -> None:
        """Let `read` use numpy for a few rows, until the weights change again: for predictions, not for training.

        The outputs then differ from those of torch by rounding.
        """
        self._frozen = freeze(self._reader)

    def read(self, x: Array) -> Array:
        """Return the output in evaluation mode of the committed state, or of its average.

        The call moves no generator and no buffer.
        """
        if self._frozen is not None and self._frozen.takes(x):
            return self._frozen(x)
        return self._read(x)

    @torch.no_grad()
    def _read(self, x: Array) -> Array:
        starts = range(0, max(len(x), 1), READ_ROWS)
        parts = [self._reader(self.tensor(x[start : start + READ_ROWS])) for start in starts]
        output: Array = to_array(parts[0] if len(parts) == 1 else torch.cat(parts))
        return output

    def twin_to_read(self, dtype: torch.dtype) -> nn.Module:
        """Return a copy of the committed module in evaluation mode, in another precision."""
        return copy.deepcopy(self._reader).to(dtype)

    def read_at(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return the output in evaluation mode at other parameters; the graph leads back to θ. It changes nothing."""
        parts, start = {}, 0
        for name, parameter in self._trainer.named_parameters():
            if parameter.requires_grad:
                parts[name] = theta[start : start + parameter.numel()].view_as(parameter)
                start += parameter.numel()
        output: Tensor = functional_call(self._reader, parts, (x,))
        return output

    def renewed(self, x: Array, seed: int, company: Array) -> Array:
        """Return the output in training mode for rows that are not trained on; keeps no graph and moves no buffer.

        Random layers draw from `seed`. If the network keeps averages, each pass is filled up with rows of `company`, to
        at least as many rows as that has: BatchNorm cannot normalise over one row, and over a few it gives noise.
        """
        if self._apart is None:
            return self.read(x)  # both modes give the same output
        self._apart.move(self.theta)
        parts = []
        for place, start in enumerate(range(0, max(len(x), 1), READ_ROWS)):
            part = x[start : start + READ_ROWS]
            rows, missing = len(part), len(company) - len(part) if self.averages else 0
            filled = np.concatenate([part, company[:missing]]) if missing > 0 else part
            parts.append(self._apart.run(self.tensor(filled), (seed + place) % 2**63)[:rows])
        output: Array = to_array(parts[0] if len(parts) == 1 else torch.cat(parts))
        return output

    @property
    def reader(self) -> nn.Module:
        """The committed module in evaluation mode."""
        return self._reader

    def digest(self) -> str:
        """Return the sha256 of the parameters that `read` uses, and of the buffers."""
        parts = [self.judged, *self._reader.buffers()]
        return hashlib.sha256(b"".join(part.cpu().numpy().tobytes() for part in parts)).hexdigest()

    def trained(self) -> dict[str, Array]:
        """Return parameters and buffers by name, as `read` uses them."""
        return tensors_of(self._reader)

    def save(self) -> dict[str, Any]:
        """Return parameters, buffers and optimiser state."""
        return super().save() | {"buffers": [buffer.cpu().numpy().copy() for buffer in self._committed]}

    def load(self, saved: Mapping[str, Any]) -> None:
        self._frozen = None
        super().load(saved)
        for buffer, value in zip(self._committed, saved["buffers"], strict=True):
            buffer.copy_(to_tensor(value))
        self._tape = None


class Twin:
    """A copy of a network in training mode that can move to any parameters."""

    def __init__(self, module: nn.Module, committed: list[Tensor], draws: bool, dtype: torch.dtype) -> None:
        self._module = copy.deepcopy(module).to(dtype)
        parameters = [p for p in self._module.parameters() if p.requires_grad]
        self._theta = flatten(parameters, dtype)
        self._module.requires_grad_(False)
        self._buffers, self._committed = flatten_by_dtype(list(self._module.buffers())), committed
        self._draws = draws

    def move(self, theta: Tensor) -> None:
        self._theta.copy_(theta)

    @torch.no_grad()
    def run(self, x: Tensor, seed: int) -> Tensor:
        """Run one pass; random layers draw from `seed`, buffers start from the network's committed ones."""
        for live, committed in zip(self._buffers, self._committed, strict=True):
            live.copy_(committed)
        with _generator(seed) if self._draws else nullcontext():
            output: Tensor = self._module(x)
        return output


def flatten(parameters: list[nn.Parameter], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return one vector that holds all parameters; the parameters become views of it."""
    parts = [p.detach().reshape(-1).to(dtype) for p in parameters]
    theta = torch.cat(parts) if parts else torch.zeros(0, dtype=dtype)
    bind(parameters, theta)
    return theta


def flatten_by_dtype(buffers: list[Tensor]) -> list[Tensor]:
    """Return one vector per dtype that holds all its buffers; they become views, so that one copy moves them all."""
    groups: dict[torch.dtype, list[Tensor]] = {}
    for buffer in buffers:
        groups.setdefault(buffer.dtype, []).append(buffer)
    vectors = [torch.cat([buffer.reshape(-1) for buffer in group]) for group in groups.values()]
    for group, vector in zip(groups.values(), vectors, strict=True):
        bind(group, vector)
    return vectors


def pulled_back(output: Tensor, gradient: Tensor, inputs: Sequence[Tensor]) -> tuple[Any, ...]:
    """Return the gradients of ⟨output, gradient⟩ with respect to the inputs; None for an unused input.

    This is torch.autograd.grad without its checks: for a small network they take a fifth of the pass, and import sympy.
    """
    parts: tuple[Any, ...] = _engine_run_backward(
        (output,),
        (gradient,),
        False,  # keep the graph
        False,  # make a graph of the gradient
        tuple(inputs),
        True,  # allow unused inputs
        accumulate_grad=False,
    )
    return parts


def bind(parameters: Sequence[Tensor], theta: Tensor) -> None:
    """Make the parameters views of consecutive parts of θ."""
    start = 0
    for parameter in parameters:
        parameter.data = theta[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()


def _may_draw(part: nn.Module) -> bool:
    if type(part) in (nn.RNN, nn.GRU, nn.LSTM):
        return bool(part.dropout)  # dropout between its layers
    return type(part) not in _DRAWS_NOTHING


def draw_in_turn(lock: AbstractContextManager[Any]) -> None:
    """Allow several threads to compute: torch has one generator for all, so draws take the lock.

    Only the first call sets the lock.
    """
    global _turn  # noqa: PLW0603
    if isinstance(_turn, nullcontext):
        _turn = lock


@contextmanager
def _generator(seed: int) -> Iterator[None]:
    """Seed torch's global generator for one forward pass, then restore it; other threads wait."""
    with _turn:
        before = torch.get_rng_state()
        seed_generators(seed)
        try:
            yield
        finally:
            torch.set_rng_state(before)
