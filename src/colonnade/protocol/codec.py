"""Messages to bytes and back: a msgpack header, then raw little-endian buffers. Never pickle.

    frame    magic "CLN" · version (1 byte) · header length (4 bytes, little-endian) · header · buffers
    header   the payload as msgpack; each array stands as [dtype, shape]
    buffers  the arrays' bytes in the order of the header, each starting at a multiple of eight

The decoder limits everything that arrives: total size, header size, dtypes, dimensions. The sizes must add up exactly.
Texts in a decoded message are harmless (see `foreign`): another member may have chosen them.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Any, Union

import msgspec
import numpy as np

from colonnade.protocol.errors import CodecError, LocalProtocolError
from colonnade.protocol.finite import all_finite
from colonnade.protocol.foreign import clean_struct, text_fields
from colonnade.protocol.messages import Array, Elsewhere, Message, Payload

__all__ = ["MAX_FRAME_BYTES", "VERSION", "Codec", "Frame"]

VERSION = 1
MAX_FRAME_BYTES = 256 * 2**20
MAX_HEADER_BYTES = 2**20
MAX_DIMENSIONS = 4
DTYPES = {name: np.dtype(name) for name in ("<f4", "<f8", "<f2", "<i4", "<i8", "<u4", "<u8", "|u1", "|b1")}

_NAMES = {dtype: name for name, dtype in DTYPES.items()}  # `dtype.str` makes a new text every time

_PREFIX = b"CLN" + bytes([VERSION])
_START = Struct("<4sI")  # magic and version, header length
_PREFIX_BYTES = _START.size
_PADDING = [bytes(-size % 8) for size in range(8)]


class Frame(msgspec.Struct, eq=False, gc=False):
    """An encoded payload whose buffers have not been copied yet."""

    header: bytes
    buffers: list[Any]  # arrays
    size: int

    def parts(self) -> list[bytes | memoryview]:
        """The frame's bytes in pieces, without a copy of the arrays."""
        length = len(self.header)
        parts: list[bytes | memoryview] = [_START.pack(_PREFIX, length), self.header, _PADDING[length % 8]]
        for buffer in self.buffers:
            here = np.ascontiguousarray(buffer) if isinstance(buffer, Elsewhere) else buffer
            size = here.nbytes
            if size:
                parts.append(here.data.cast("B"))
                if size % 8:
                    parts.append(_PADDING[size % 8])
        return parts

    def __bytes__(self) -> bytes:
        return self.after(b"")

    def after(self, prefix: bytes) -> bytes:
        """`prefix` and the frame's bytes, joined in one copy."""
        length = len(self.header)
        pieces: list[Any] = [prefix, _START.pack(_PREFIX, length), self.header, _PADDING[length % 8]]
        for buffer in self.buffers:
            pieces.append(np.ascontiguousarray(buffer) if isinstance(buffer, Elsewhere) else buffer)
            if buffer.nbytes % 8:
                pieces.append(_PADDING[buffer.nbytes % 8])
        return b"".join(pieces)


