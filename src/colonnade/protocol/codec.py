"""Messages to bytes and back: a msgpack header, then raw little-endian buffers. Never pickle.

    frame    magic "CLN" · version (1 byte) · header length (4 bytes, little-endian) · header · buffers
    header   the payload as msgpack; each array stands as [dtype, shape]
    buffers  the arrays' bytes in the order of the header, each starting at a multiple of eight

Everything that arrives is limited: total size, header size, dtypes, dimensions; the sizes must add up exactly.
"""

from collections.abc import Iterable
from typing import Any, Union

import msgspec
import numpy as np

from colonnade.protocol.errors import CodecError, LocalProtocolError
from colonnade.protocol.finite import all_finite
from colonnade.protocol.messages import Array, Payload

__all__ = ["MAX_FRAME_BYTES", "VERSION", "Codec", "Frame"]

VERSION = 1
MAX_FRAME_BYTES = 256 * 2**20
MAX_HEADER_BYTES = 2**20
MAX_DIMENSIONS = 4
DTYPES = {name: np.dtype(name) for name in ("<f4", "<f8", "<f2", "<i4", "<i8", "<u4", "<u8", "|u1", "|b1")}

_PREFIX = b"CLN" + bytes([VERSION])
_PREFIX_BYTES = 8  # magic, version, header length


class Frame:
    """An encoded payload whose buffers have not been copied yet."""

    __slots__ = ("buffers", "header", "size")

    def __init__(self, header: bytes, buffers: list[Array], size: int) -> None:
        self.header, self.buffers, self.size = header, buffers, size

    def parts(self) -> list[bytes | memoryview]:
        """The frame's bytes piece by piece, arrays without a copy."""
        header = _PREFIX + len(self.header).to_bytes(4, "little") + self.header + _padding(len(self.header))
        parts: list[bytes | memoryview] = [header]
        for buffer in self.buffers:
            if buffer.nbytes:
                parts.append(buffer.reshape(-1).view(np.uint8).data)
                if buffer.nbytes % 8:
                    parts.append(_padding(buffer.nbytes))
        return parts

    def __bytes__(self) -> bytes:
        return b"".join(self.parts())


def _padding(size: int) -> bytes:
    return bytes(-size % 8)


class Codec:
    """Encodes and decodes the payload types it was made for; `finite`: NaN and infinity in arrays are refused."""

    def __init__(
        self, types: Iterable[type[Payload]], max_frame_bytes: int = MAX_FRAME_BYTES, *, finite: bool = False
    ) -> None:
        self.max_frame_bytes, self._finite = max_frame_bytes, finite
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._array_to_header)
        self._decoder = msgspec.msgpack.Decoder(Union[tuple(types)], dec_hook=self._array_from_header)  # noqa: UP007
        self._buffers: list[Array] = []
        self._body = memoryview(b"")
        self._cursor = 0

    def encode(self, payload: Payload) -> Frame:
        """The frame of one payload; its arrays are referred to, not copied."""
        buffers: list[Array] = []
        self._buffers = buffers
        header = self._encoder.encode(payload)
        size = _PREFIX_BYTES + (len(header) + 7 & -8)
        for buffer in buffers:
            size += buffer.nbytes + 7 & -8
        if size > self.max_frame_bytes:
            raise LocalProtocolError(
                f"{type(payload).__name__} is {size} bytes, the limit is {self.max_frame_bytes}: send fewer rows"
            )
        return Frame(header, buffers, size)

    def decode(self, data: bytes | memoryview, peer: str = "peer") -> Payload:
        """The payload of one frame; arrays are read-only views of `data`."""
        view = memoryview(data)
        if len(view) > self.max_frame_bytes:
            raise CodecError(peer, f"frame of {len(view)} bytes, the limit is {self.max_frame_bytes}")
        header = self._header(view, peer)
        self._body = view[_PREFIX_BYTES + (len(header) + 7 & -8) :]
        self._cursor = 0
        try:
            payload: Payload = self._decoder.decode(header)
        except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
            raise CodecError(peer, f"frame cannot be decoded: {str(error)[:200]}") from None
        if self._cursor != len(self._body):
            raise CodecError(peer, f"frame has {len(self._body) - self._cursor} bytes too many")
        return payload

    def _header(self, view: memoryview, peer: str) -> memoryview:
        if len(view) < _PREFIX_BYTES or view[:3] != _PREFIX[:3]:
            raise CodecError(peer, "not a Colonnade frame")
        if view[3] != VERSION:
            raise CodecError(peer, f"frame version {view[3]}, this side speaks {VERSION}: use the same release")
        length = int.from_bytes(view[4:8], "little")
        if length > MAX_HEADER_BYTES or (length + 7 & -8) > len(view) - _PREFIX_BYTES:
            raise CodecError(peer, f"frame header of {length} bytes does not fit")
        return view[_PREFIX_BYTES : _PREFIX_BYTES + length]

    def _array_to_header(self, value: Any) -> tuple[str, tuple[int, ...]]:
        if not isinstance(value, np.ndarray):
            raise LocalProtocolError(f"a payload cannot carry a {type(value).__name__}")
        name = value.dtype.str
        if name not in DTYPES:
            raise LocalProtocolError(f"a payload cannot carry an array of {value.dtype}")
        self._buffers.append(np.ascontiguousarray(value))
        return name, value.shape

    @staticmethod
    def _description(value: Any) -> tuple[np.dtype[Any], list[Any]]:
        try:
            name, shape = value
            dtype = DTYPES[name]
        except (TypeError, ValueError, KeyError):
            raise ValueError(f"bad array description {str(value)[:80]}") from None
        if type(shape) is not list or len(shape) > MAX_DIMENSIONS:
            raise ValueError(f"bad array description {str(value)[:80]}")
        return dtype, shape

    def _array_from_header(self, kind: type, value: Any) -> Array:
        dtype, shape = self._description(value)
        count = 1
        for extent in shape:
            if type(extent) is not int or extent < 0:
                raise ValueError(f"bad array shape {str(shape)[:80]}")
            count *= extent
        start = self._cursor
        end = start + count * dtype.itemsize
        if (end + 7 & -8) > len(self._body):
            raise ValueError("array runs past the end of the frame")
        array: Array = np.frombuffer(self._body, dtype, count, start) if count else np.zeros(0, dtype)
        if len(shape) != 1:
            array = array.reshape(shape)
        self._cursor = end + 7 & -8
        if self._finite and not all_finite(array):
            raise ValueError("array holds NaN or infinity")
        if dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
            raise ValueError("array of truth values holds others than 0 and 1")
        array.flags.writeable = False
        return array
