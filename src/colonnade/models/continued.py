"""Networks that start with the weights of an earlier run, placed by the names of their inputs.

A party's network takes its columns, the server's takes the parties' embeddings. If the inputs differ from those of the
earlier run, the first layer is rearranged:

    an input that stays      keeps its weights
    a new input              has zero weights, so the network first computes what it computed before
    an input that is gone    takes its weights with it

Only a first layer that is linear in its inputs can be rearranged. Every other network needs the same inputs in the same
order.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from colonnade.models.blackbox import BlackBox
from colonnade.models.polynomial import Polynomial
from colonnade.protocol.errors import ModelError
from colonnade.protocol.messages import Array

__all__ = ["FALLBACK", "THETA", "Continued", "Wrapping", "tensors_of"]

FALLBACK = "party_dropout"  # the blocks that stand for absent parties; see absent.py
THETA = "theta"  # the parameters of a black box


@runtime_checkable
class Wrapping(Protocol):
    """A module around a network: it names its own state as the network alone does."""

    names_inside: tuple[str, ...]  # in the order of its `state_dict`


def tensors_of(module: nn.Module) -> dict[str, Array]:
    """Return copies of a network's parameters and buffers, under the names that it has without a wrapper."""
    state = module.state_dict()
    names = module.names_inside if isinstance(module, Wrapping) else tuple(state)
    return {name: value.detach().cpu().numpy().copy() for name, value in zip(names, state.values(), strict=True)}


@dataclass(frozen=True, slots=True, eq=False)
class Continued:
    """A model of the config that starts with trained weights. It stands wherever the model itself may stand."""

    model: Any  # as in the config: a name, a module or a callable
    tensors: dict[str, Array]
    inputs: Array  # int64 (inputs now,): the place of each among the earlier inputs, -1 for a new one
    before: int  # number of earlier inputs
    parties: tuple[str, ...] = ()  # of the earlier run; for a server
    blocks: Array | None = None  # as `inputs`, for all embeddings side by side; for a server

    @property
    def unchanged(self) -> bool:
        """Whether the inputs are the earlier ones in the same order."""
        return len(self.inputs) == self.before and bool((self.inputs == np.arange(self.before)).all())

    def load(self, made: nn.Module | BlackBox, what: str) -> nn.Module | BlackBox:
        """Give the weights to a new network of this model; raises ModelError if they do not fit."""
        if not isinstance(made, nn.Module):
            return self._black_box(made, what)
        wanted = made.state_dict()
        given = {name: array for name, array in self.tensors.items() if name != FALLBACK}
        if not self.unchanged:
            given |= self._rearranged(made, what)
        shapes = {name: tuple(array.shape) for name, array in given.items()}
        if shapes != {name: tuple(value.shape) for name, value in wanted.items()}:
            raise ModelError(f"{what}: {_difference(shapes, wanted)}; --continue needs a network of the same shape")
        made.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in given.items()})
        return made

    def vector(self, columns: int, what: str) -> Array:
        """Return the weights of a linear method for this many columns: float64, without the intercept."""
        if set(self.tensors) - {"bias"} != {"weight"} or self.tensors["weight"].shape != (self.before,):
            raise ModelError(f"{what}: the earlier run had a network, and this method has one weight for each column")
        weights: Array = _placed(self.tensors["weight"].astype(np.float64), self.inputs)
        if len(weights) != columns:
            raise ModelError(f"{what}: {len(weights)} weights for {columns} columns")
        return weights

    def _rearranged(self, made: nn.Module, what: str) -> dict[str, Array]:
        first = _first_layer(made)
        if first is None:
            raise ModelError(
                f"{what}: its inputs differ from those of the earlier run, and only the first layer of 'linear', "
                f"'dense', 'mlp:…' and 'polynomial:…' can be rearranged; keep the same inputs in the same order"
            )
        name, layer = first
        old = self.tensors.get(name)
        if old is None:
            raise ModelError(f"{what}: the earlier run has no {name!r}; --continue needs a network of the same shape")
        if isinstance(layer, Polynomial):
            return {name: _of_powers(old, self.inputs, self.before, layer.degree, what)}
        return {name: np.ascontiguousarray(_placed(old.T, self.inputs).T)}

    def _black_box(self, made: BlackBox, what: str) -> BlackBox:
        if not self.unchanged or set(self.tensors) != {THETA}:
            raise ModelError(f"{what}: is a black box: --continue needs the same columns in the same order, and θ")
        return _Started(made, self.tensors[THETA], what)

    def fallback(self, own: Tensor) -> Tensor:
        """Return the blocks that stand for absent parties: those of the earlier run, as far as the parties stay."""
        old = self.tensors.get(FALLBACK)
        if old is None or self.blocks is None:
            return own
        return torch.from_numpy(_placed(old, self.blocks)).to(own)


class _Started:
    """A black box with given initial parameters."""

    def __init__(self, function: BlackBox, theta: Array, what: str) -> None:
        self._function, self._theta, self._what = function, theta, what

    def initial(self, generator: np.random.Generator) -> Array:
        own = np.asarray(self._function.initial(generator))
        if own.shape != self._theta.shape:
            cause = f"{own.shape} parameters, and {self._theta.shape} in the earlier run"
            raise ModelError(f"{self._what}: {cause}; --continue needs a model of the same shape")
        return self._theta.copy()

    def __call__(self, theta: Array, rows: Array) -> Array:
        return self._function(theta, rows)


def _first_layer(module: nn.Module) -> tuple[str, nn.Linear | Polynomial] | None:
    """Return the weight's name and the layer, if the first layer is linear in the inputs."""
    if type(module) in (nn.Linear, Polynomial):
        return "weight", module  # type: ignore[return-value]
    if type(module) is nn.Sequential and len(module) and type(module[0]) is nn.Linear:
        return "0.weight", module[0]
    return None


def _placed(old: Array, inputs: Array) -> Array:
    """Return the rows of `old` at these places, and zeros for the place -1."""
    new = np.zeros((len(inputs), *old.shape[1:]), old.dtype)
    new[inputs >= 0] = old[inputs[inputs >= 0]]
    return new


def _of_powers(old: Array, inputs: Array, before: int, degree: int, what: str) -> Array:
    """Rearrange W^1 over W^2 over …; each has a row for every column, then one for the bias."""
    if len(old) != degree * (before + 1):
        raise ModelError(f"{what}: the earlier run has a polynomial of another degree; set the same model.party")
    places = np.concatenate([inputs, [before]])
    return np.concatenate([_placed(part, places) for part in np.split(old, degree)])


def _difference(given: dict[str, tuple[int, ...]], wanted: dict[str, Tensor]) -> str:
    for name, value in wanted.items():
        if given.get(name) != tuple(value.shape):
            there = f"{list(given[name])}" if name in given else "missing"
            return f"{name!r} is {list(value.shape)} here, and {there} in the earlier run"
    return f"the earlier run also has {sorted(given.keys() - wanted.keys())[0]!r}"
