"""From a model's name to a torch module.

    linear          one layer
    dense           one layer and ReLU
    mlp:64,32       hidden layers of these widths, then a layer to the output
    cnn, lstm       (party) for rows with two dimensions: pieces of images, and series; see shaped.py
    vgg:32,64, resnet:16,32    (party) deeper networks for pieces of images; see towers.py
    transformer:2000x32    (party) a small transformer encoder for texts; see transformer.py
    polynomial:2    (party) Σ x^i W^i up to this degree; see polynomial.py
    resnet18-stem   (party) and resnet18:64x32x32 (server): ResNet-18, cut after its first convolution; see resnet.py
    none            (server) the aggregate is the output
    package.module:Class    your own `nn.Module`, called with (inputs, outputs), or with (shape, outputs) if its
                    first parameter is called `shape`: the shape of one row, e.g. (14, 14)

From Python a model may also be a module (copied for each party), or a callable with the same parameters that makes one.
"""

import copy
import importlib
import inspect
import itertools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import nn

from colonnade.models import resnet, shaped, towers, transformer
from colonnade.models.blackbox import BlackBox
from colonnade.models.continued import Continued
from colonnade.models.on_device import seed_generators
from colonnade.models.polynomial import Polynomial
from colonnade.protocol.errors import ModelError

__all__ = ["Factory", "is_dotted", "nearest_model", "party_model", "party_module", "refuse_unknown", "server_module"]

MAX_DEGREE = 16  # of a polynomial network
Shape = tuple[int, ...]  # of one row
Factory = str | nn.Module | Continued | Callable[[Any, int], Any]  # called with inputs or shape, and outputs

_KNOWN = (
    "linear, dense, mlp:WIDTH[,WIDTH...], polynomial:DEGREE, cnn, lstm, vgg:MAPS[,MAPS...], resnet:MAPS[,MAPS...], "
    "transformer[:WORDS[xWIDTH]] or resnet18-stem (a party's), "
    "resnet18:64xHEIGHTxWIDTH (the server's) or package.module:Class"
)
_ALIKE = {"linear": "polynomial:1"}  # another name for the same functions of the columns
_SHAPED: dict[str, Callable[[Shape, int], nn.Module]] = {"cnn": shaped.cnn, "lstm": shaped.lstm}
_DIMENSIONS = {"cnn": (2, 3), "lstm": (2,)}
_WANTS = {
    "cnn": "a piece of an image (height, width) or (channels, height, width)",
    "lstm": "a series (time, channels), or the rows of a piece of an image",
}


def party_module(model: Factory, shape: Shape, outputs: int, seed: int, who: str) -> nn.Module:
    """Build a party's network from its columns to its embedding; raises ModelError if the width does not fit.

    The input is always (rows, columns). A network that needs the shape of a row reshapes its input.
    """
    what = f"model.party of {who}"
    named = model.model if isinstance(model, Continued) else model
    if isinstance(named, str) and named in _SHAPED and len(shape) not in _DIMENSIONS[named]:
        given = f"a plain list of {prod(shape)} columns" if len(shape) == 1 else f"of shape {shape}"
        raise ModelError(
            f"{what} = {named!r}: a row must be {_WANTS[named]}, but it is {given}; "
            "images keep their pieces with data.split = 'rows' or 'quarters', for tables use 'mlp:64'"
        )
    module = _seeded(model, shape, outputs, seed, what)
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"{what}: {model!r} is a black box without gradients; use a zeroth-order method ('cascaded', 'zoo', "
            "'syn-zoo'), or a torch.nn.Module"
        )
    return module


def party_model(model: Factory, shape: Shape, outputs: int, seed: int, who: str) -> nn.Module | BlackBox:
    """Build a party's model for methods that also accept a black box."""
    named = model.model if isinstance(model, Continued) else model
    if isinstance(named, str) and named in _SHAPED:
        return party_module(model, shape, outputs, seed, who)
    return _seeded(model, shape, outputs, seed, f"model.party of {who}")


def refuse_unknown(model: str, what: str) -> None:
    """Raise ModelError for a name that is no party's model; does not import a user's own class."""
    if ":" not in model and model not in ("linear", "dense", transformer.NAME, resnet.STEM, *towers.KINDS, *_SHAPED):
        raise _unknown(model, what)


def nearest_model(model: str, kinds: Sequence[str], otherwise: str) -> str:
    """Return the model itself if its kind is one of these; else another name for the same functions, or `otherwise`."""
    known = (name for name in (model, _ALIKE.get(model, "")) if _kind(name) in kinds)
    return next(known, otherwise)


def server_module(model: Factory, inputs: int, outputs: int, seed: int) -> nn.Module:
    """Build the server's network from the aggregate to the output."""
    named = model.model if isinstance(model, Continued) else model
    if named == "none":
        if inputs != outputs:
            raise ModelError(
                f"model.server = 'none': the aggregate is {inputs} wide but the task has {outputs} outputs; "
                f"set model.embedding = {outputs} with aggregate 'sum', 'mean' or 'max', or choose a server model"
            )
        return nn.Identity()
    if isinstance(named, str) and (named in _SHAPED or _kind(named) in (resnet.STEM, transformer.NAME, *towers.KINDS)):
        raise ModelError(
            f"model.server = {named!r}: is for parties, because an aggregate has no shape; use e.g. 'mlp:64'"
        )
    module = _seeded(model, (inputs,), outputs, seed, "model.server")
    if not isinstance(module, nn.Module):
        raise ModelError(f"model.server: {model!r} is a black box; the server needs a torch.nn.Module")
    return module


