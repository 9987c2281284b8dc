"""Perturbed embeddings: VAFL Sec. 4.1, Eq. (10), (11), with the clipping that any guarantee needs.

    symbol          here
    u_l, σ_l        the layers of a `Perturbed` module, each up to its linear part; what follows it
    Z_l, c_l        uniform on ±√3·`inner`, in inner layers; c_l may differ from layer to layer
    Z_L, c          Gaussian of deviation `noise`, before the last activation, on rows that were shrunk to norm `clip`

Everything after the Gaussian noise depends only on the perturbed values, since σ_L has no parameters. Noise comes from
the stream that `drawing` opens. Without a stream, a perturbed network refuses to run, in training and in evaluation.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import sqrt
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from colonnade.privacy.secret import normal, words
from colonnade.protocol.errors import LocalProtocolError, ModelError
from colonnade.protocol.messages import Array

__all__ = ["Noise", "Perturbed", "PerturbedFunction", "Replay", "Stream", "drawing", "keeping",
           "output_noise", "random_neurons"]  # fmt: skip

# In float32, rounding may bring the norm of a shrunk row above C, but never by this much.
MARGIN = 1e-6
_LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Noise(Protocol):
    """The source of a perturbed network's noise."""

    def normal(self, like: Tensor) -> Tensor:
        """Independent standard normals of this shape."""

    def uniform(self, like: Tensor) -> Tensor:
        """Independent and uniform on ±1, of this shape."""


class Stream:
    """Noise from one secret seed; each call draws new noise. A caller can keep the draws, to repeat a pass."""

    def __init__(self, seed: bytes, keep: bool = False) -> None:
        self._seed, self._calls = seed, 0
        self.drawn: list[Tensor] | None = [] if keep else None

    def numbers(self, count: int) -> Array:
        """Standard normals, as an array."""
        return normal(self._next(), count)

    def normal(self, like: Tensor) -> Tensor:
        return self._as(like, self.numbers(like.numel()))

    def uniform(self, like: Tensor) -> Tensor:
        drawn = words(self._next(), like.numel()).astype(np.float64)
        return self._as(like, ((drawn + 0.5) * 2.0**-31 - 1.0).astype(np.float32))

    def _next(self) -> bytes:
        self._calls += 1
        return hashlib.blake2b(self._calls.to_bytes(8, "little"), digest_size=32, key=self._seed).digest()

    def _as(self, like: Tensor, values: Array) -> Tensor:
        tensor = torch.from_numpy(values).reshape(like.shape).to(like)
        if self.drawn is not None:
            self.drawn.append(tensor)
        return tensor


class Replay:
    """Repeats the draws of a pass, row by row: for gradients of single records."""

    def __init__(self, drawn: Sequence[Tensor]) -> None:
        self._left = list(drawn)

    def normal(self, like: Tensor) -> Tensor:
        """The next recorded draw."""
        return self._left.pop(0).reshape(like.shape)

    uniform = normal


_NOISE: ContextVar[Noise | None] = ContextVar("noise", default=None)  # jobs run on several threads


@contextmanager
def drawing(noise: Noise) -> Iterator[None]:
    """Inside this context, perturbed networks draw from `noise`."""
    token = _NOISE.set(noise)
    try:
        yield
    finally:
        _NOISE.reset(token)


def keeping() -> list[Tensor]:
    """The list to which the open stream appends its draws from now on."""
    noise = _noise()
    if not isinstance(noise, Stream) or noise.drawn is None:
        raise LocalProtocolError(
            "gradients of single records were asked for outside of `drawn`, where no noise is kept"
        )
    noise.drawn.clear()
    return noise.drawn


def _noise() -> Noise:
    noise = _NOISE.get()
    if noise is None:
        raise LocalProtocolError("a perturbed network was used where its noise is neither drawn nor accounted for")
    return noise


