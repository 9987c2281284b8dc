"""A torch module as a flat vector θ: forward, backward and step, each explicit and none hidden.

`forward` and `backward` leave θ, buffers and torch's generators as they were, so a role's `compute` may call
them; only `apply` and `load` change the network. The graph of the last forward pass is kept aside as a cache:
if it is gone (after a restart) `backward` computes it again from the same rows and seed, with the same bits.
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
from torch.func import functional_call, grad, vmap

from colonnade.models.on_device import to_array, to_tensor
from colonnade.models.optimiser import OptimiserSpec, Parameters, Regulariser
from colonnade.models.polynomial import Polynomial
from colonnade.models.recorded import Recorder
from colonnade.models.resnet import BasicBlock, Permuted
from colonnade.models.shaped import Recurrent
from colonnade.privacy.perturb import MARGIN, Perturbed, Replay, drawing, keeping
from colonnade.protocol.messages import Array

__all__ = ["Network", "Twin", "bind", "draw_in_turn", "flatten"]

_turn: AbstractContextManager[Any] = nullcontext()  # where several threads compute, they draw one after the other
PRIVATE_ROWS = 256  # at a time: each has a gradient of its own
READ_ROWS = 1024  # at a time: a convolution's maps of more rows leave the processor's cache, and fill the memory

# Layers known to draw no random numbers in training; anything else, a subclass too, gets a generator of its own.
_DRAWS_NOTHING = {
    nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Linear, nn.Bilinear, nn.Identity, nn.Flatten, nn.Unflatten,
    nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Tanh, nn.Sigmoid, nn.Softmax,
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm, nn.Embedding, Recurrent,
    BasicBlock, Permuted, Polynomial, Perturbed,
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
        self._recorder = None if self._draws else Recorder(self._trainer)
        self.averages = bool(self._buffers)  # of the rows it has seen (BatchNorm): then a row's output is the pass's
        # For training mode where `read` is not the same: it draws nothing, moves no buffer, and reads the average of θ.
        self._apart = self.twin() if self._draws or self.averages or self.average is not None else None
        self._tape: tuple[int, Tensor] | None = None

    def run(self, x: Tensor, seed: int, onward: bool = False) -> Tensor:
        """One pass in training mode; random layers draw from `seed`.

        Buffers start from the committed ones or, `onward`, from where the last pass left them.
        """
        starts = [live.clone() for live in self._buffers] if onward else self._committed
        compute, self._replayed = (self._trainer, False) if self._recorder is None else self._recorder.pass_for(x)
        for live, start in zip(self._buffers, starts, strict=True):
            live.copy_(start)
        with _generator(seed) if self._draws else nullcontext():
            output: Tensor = compute(x)
        return output

    def kept(self, result: Tensor) -> Tensor:
        """A result of the last pass that the next one leaves alone."""
        return result.clone() if self._replayed else result

    def forward(self, x: Array, key: int, seed: int) -> Array:
        """The output for training rows; its graph is kept under `key` for `backward`."""
        self._tape = None  # a graph that is still there would be in the way of a recording
        output = self.run(self.tensor(x), seed)
        self._tape = (key, output)
        values: Array = to_array(self.kept(output.detach()))
        return values

    def twin(self, dtype: torch.dtype = torch.float32) -> "Twin":
        """A copy that runs at other parameters, or in another precision, and leaves this network alone."""
        return Twin(self._trainer, self._committed, self._draws, dtype)

    def copy(self) -> "Network":
        """Another network over a copy of the module: with its own θ, and without optimiser or average."""
        return Network(copy.deepcopy(self._trainer), OptimiserSpec())

    def follow(self, other: "Network") -> None:
        """Take over the parameters and committed buffers of the network that this one was copied from."""
        self.theta.copy_(other.theta)
        self.commit(other._committed)

    def commit(self, buffers: Sequence[Array | Tensor]) -> None:
        """These buffers are what the next pass begins with."""
        for committed, value in zip(self._committed, buffers, strict=False):
            committed.copy_(value if isinstance(value, Tensor) else self.tensor(value))

    def buffers_after_forward(self) -> list[Array]:
        """The buffers (BatchNorm's averages) as the last forward pass left them; commit them with `apply`."""
        return [to_array(buffers.clone()) for buffers in self._buffers]

    def backward(self, x: Array, key: int, seed: int, output_gradient: Array) -> Array:
        """∇θ of ⟨output, output_gradient⟩ at the forward pass `key`, as a flat vector."""
        if self._tape is None or self._tape[0] != key:
            self.forward(x, key, seed)
        assert self._tape is not None
        output, self._tape = self._tape[1], None
        if not self.parameters:
            return np.zeros(0, np.float32)
        parts = torch.autograd.grad(output, self.parameters, self.tensor(output_gradient), allow_unused=True)
        return self.joined(parts)

    def joined(self, parts: Sequence[Tensor | None]) -> Array:
        """The parameters' gradients as one vector; an unused parameter's are zeros."""
        if not self.parameters:
            return np.zeros(0, np.float32)
        used = [
            part if part is not None else torch.zeros_like(parameter)
            for part, parameter in zip(parts, self.parameters, strict=True)
        ]
        gradient: Array = to_array(self.kept(_flatten_dense_tensors(used)))  # type: ignore[no-untyped-call]
        return gradient

    def private_gradient(
        self, x: Array, seed: int, output_gradient: Array, clip: float, noise: Callable[[int], Array]
    ) -> Array:
        """The same, each record's part of it shrunk to norm `clip` and noise added to their sum (Abadi et al., 2016).

        A record's part is the gradient of its own loss, as if it were the whole batch. Runs inside a `Stream` that
        keeps what it draws.
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
        """(rows, parameters): the pass is run once to see what it draws, then row by row with the very same draws."""
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
        """θ ← θ − rate·(gradient + ∇r(θ)), by the role's optimiser; and the buffers are committed."""
        if not self.over:
            self.commit(buffers or ())
        super().apply(gradient, rate)

    def snapshot(self) -> list[Array]:
        """A copy of what evaluation and prediction read: parameters and buffers."""
        return [*super().snapshot(), *(buffer.cpu().numpy().copy() for buffer in self._committed)]

    def settle_on(self, snapshot: list[Array]) -> None:
        """Read this from now on; steps that still come are not taken."""
        super().settle_on(snapshot)
        self.commit(snapshot[1:])

    @torch.no_grad()
    def read(self, x: Array) -> Array:
        """The output in evaluation mode of the committed state, or of its average: moves no generator and no buffer."""
        starts = range(0, max(len(x), 1), READ_ROWS)
        parts = [self._reader(self.tensor(x[start : start + READ_ROWS])) for start in starts]
        output: Array = to_array(parts[0] if len(parts) == 1 else torch.cat(parts))
        return output

    def renewed(self, x: Array, seed: int, company: Array) -> Array:
        """The output in training mode for rows that are not learned from: keeps no graph and moves no buffer.

        Random layers draw from `seed`. Where the network keeps averages, a pass has at least as many rows as
        `company`, which fills it up: BatchNorm cannot normalise over one row, and over a few it gives noise.
        """
        if self._apart is None:
            return self.read(x)  # both modes are the same
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
        """sha256 of the parameters that `read` uses, and of the buffers."""
        parts = [self.judged, *self._reader.buffers()]
        return hashlib.sha256(b"".join(part.cpu().numpy().tobytes() for part in parts)).hexdigest()

    def save(self) -> dict[str, Any]:
        """Parameters, buffers and optimiser state."""
        return super().save() | {"buffers": [buffer.cpu().numpy().copy() for buffer in self._committed]}

    def load(self, saved: Mapping[str, Any]) -> None:
        """The reverse of `save`."""
        super().load(saved)
        for buffer, value in zip(self._committed, saved["buffers"], strict=True):
            buffer.copy_(to_tensor(value))
        self._tape = None


class Twin:
    """A network's copy in training mode that is moved to any parameters."""

    def __init__(self, module: nn.Module, committed: list[Tensor], draws: bool, dtype: torch.dtype) -> None:
        self._module = copy.deepcopy(module).to(dtype)
        parameters = [p for p in self._module.parameters() if p.requires_grad]
        self._theta = flatten(parameters, dtype)
        self._module.requires_grad_(False)
        self._buffers, self._committed = flatten_by_dtype(list(self._module.buffers())), committed
        self._draws = draws

    def move(self, theta: Tensor) -> None:
        """To these parameters."""
        self._theta.copy_(theta)

    @torch.no_grad()
    def run(self, x: Tensor, seed: int) -> Tensor:
        """One pass; random layers draw from `seed`, buffers start from the network's committed ones."""
        for live, committed in zip(self._buffers, self._committed, strict=True):
            live.copy_(committed)
        with _generator(seed) if self._draws else nullcontext():
            output: Tensor = self._module(x)
        return output


def flatten(parameters: list[nn.Parameter], dtype: torch.dtype = torch.float32) -> Tensor:
    """One vector that holds all parameters; they become views of it."""
    parts = [p.detach().reshape(-1).to(dtype) for p in parameters]
    theta = torch.cat(parts) if parts else torch.zeros(0, dtype=dtype)
    bind(parameters, theta)
    return theta


def flatten_by_dtype(buffers: list[Tensor]) -> list[Tensor]:
    """One vector for each dtype that holds all buffers of it; they become views: one copy then moves them all."""
    groups: dict[torch.dtype, list[Tensor]] = {}
    for buffer in buffers:
        groups.setdefault(buffer.dtype, []).append(buffer)
    vectors = [torch.cat([buffer.reshape(-1) for buffer in group]) for group in groups.values()]
    for group, vector in zip(groups.values(), vectors, strict=True):
        bind(group, vector)
    return vectors


def bind(parameters: Sequence[Tensor], theta: Tensor) -> None:
    """Make the parameters views of θ, one after the other."""
    start = 0
    for parameter in parameters:
        parameter.data = theta[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()


def _may_draw(part: nn.Module) -> bool:
    if type(part) in (nn.RNN, nn.GRU, nn.LSTM):
        return bool(part.dropout)  # between its layers
    return type(part) not in _DRAWS_NOTHING


def draw_in_turn(lock: AbstractContextManager[Any]) -> None:
    """From now on several threads may compute. Torch has one generator for all of them; the first lock stays."""
    global _turn  # noqa: PLW0603
    if isinstance(_turn, nullcontext):
        _turn = lock


@contextmanager
def _generator(seed: int) -> Iterator[None]:
    """Torch's global generator seeded for one forward pass, then put back; other threads wait."""
    with _turn:
        before = torch.get_rng_state()
        torch.manual_seed(seed)
        try:
            yield
        finally:
            torch.set_rng_state(before)
