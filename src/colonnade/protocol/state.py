"""State to disk and back: arrays as safetensors, the rest as JSON that keeps inf and NaN.

A state is a tree of dicts, lists, tuples, None, bool, int, float, str, bytes, numpy arrays and numpy
generators. The whole tree goes into ONE safetensors file, so that one rename replaces it.
"""

import json
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from colonnade.protocol.errors import CheckpointError
from colonnade.protocol.messages import Array

__all__ = ["pack", "unpack"]

_TREE = "tree"


def pack(state: Any) -> bytes:
    """The file's content."""
    arrays: dict[str, Array] = {}
    tree = _to_json(state, arrays)
    return safetensors.numpy.save(arrays, metadata={_TREE: json.dumps(tree)})


def unpack(data: bytes) -> Any:
    """What `pack` was given."""
    try:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        arrays = safetensors.numpy.load(data)
        return _from_json(json.loads(header["__metadata__"][_TREE]), arrays)
    except (KeyError, ValueError, TypeError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"not a Colonnade checkpoint, or a damaged one: {error}") from None


def _to_json(value: Any, arrays: dict[str, Array]) -> Any:
    """Plain JSON; whatever JSON has no word for becomes a one-key object."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list():
            return [_to_json(item, arrays) for item in value]
        case tuple():
            return {"tuple": [_to_json(item, arrays) for item in value]}
        case dict():
            pairs = [[_to_json(key, arrays), _to_json(item, arrays)] for key, item in value.items()]
            return {"dict": pairs}
        case bytes():
            return {"bytes": value.hex()}
        case np.ndarray():
            name = str(len(arrays))
            arrays[name] = np.ascontiguousarray(value)
            return {"array": name}
        case np.generic():
            return _to_json(value.item(), arrays)
        case np.random.Generator():
            return {"generator": _to_json(value.bit_generator.state, arrays)}
    raise CheckpointError(f"a state cannot hold a {type(value).__name__}")


def _from_json(value: Any, arrays: dict[str, Array]) -> Any:
    if isinstance(value, list):
        return [_from_json(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "tuple":
            return tuple(_from_json(item, arrays) for item in content)
        case "dict":
            return {_from_json(key, arrays): _from_json(item, arrays) for key, item in content}
        case "bytes":
            return bytes.fromhex(content)
        case "array":
            return arrays[content]
        case "generator":
            generator = np.random.Generator(np.random.PCG64())
            generator.bit_generator.state = _from_json(content, arrays)
            return generator
    raise ValueError(f"unknown kind {kind!r}")
