"""Messages that a wire codec accepts and an honest role would not send, made from the message types themselves.

Every field gets values at the extremes of its type. The codec of a network node decides what can arrive: `Forge` drops
the forgeries that a node refuses before its role sees them, e.g. arrays with NaN.
"""

import types
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import numpy as np
import numpy.typing as npt

from colonnade.protocol.codec import Codec
from colonnade.protocol.errors import CodecError, LocalProtocolError
from colonnade.protocol.messages import Array, Message, Payload

__all__ = ["ABSURD", "Forge"]

# Easy to recognise if an honest role remembers one of them.
ABSURD = (2**31 + 77, 2**40 + 77, 2**62 + 77, 2**63 - 1, 2**64 - 1, -(2**31) - 77, -(2**63))
INTEGERS = (0, 1, -1, 2, 3, 255, 2**16, 2**31 - 1, *ABSURD)
FLOATS = (0.0, -0.0, -1.0, 1.0, 1e-300, 1e6, 1e30, -1e30, 1e308, float("nan"), float("inf"), float("-inf"))
TEXTS = (
    "",
    "\x00",
    "a\x1b]0;owned\x07b",
    "\x1b[2J",
    "two\nlines\r",
    "server",
    "\ufdfa" * 60,
    "x" * 5000,
    "\u202egnol",
    "{}",
)
VALUES = (0.0, 1.0, -1.0, 1e-30, 999_999.0, 1e6, -1e6, 1e7, 1e30, -1e30, 3e38)
DTYPES = ("<f4", "<f8", "<f2", "<i4", "<i8", "<u4", "<u8", "|u1", "|b1")
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (3,), (0, 2), (2, 0), (2, 3), (1, 1, 1), (2, 2, 2, 2))
DRAWS = 14  # forgeries of a field whose type has no list of extremes
MANY = 200_000  # elements of a huge array or list

_ARRAYS = (np.ndarray, npt.NDArray)


