"""Trained networks as files that need no Colonnade: NAME.safetensors with the weights, NAME.json with their meaning.

The JSON lists the layers in order, the input columns with their encoding and scaling and, for the server, how the
parties' embeddings become its input. docs/next-month.md has a reader in plain torch.

All files of one export are written beside their names first, and renamed when all of them are complete.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from torch import nn

from colonnade import __version__
from colonnade.config.continuing import ServerPart, TrainedMember
from colonnade.data import Fitted
from colonnade.drivers.files import DISK, Disk, write_beside
from colonnade.models.build import is_dotted, party_module, server_module
from colonnade.models.continued import FALLBACK, THETA
from colonnade.models.polynomial import Polynomial
from colonnade.protocol.errors import CheckpointError, ModelError
from colonnade.protocol.messages import Array
from colonnade.protocol.strict_json import to_json

__all__ = ["export_members", "layers_of"]

FORMAT = 1
Layer = dict[str, Any]


def export_members(
    members: Iterable[TrainedMember], run: str, folder: Path, onnx: bool = False, disk: Disk = DISK
) -> list[Path]:
    """Write the files of these members; returns their paths. Raises ModelError for a network that has no such form."""
    files: dict[str, bytes] = {}
    for member in members:
        files |= _files_of(member, run, onnx)
    return _write_all(folder, files, disk)


def _files_of(member: TrainedMember, run: str, onnx: bool) -> dict[str, bytes]:
    tensors = _plain_tensors(member)
    layers = layers_of(member)
    weights = safetensors.numpy.save(tensors, {"format": "pt"})
    about = _about(member, run, layers, hashlib.sha256(weights).hexdigest())
    files = {f"{member.name}.safetensors": weights, f"{member.name}.json": to_json(about, indent=2).encode() + b"\n"}
    if onnx:
        from colonnade.results.export_onnx import onnx_of  # noqa: PLC0415 - an extra

        files[f"{member.name}.onnx"] = onnx_of(member, tensors, layers)
    return files


def _plain_tensors(member: TrainedMember) -> dict[str, Array]:
    if THETA in member.tensors:
        raise ModelError(f"{member.name}: is a black box, whose parameters only its own code can read: no export")
    tensors = {name: np.ascontiguousarray(array) for name, array in member.tensors.items()}
    if _is_linear(member):
        tensors["weight"] = tensors["weight"][None]  # (1, columns), as of a layer
    return tensors


def _is_linear(member: TrainedMember) -> bool:
    """Whether the method has one weight for each column, and no network."""
    return member.server is None and "weight" in member.tensors and member.tensors["weight"].ndim == 1


def layers_of(member: TrainedMember) -> list[Layer] | None:
    """Return the layers of a network in order; None if it is not a sequence of known layers."""
    if _is_linear(member):
        return [_linear("", "bias" in member.tensors)]
    if member.server is not None and not member.tensors:
        return []  # the sum of the parties' outputs is the output
    if member.model is None or is_dotted(member.model):
        return None
    if member.server is not None:
        module = server_module(member.model, member.shape[0], member.width, 0)
    else:
        module = party_module(member.model, member.shape, member.width, 0, member.name)
    return _described(module)


def _described(module: nn.Module) -> list[Layer] | None:
    parts = module.named_children() if type(module) is nn.Sequential else [("", module)]
    layers = [_layer(part, f"{name}." if name else "") for name, part in parts]
    return None if any(layer is None for layer in layers) else [layer for layer in layers if layer]


def _layer(part: nn.Module, prefix: str) -> Layer | None:
    """Return one layer; {} for a layer that does nothing, None for an unknown one."""
    match part:
        case nn.Linear():
            return _linear(prefix, part.bias is not None)
        case nn.ReLU():
            return {"kind": "relu"}
        case nn.Identity():
            return {}
        case Polynomial():
            return {"kind": "polynomial", "degree": part.degree, "weight": f"{prefix}weight"}
        case nn.Unflatten():
            return {"kind": "reshape", "shape": list(part.unflattened_size)}
        case nn.Conv2d():
            sizes = {"weight": f"{prefix}weight", "bias": f"{prefix}bias", "padding": part.padding}
            return {"kind": "conv2d", **sizes} if part.stride == (1, 1) and part.groups == 1 else None
        case nn.MaxPool2d():
            return {"kind": "maxpool2d", "size": list(part.kernel_size)}  # type: ignore[arg-type]
        case nn.Flatten():
            return {"kind": "flatten"}
    return None


def _linear(prefix: str, biased: bool) -> Layer:
    return {"kind": "linear", "weight": f"{prefix}weight", "bias": f"{prefix}bias" if biased else None}


def _about(member: TrainedMember, run: str, layers: list[Layer] | None, digest: str) -> dict[str, Any]:
    about = {
        "format": FORMAT,
        "role": "party" if member.server is None else "server",
        "name": member.name,
        "method": member.method,
        "run": run,
        "release": __version__,
        "weights_sha256": digest,
        "model": member.model,
        "layers": layers,
        "inputs": list(member.shape),
        "outputs": 1 if _is_linear(member) else member.width,
    }
    if member.server is not None:
        return about | _of_server(member.server, FALLBACK in member.tensors, _sums(member))
    perturbed = {"perturbed": member.accounted}  # its uploads are clipped and noisy, these weights are not
    return about | perturbed | (_of_columns(member.fitted) if member.fitted is not None else {})


def _sums(member: TrainedMember) -> bool:
    return not member.tensors and member.model != "none"


def _of_server(part: ServerPart, fallback: bool, sums: bool) -> dict[str, Any]:
    return {
        "parties": list(part.parties),
        "widths": [1] * len(part.widths) if sums else list(part.widths),
        "aggregate": "sum" if sums else part.aggregate,
        "task": part.task,
        "classes": list(part.classes),
        "target": {"mean": part.target_scale[0], "spread": part.target_scale[1]},
        "party_dropout": FALLBACK if fallback else None,
    }


def _of_columns(fitted: Fitted) -> dict[str, Any]:
    encoder = fitted.encoder
    columns = []
    for place, name in enumerate(fitted.names):
        held, first = fitted.categories[place], int(encoder.places[place])
        about: dict[str, Any] = {"name": name}
        if held is None:
            about |= {"shift": float(fitted.shift[first]), "gain": float(fitted.gain[first])}
            about["missing"] = None if fitted.means is None else float(fitted.means[place])
        elif fitted.lengths and fitted.lengths[place]:
            about |= {"vocabulary": list(held), "words": fitted.lengths[place]}
        else:
            about["categories"] = list(held)
        columns.append(about)
    return {"columns": columns, "cut": fitted.limit if isfinite(fitted.limit) else None}


def _write_all(folder: Path, files: Mapping[str, bytes], disk: Disk) -> list[Path]:
    """Write all files beside their names, then rename them; a full disk leaves none of them."""
    paths = [folder / name for name in files]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        made = [write_beside(path, [content], 0o600, disk) for path, content in zip(paths, files.values(), strict=True)]
        for temporary, path in zip(made, paths, strict=True):
            disk.rename(temporary, path)
        disk.sync_folder(folder)
    except OSError as error:
        _remove(paths, disk)
        raise CheckpointError(
            f"{folder}: the export cannot be written: {error.strerror}; no new file is left"
        ) from None
    return paths


def _remove(paths: Sequence[Path], disk: Disk) -> None:
    for path in paths:
        disk.unlink(path.with_name(f".{path.name}.tmp"))
