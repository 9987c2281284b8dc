"""State to disk and back: arrays as safetensors, the rest as JSON that keeps inf and NaN.

A state is a tree of dicts, lists, tuples, None, bool, int, float, str, bytes, numpy arrays and numpy generators. The
whole tree goes into ONE safetensors file, so one rename replaces it.

The file's metadata begin with a checksum of the whole file, computed with zeros in its own place. xxh3 is chosen for
speed (28 GB/s on the machine of docs/measurements.md; SHA-256 has 1.7). It finds damage by disks and people. It is no
protection against an attacker with write access, who could replace any checksum.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors
import safetensors.numpy
from xxhash import xxh3_128

from colonnade.protocol.errors import CheckpointError, DamagedFile
from colonnade.protocol.messages import Array, Elsewhere

if TYPE_CHECKING:
    from mmap import mmap

__all__ = ["chunks", "pack", "unpack", "views"]

_TREE, _CHECKSUM = "tree", "xxh3_128"
_ZEROS = "0" * 32
_BEGIN = json.dumps({"__metadata__": {_CHECKSUM: ""}}).encode()[:-3]  # of the header, up to the checksum
_AT = 8 + len(_BEGIN)
_PLAIN = frozenset({type(None), bool, int, float, str})  # what JSON has, too
_PIECE = 2**24  # bytes of a mapped file that are checked at once
_DTYPES = {
    "<f8": "F64", "<f4": "F32", "<f2": "F16", "<i8": "I64", "<i4": "I32", "<u8": "U64", "<u4": "U32", "|u1": "U8",
    "|b1": "BOOL",
}  # fmt: skip


def chunks(state: Any) -> Iterator[bytes | memoryview]:
    """The file's content in pieces, without a copy of the arrays (the library would copy all of them first)."""
    arrays: dict[str, Array] = {}
    tree = json.dumps(_to_json(state, arrays))
    header: dict[str, Any] = {"__metadata__": {_CHECKSUM: _ZEROS, _TREE: tree}}
    offset = 0
    ordered = sorted(arrays.items(), key=lambda item: -item[1].itemsize)  # keeps every array aligned
    for name, array in ordered:
        place = [offset, offset + array.nbytes]
        header[name] = {"dtype": _DTYPES[array.dtype.str], "shape": array.shape, "data_offsets": place}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    start = len(text).to_bytes(8, "little") + text
    content = [array.reshape(-1).view(np.uint8).data for _, array in ordered if array.nbytes]
    checksum = xxh3_128(start)
    for part in content:
        checksum.update(part)
    yield start[:_AT] + checksum.hexdigest().encode() + start[_AT + len(_ZEROS) :]
    yield from content


def pack(state: Any) -> bytes:
    """The file's content in one piece."""
    return b"".join(chunks(state))


def check(data: "bytes | mmap", after_piece: Callable[[], None] = lambda: None) -> None:
    """Raise DamagedFile unless the checksum fits. `after_piece` may release what was read of a mapped file."""
    end = _AT + len(_ZEROS)
    if data[8:_AT] != _BEGIN or len(data) < end:
        raise DamagedFile("not a Colonnade checkpoint of this release, or a damaged one: it has no checksum")
    checksum = xxh3_128(data[:_AT] + _ZEROS.encode())
    with memoryview(data) as view:
        for first in range(end, len(data), _PIECE):
            checksum.update(view[first : first + _PIECE])
            after_piece()
    if checksum.hexdigest().encode() != data[_AT:end]:
        raise DamagedFile(f"damaged: the checksum of its {len(data):,} bytes is wrong")


def unpack(data: bytes) -> Any:
    """The state that `chunks` was given; DamagedFile if it is no longer as it was written."""
    check(data)
    try:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        arrays = safetensors.numpy.load(data)
        return _from_json(json.loads(header["__metadata__"][_TREE]), arrays)
    except (KeyError, ValueError, TypeError, RecursionError, safetensors.SafetensorError) as error:
        raise DamagedFile(f"not a Colonnade checkpoint, or a damaged one: {error}") from None


def views(data: "bytes | mmap") -> Any:
    """As `unpack`, with arrays as read-only views of a mapped file. The caller calls `check` first."""
    try:
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        tree = header.pop("__metadata__")[_TREE]
        arrays = {name: _view(data, start, **place) for name, place in header.items()}
        return _from_json(json.loads(tree), arrays)
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError, StopIteration) as error:
        raise CheckpointError(f"not a Colonnade checkpoint, or a damaged one: {error}") from None


def _view(data: "bytes | mmap", start: int, dtype: str, shape: Sequence[int], data_offsets: Sequence[int]) -> Array:
    kind = np.dtype(next(code for code, name in _DTYPES.items() if name == dtype))
    begin, end = data_offsets
    count = prod(shape)
    if not 0 <= begin <= end <= len(data) - start or min(shape, default=0) < 0 or count * kind.itemsize != end - begin:
        raise ValueError(f"an array of {shape} {dtype} cannot lie at {begin}..{end}")
    return np.frombuffer(data, kind, count, start + begin).reshape(shape) if count else np.zeros(shape, kind)


def _to_json(value: Any, arrays: dict[str, Array]) -> Any:
    """Plain JSON; a value that JSON cannot express becomes a one-key object."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():  # without a call for each number: there are hundreds
            items = [item if type(item) in _PLAIN else _to_json(item, arrays) for item in value]
            return items if isinstance(value, list) else {"tuple": items}
        case dict():
            pairs = [
                [_to_json(key, arrays), item if type(item) in _PLAIN else _to_json(item, arrays)]
                for key, item in value.items()
            ]
            return {"dict": pairs}
        case bytes():
            return {"bytes": _to_json(np.frombuffer(value, np.uint8), arrays)["array"]}  # hex would take many copies
        case np.ndarray():
            if value.dtype.str not in _DTYPES:
                raise CheckpointError(f"a state cannot hold an array of {value.dtype}")
            name = str(len(arrays))
            arrays[name] = np.ascontiguousarray(value).reshape(value.shape)  # numpy makes a scalar one-dimensional
            return {"array": name}
        case Elsewhere():
            return _to_json(np.asarray(value), arrays)
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
            return arrays[content].tobytes()
        case "array":
            return arrays[content]
        case "generator":
            generator = np.random.Generator(np.random.PCG64())
            generator.bit_generator.state = _from_json(content, arrays)
            return generator
    raise ValueError(f"unknown kind {kind!r}")