class Forge:
    """Makes forgeries of a method's messages. All draws come from `draw`, so a seed repeats them."""

    def __init__(self, payloads: Sequence[type[Payload]], draw: Random, max_message_bytes: int = 64 * 2**20) -> None:
        self.kinds = tuple(kind for kind in payloads if issubclass(kind, Message))
        self._draw = draw
        self._wire = Codec(self.kinds, max_message_bytes, finite=True)

    def forged(self, message: Message) -> Message | None:
        """Change one field of a message, or several; None if no such message passes the codec."""
        for _ in range(8):
            found = self.delivered(self._changed(message))
            if found is not None:
                return found
        return None

    def all_of(self, message: Message, share: float = 1.0) -> Iterator[tuple[str, Message]]:
        """Change each field in turn to each of its extremes, or to a share of them. Yields field and forgery."""
        for field in msgspec.structs.fields(type(message)):
            for value in self._others(getattr(message, field.name), field.type, share):
                found = self.delivered(msgspec.structs.replace(message, **{field.name: value}))
                if found is not None:
                    yield f"{type(message).__name__}.{field.name}", found

    def _others(self, value: Any, kind: Any, share: float) -> list[Any]:
        lists: list[Any]
        match value:
            case bool():
                lists = [not value]
            case int():
                lists = [value - 1, value + 1, *INTEGERS]
            case float():
                lists = [*FLOATS]
            case str():
                lists = [*TEXTS]
            case _:
                return [self._other(value, kind) for _ in range(DRAWS) if self._draw.random() < share]
        return [other for other in lists if self._draw.random() < share]

    def invented(self) -> Message | None:
        """Make a message of any of the method's types from nothing."""
        return self.of_kind(self._draw.choice(self.kinds))

    def of_kind(self, kind: type[Message]) -> Message | None:
        """Make a message of this type from nothing; None if the codec refuses it."""
        return self.delivered(self._of_type(kind))

    def can_send(self, message: Message) -> bool:
        """Whether the codec has a frame for the message."""
        try:
            self._wire.encode(message)
        except (LocalProtocolError, OverflowError, UnicodeError):
            return False
        return True

    def delivered(self, message: Payload) -> Message | None:
        """Return the message as the receiver's node decodes it; None if the node refuses the frame."""
        try:
            found = self._wire.decode(bytes(self._wire.encode(message)))
        except (CodecError, LocalProtocolError, OverflowError, UnicodeError, msgspec.MsgspecError):
            return None
        assert isinstance(found, Message)
        return found

    def _changed(self, message: Payload) -> Payload:
        fields = msgspec.structs.fields(type(message))
        if not fields:
            return message
        count = 1 if self._draw.random() < 0.75 else self._draw.randint(1, len(fields))
        chosen = self._draw.sample(fields, count)
        return msgspec.structs.replace(
            message, **{field.name: self._other(getattr(message, field.name), field.type) for field in chosen}
        )

    def _other(self, value: Any, kind: Any) -> Any:
        """Return another value for a field: near the honest one, or at an extreme of the type."""
        draw = self._draw
        match value:
            case bool():
                return not value
            case int():
                return draw.choice((value - 1, value + 1, -value, 2 * value, *INTEGERS))
            case float():
                return draw.choice((-value, value * 1e6, *FLOATS))
            case str():
                return draw.choice((value + "x", value[:-1], value.upper(), *TEXTS))
            case bytes():
                return draw.choice((b"", value[:-1], value + b"\0", bytes(len(value)), bytes(4096)))
            case np.ndarray():
                return self._other_array(value)
            case list() | tuple():
                return self._other_list(list(value), get_args(kind)[:1] or (int,))
            case dict():
                return self._other_dict(value)
            case msgspec.Struct() if isinstance(value, Payload):
                return self._changed(value)
        return self._of_type(kind)

    def _other_array(self, value: Array) -> Array:
        draw = self._draw
        if value.ndim == 0 or draw.random() < 0.15:
            return self._any_array(value.dtype.str)
        ways = (
            self._spoilt,
            lambda array: array[:-1],
            lambda array: array[:0],
            lambda array: array[::-1],
            lambda array: np.concatenate([array, array]),
            lambda array: np.repeat(array[:1], len(array), axis=0),
            lambda array: np.resize(array, (max(1, MANY // max(1, array[:1].size)), *array.shape[1:])),
            lambda array: array.astype(draw.choice(DTYPES)),
            lambda array: array.reshape(-1),
            lambda array: array[None],
            lambda array: np.full_like(array, self._extreme(array.dtype)),
            lambda array: array.T,
        )
        with np.errstate(all="ignore"):
            return np.ascontiguousarray(draw.choice(ways)(value))

    def _spoilt(self, array: Array) -> Array:
        """Change some of the elements."""
        changed = array.copy()
        if changed.size:
            for _ in range(self._draw.choice((1, 1, changed.size // 2 + 1))):
                changed.reshape(-1)[self._draw.randrange(changed.size)] = self._extreme(array.dtype)
        return changed

    def _extreme(self, dtype: np.dtype[Any]) -> Any:
        if dtype.kind == "f":
            limit = float(np.finfo(dtype).max)
            return max(-limit, min(limit, self._draw.choice(VALUES)))
        if dtype.kind == "b":
            return self._draw.random() < 0.5
        limits = np.iinfo(dtype)
        return max(int(limits.min), min(int(limits.max), self._draw.choice((*INTEGERS, 39, 40, 1000))))

    def _any_array(self, own: str = "<f4") -> Array:
        dtype = np.dtype(self._draw.choice((own, own, *DTYPES)))
        array = np.zeros(self._draw.choice((*SHAPES, (MANY,))), dtype)
        array.fill(self._extreme(dtype))
        return array

    def _other_list(self, value: list[Any], kinds: Sequence[Any]) -> list[Any]:
        draw = self._draw
        ways = [[], value[:-1], value[::-1], value * 2, [*value, self._of_type(kinds[0])]]
        ways += [[self._of_type(kinds[0])], [self._of_type(kinds[0])] * (MANY // 10)]
        if value:
            place = draw.randrange(len(value))
            ways.append([*value[:place], self._other(value[place], kinds[0]), *value[place + 1 :]])
        return draw.choice(ways)

    def _other_dict(self, value: dict[str, Any]) -> dict[str, Any]:
        draw = self._draw
        changed = {key: self._other(item, float) for key, item in value.items()}
        more = {draw.choice(TEXTS): draw.choice(FLOATS)}
        return draw.choice(({}, changed, value | more, {str(key): 0.0 for key in range(MANY // 10)}))

    def _of_type(self, kind: Any) -> Any:
        """Return a value of an annotated type."""
        draw, origin, inner = self._draw, get_origin(kind), get_args(kind)
        plain = {int: INTEGERS, float: FLOATS, str: TEXTS, bytes: (b"", b"\0" * 32), bool: (True, False)}
        if kind in plain:
            return draw.choice(plain[kind])
        if kind is np.ndarray or origin in _ARRAYS:
            return self._any_array()
        if origin is Literal:
            return draw.choice(inner)
        if origin in (Union, types.UnionType):
            return self._of_type(draw.choice(inner))
        if origin in (list, tuple):
            return [self._of_type(inner[0]) for _ in range(draw.choice((0, 1, 3)))]
        if origin is dict:
            return {self._of_type(inner[0]): self._of_type(inner[1]) for _ in range(draw.choice((0, 1, 3)))}
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return kind(**{field.name: self._of_type(field.type) for field in msgspec.structs.fields(kind)})
        return None