class Perturbed(nn.Module):
    """u_l = σ_l(w_l u_{l−1} + b_l + Z_l), Eq. (10); the last layer's rows are shrunk to norm C before Z_L is added."""

    def __init__(
        self, stages: Sequence[nn.Module], tail: nn.Module, clip: float, noise: float, inner: Sequence[float] = ()
    ) -> None:
        super().__init__()
        self.stages, self.tail = nn.ModuleList(stages), tail
        self.clip, self.noise, self.inner = clip, noise, tuple(inner)  # `inner`: for each layer before the last
        self.names_inside: tuple[str, ...] = ()  # of the state, as the module alone names it

    def forward(self, x: Tensor) -> Tensor:
        """(rows, columns) → (rows, outputs), perturbed."""
        source = _noise()
        *inner, last = self.stages
        for stage, deviation in zip(inner, self.inner, strict=True):
            x = stage(x)
            if deviation:
                x = x + sqrt(3.0) * deviation * source.uniform(x)  # Eq. (11b): deviation c_l
        x = shrink(last(x), self.clip)
        output: Tensor = self.tail(x + self.noise * source.normal(x))  # Eq. (11a)
        return output


def shrink(rows: Tensor, clip: float) -> Tensor:
    """Scale rows down to norm `clip`; shorter rows stay."""
    norms = torch.linalg.vector_norm(rows.flatten(1), dim=1, keepdim=True)
    factors = ((1 - MARGIN) * clip / norms.clamp_min(1e-12)).clamp_max(1.0)
    shrunk: Tensor = rows * factors.reshape(-1, *[1] * (rows.ndim - 1))
    return shrunk


def output_noise(module: nn.Module, clip: float, noise: float) -> Perturbed:
    """Shrink the output of any module to `clip`, and add noise to it."""
    return _named_as(module, Perturbed([module], nn.Identity(), clip, noise))


def random_neurons(module: nn.Module, clip: float, noise: float, inner: float | Sequence[float], who: str) -> Perturbed:
    """A random neuron at every layer of a module that consists of layers; raises for other modules.

    `inner` is one deviation for all layers before the last one, or one for each of them.
    """
    layers = _layers(module)
    places = [place for place, layer in enumerate(layers) if isinstance(layer, _LINEAR)]
    if not places:
        raise ModelError(
            f"model.party of {who}: {type(module).__name__} is not made of layers (nn.Sequential of Linear or Conv and "
            "activations), so privacy.mechanism = 'neurons' cannot add noise inside it; use 'output'"
        )
    starts = [0, *(place + 1 for place in places)]
    stages = [nn.Sequential(*layers[start : place + 1]) for start, place in zip(starts, places, strict=False)]
    tail = nn.Sequential(*layers[places[-1] + 1 :])
    if any(True for _ in (*tail.parameters(), *tail.buffers())):
        raise ModelError(
            f"model.party of {who}: the layers after its last linear layer have their own parameters or "
            "averages, which the noise would not cover; end with a plain activation, or use privacy.mechanism = "
            "'output'"
        )
    return _named_as(module, Perturbed(stages, tail, clip, noise, _by_layer(inner, len(stages) - 1, who)))


def _by_layer(inner: float | Sequence[float], layers: int, who: str) -> Sequence[float]:
    if not isinstance(inner, Sequence):
        return (inner,) * layers
    if len(inner) != layers:
        raise ModelError(
            f"model.party of {who}: has {layers} inner layers (Linear or Conv before the last one), but privacy.inner "
            f"lists {len(inner)} deviations: give one for each, or one number for all"
        )
    return inner


def _named_as(module: nn.Module, perturbed: Perturbed) -> Perturbed:
    perturbed.names_inside = tuple(module.state_dict())
    return perturbed


def _layers(module: nn.Module) -> list[nn.Module]:
    """The layers in order; only a plain Sequential defines this order."""
    if type(module) is nn.Sequential:
        return [layer for part in module for layer in _layers(part)]
    return [module]


class PerturbedFunction:
    """A black box whose output is shrunk and perturbed."""

    def __init__(self, function: Any, clip: float, noise: float) -> None:
        self._function, self._clip, self._noise = function, clip, noise

    def initial(self, generator: np.random.Generator) -> Array:
        values: Array = self._function.initial(generator)
        return values

    def __call__(self, theta: Array, rows: Array) -> Array:
        """Returns an output that is not a table of numbers unchanged, so that the caller refuses it."""
        values = self._function(theta, rows)
        if not isinstance(values, np.ndarray) or values.ndim != 2:
            return values  # type: ignore[no-any-return]
        shrunk = shrink(torch.from_numpy(values.astype(np.float32)), self._clip)
        noisy: Array = (shrunk + self._noise * _noise().normal(shrunk)).numpy()
        return noisy