class Codec:
    """Encodes and decodes the payload types that it was made for.

    With `finite`, `decode` refuses NaN and infinity in arrays. With `lazily`, arrays on a GPU stay there until a caller
    asks for the frame's bytes.
    """

    def __init__(
        self,
        types: Iterable[type[Payload]],
        max_frame_bytes: int = MAX_FRAME_BYTES,
        *,
        finite: bool = False,
        lazily: bool = False,
    ) -> None:
        self.max_frame_bytes, self._finite, self._lazily = max_frame_bytes, finite, lazily
        known = tuple(types)
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._array_to_header)
        self._decoder = msgspec.msgpack.Decoder(Union[known], dec_hook=self._array_from_header)  # noqa: UP007
        messages: list[type[Payload]] = [kind for kind in known if issubclass(kind, Message)]
        self._texts = {kind: names for kind in messages if (names := text_fields(kind))}
        self._buffers: list[Array] = []
        self._body = memoryview(b"")
        self._cursor = 0

    def encode(self, payload: Payload) -> Frame:
        """The frame of one payload, without a copy of its arrays; LocalProtocolError if it is too large."""
        header, size, buffers = self.measure(payload)
        return Frame(header, buffers, size)

    def measure(self, payload: Payload) -> tuple[bytes, int, list[Array]]:
        """Header, size and arrays of the frame that `encode` would return."""
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
        return header, size, buffers

    def decode(self, data: bytes | memoryview, peer: str = "peer") -> Payload:
        """The payload of one frame; arrays are read-only views of `data`. Raises CodecError that names `peer`."""
        view = memoryview(data).toreadonly()
        header, body = self._split(view, peer)
        self._body, self._cursor = body, 0
        try:
            payload: Payload = self._decoder.decode(header)
        except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
            raise CodecError(peer, f"frame cannot be decoded: {str(error)[:200]}") from None
        if self._cursor != len(body):
            raise CodecError(peer, f"frame has {len(body) - self._cursor} bytes too many")
        if (names := self._texts.get(type(payload))) is not None:
            clean_struct(payload, names)
        return payload

    def _split(self, view: memoryview, peer: str) -> tuple[memoryview, memoryview]:
        """The header's bytes and the bytes of all buffers."""
        size = len(view)
        if size > self.max_frame_bytes:
            raise CodecError(peer, f"frame of {size} bytes, the limit is {self.max_frame_bytes}")
        prefix, length = _START.unpack_from(view) if size >= _PREFIX_BYTES else (b"", 0)
        if prefix != _PREFIX:
            if prefix[:3] != _PREFIX[:3]:
                raise CodecError(peer, "not a Colonnade frame")
            raise CodecError(
                peer, f"frame version {prefix[3]}, this member uses {VERSION}: install the same release on all members"
            )
        start = _PREFIX_BYTES + (length + 7 & -8)
        if length > MAX_HEADER_BYTES or start > size:
            raise CodecError(peer, f"frame header of {length} bytes does not fit")
        return view[_PREFIX_BYTES : _PREFIX_BYTES + length], view[start:]

    def _array_to_header(self, value: Any) -> tuple[str, tuple[int, ...]]:
        if isinstance(value, np.ndarray):
            as_it_is = value.flags.c_contiguous
        elif isinstance(value, Elsewhere):
            as_it_is = self._lazily
        else:
            raise LocalProtocolError(f"a payload cannot carry a {type(value).__name__}")
        name = _NAMES.get(value.dtype)
        if name is None:
            raise LocalProtocolError(f"a payload cannot carry an array of {value.dtype}")
        self._buffers.append(value if as_it_is else np.ascontiguousarray(value))
        return name, value.shape

    def _array_from_header(self, kind: type, value: Any) -> Array:
        try:
            name, shape = value
            dtype, count = DTYPES[name], 1
            if type(shape) is not list or len(shape) > MAX_DIMENSIONS:
                raise ValueError
            for extent in shape:
                if type(extent) is not int or extent < 0:
                    raise ValueError
                count *= extent
        except (TypeError, ValueError, KeyError):
            raise ValueError(f"bad array description {str(value)[:80]}") from None
        start = self._cursor
        self._cursor = start + count * dtype.itemsize + 7 & -8
        if self._cursor > len(self._body):
            raise ValueError("array runs past the end of the frame")
        array: Array = np.frombuffer(self._body, dtype, count, start) if count else np.frombuffer(b"", dtype)
        if len(shape) != 1:
            array = array.reshape(shape)
        if self._finite and not all_finite(array):
            raise ValueError("array holds NaN or infinity")
        if dtype.kind == "b" and array.tobytes().translate(None, b"\0\1"):
            raise ValueError("array of booleans holds values other than 0 and 1")
        return array