def _seeded(model: Factory, shape: Shape, outputs: int, seed: int, what: str) -> nn.Module | BlackBox:
    with torch.random.fork_rng(devices=[]):
        seed_generators(seed)
        module = _build(model, shape, outputs, what)
        if isinstance(module, nn.Module):
            _check_width(module, prod(shape), outputs, what)
    return module


def _build(model: Factory, shape: Shape, outputs: int, what: str) -> nn.Module | BlackBox:
    if isinstance(model, Continued):
        made = _build(model.model, shape, outputs, what)
        if isinstance(made, nn.Module):
            _check_width(made, prod(shape), outputs, what)  # gives lazy layers their shape
        return model.load(made, what)
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    if isinstance(model, str):
        if is_dotted(model):
            model = _import(model, what)
        else:
            return _named(model, shape, outputs, what)
    name, first = ("shape", shape) if _takes_shape(model) else ("inputs", prod(shape))
    try:
        module = model(first, outputs)
    except TypeError as error:
        raise ModelError(f"{what}: could not be built from ({name}={first}, outputs={outputs}): {error}") from None
    if not isinstance(module, nn.Module | BlackBox):
        raise ModelError(
            f"{what}: {model!r} made a {type(module).__name__}, not a torch.nn.Module or a black box "
            "(`initial(generator)` and a call with (theta, rows))"
        )
    return module


def is_dotted(model: str) -> bool:
    """Whether a model's name is that of a class to import, so that building it runs that module's code."""
    return ":" in model and _kind(model) not in (
        "mlp",
        "polynomial",
        transformer.NAME,
        resnet.STEM,
        resnet.TOP,
        *towers.KINDS,
    )


def _takes_shape(model: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(model).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False
    return next(iter(parameters), "") == "shape"


def _named(name: str, shape: Shape, outputs: int, what: str) -> nn.Module:
    if name in _SHAPED:
        return _SHAPED[name](shape, outputs)
    inputs = prod(shape)
    if name == "linear":
        return nn.Linear(inputs, outputs)
    if name == "dense":
        return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU())
    if name.startswith("mlp:"):
        return _mlp([inputs, *_widths(name, what), outputs])
    if name.startswith("polynomial:"):
        return Polynomial(inputs, outputs, _degree(name, what))
    if _kind(name) == transformer.NAME:
        return transformer.transformer(name, shape, outputs, what)
    if _kind(name) in towers.KINDS:
        return towers.tower(name, shape, outputs, what)
    if _kind(name) == resnet.STEM:
        return resnet.stem(name, shape, outputs, what)
    if _kind(name) == resnet.TOP:
        return resnet.top(name, inputs, outputs, what)
    raise _unknown(name, what)


def _unknown(name: str, what: str) -> ModelError:
    return ModelError(f"{what} = {name!r}: unknown model; use {_KNOWN}")


def _kind(name: str) -> str:
    return name.partition(":")[0]


def _widths(name: str, what: str) -> list[int]:
    widths = name.removeprefix("mlp:").split(",")
    if not all(width.strip().isdecimal() and int(width) > 0 for width in widths):
        raise ModelError(f"{what} = {name!r}: widths must be positive whole numbers, as in 'mlp:64,32'")
    return [int(width) for width in widths]


def _degree(name: str, what: str) -> int:
    degree = name.removeprefix("polynomial:").strip()
    if not degree.isdecimal() or not 1 <= int(degree) <= MAX_DEGREE:
        raise ModelError(f"{what} = {name!r}: the degree must be 1 to {MAX_DEGREE}, as in 'polynomial:2'")
    return int(degree)


def _mlp(widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _import(path: str, what: str) -> Callable[[Any, int], Any]:
    name, _, attribute = path.partition(":")
    try:
        found: Callable[[Any, int], Any] = getattr(importlib.import_module(name), attribute)
    except (ImportError, ValueError) as error:
        raise ModelError(f"{what} = {path!r}: cannot import {name!r}: {error}; put its folder on PYTHONPATH") from None
    except AttributeError:
        raise ModelError(f"{what} = {path!r}: module {name!r} has no {attribute!r}") from None
    return found


def _check_width(module: nn.Module, inputs: int, outputs: int, what: str) -> None:
    """Pass two rows through the module; this also initialises lazy layers."""
    training = module.training
    try:
        with torch.no_grad():
            result = module.eval()(torch.zeros(2, inputs))
    except (RuntimeError, TypeError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise ModelError(f"{what}: fails on a batch of shape (2, {inputs}): {first}") from None
    finally:
        module.train(training)
    if not isinstance(result, torch.Tensor) or tuple(result.shape) != (2, outputs):
        shape = tuple(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
        raise ModelError(f"{what}: gives {shape} for a batch of 2 rows, should be (2, {outputs}); check its last layer")
