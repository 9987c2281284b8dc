"""Read the plain data of a pickle without running it: no class and no function of the file is looked up or called.

A pickle is a program for a small stack machine. Python's own machine imports and calls what the file names, so a
forged file can run any code. This one knows only the operations that plain data and numpy arrays need. It keeps the
call of a function as a `Call`, which is data. It refuses every other operation.

`pickletools` (standard library) cuts the file into operations; it runs nothing.
"""

import pickletools
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.data.task import Array
from colonnade.protocol.errors import DataError

__all__ = ["Call", "bytes_array", "read_pickled"]

MOST_OPERATIONS = 1_000_000
MOST_DIMENSIONS = 4
_IGNORED = {"PROTO", "FRAME"}
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_PUSHED = {
    "BININT", "BININT1", "BININT2", "LONG1", "SHORT_BINSTRING", "BINSTRING", "SHORT_BINBYTES", "BINBYTES",
    "SHORT_BINUNICODE", "BINUNICODE",
}  # fmt: skip
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_BYTES_OF = ("u1", "|u1")  # numpy's names of an unsigned byte
_RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")


@dataclass(slots=True)
class Call:
    """A call that the file asks for and that was not made; `state` is what the result should hold."""

    function: Any
    arguments: Any
    state: Any = None


@dataclass(frozen=True, slots=True)
class _Name:
    """A global of some module, as "module name"."""

    text: str


class _Machine:
    """The stack, the marks on it, and the memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        """Run one operation; raises KeyError, IndexError, TypeError or ValueError if it does not fit."""
        if name in _PUSHED:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in ("EMPTY_LIST", "EMPTY_DICT"):
            self.stack.append([] if name == "EMPTY_LIST" else {})
        elif name == "GLOBAL":
            self.stack.append(_Name(argument))
        elif name == "MARK":
            self.marks.append(len(self.stack))
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = self.stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        else:
            self._combine(name)

    def _combine(self, name: str) -> None:
        """Run an operation that takes values from the stack."""
        if name in _TUPLES:
            self.stack.append(tuple(self._last(_TUPLES[name])))
        elif name == "TUPLE":
            self.stack.append(tuple(self._since_mark()))
        elif name in ("APPEND", "APPENDS"):
            items = self._last(1) if name == "APPEND" else self._since_mark()
            self._top(list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._last(2) if name == "SETITEM" else self._since_mark()
            keys = [_text(key) for key in items[::2]]  # only texts: to hash a nested tuple can take for ever
            self._top(dict).update(zip(keys, items[1::2], strict=True))
        elif name == "STACK_GLOBAL":
            self.stack.append(_Name(" ".join(map(_text, self._last(2)))))
        elif name == "REDUCE":
            self.stack.append(Call(*self._last(2)))
        elif name == "BUILD":
            [state] = self._last(1)
            self._top(Call).state = state
        else:
            raise ValueError(f"the operation {name} is not one of plain data")

    def _last(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise IndexError("the stack is too short")
        return self._from(len(self.stack) - count)

    def _since_mark(self) -> list[Any]:
        return self._from(self.marks.pop())

    def _from(self, place: int) -> list[Any]:
        taken = self.stack[place:]
        del self.stack[place:]
        return taken

    def _top(self, kind: type) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise TypeError(f"a {kind.__name__} was expected, not a {type(self.stack[-1]).__name__}")
        return self.stack[-1]


def read_pickled(path: Path) -> Any:
    """Return the data of a pickle: dicts, lists, tuples, numbers, texts and `Call`s; raises DataError for any other."""
    machine = _Machine()
    try:
        for count, (operation, argument, place) in enumerate(pickletools.genops(path.read_bytes())):
            if operation.name in _IGNORED:
                continue
            if operation.name == "STOP":
                [result] = machine.stack
                return result
            if count > MOST_OPERATIONS:
                raise ValueError(f"there are more than {MOST_OPERATIONS:,} operations, at byte {place}")
            machine.step(operation.name, argument)
    except (OSError, KeyError, IndexError, TypeError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as plain data in pickle's form: {error}") from error
    raise DataError(f"{path}: the pickle is cut short")


def bytes_array(value: Any) -> Array:
    """Return the array of unsigned bytes that a numpy array's `Call` describes; raises ValueError for any other."""
    match value:
        case Call(_Name(function), (_Name("numpy ndarray"), _, _), (1, shape, dtype, False, content)) if (
            function in _RECONSTRUCT
        ):
            sizes, raw = _sizes(shape), _raw(content)
        case _:
            raise ValueError("there is no numpy array in C order")
    match dtype:
        case Call(_Name("numpy dtype"), (name, *_)) if _text(name) in _BYTES_OF:
            pass
        case _:
            raise ValueError("the array does not hold unsigned bytes")
    if prod(sizes) != len(raw):
        raise ValueError(f"an array of {sizes} needs {prod(sizes):,} bytes, there are {len(raw):,}")
    return np.frombuffer(raw, np.uint8).reshape(sizes)


def _sizes(shape: Any) -> tuple[int, ...]:
    if (
        not isinstance(shape, tuple)
        or len(shape) > MOST_DIMENSIONS
        or not all(type(n) is int and n >= 0 for n in shape)
    ):
        raise ValueError("the array has no usable shape")
    return shape


def _raw(content: Any) -> bytes:
    """Return bytes; a string of Python 2 arrives as text with a character for each byte."""
    return _text(content).encode("latin-1")


def _text(value: Any) -> str:
    if not isinstance(value, str | bytes):
        raise TypeError(f"a text was expected, not a {type(value).__name__}")
    return value if isinstance(value, str) else value.decode("latin-1")
