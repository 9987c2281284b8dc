"""Turn a typed state into plain values and back, by its annotations.

A role's state is a dataclass with slots. Its fields are plain values, arrays, generators, containers of these, and
further dataclasses, structs and named tuples. Every field is saved, so there is no separate list of names that could
miss one. This module refuses a field of an unknown type when the first state of its kind is made, not when a checkpoint
is due.

Plain values are the values that `protocol.state` can write.

A part of a role with rules of its own, e.g. a phase of local steps, is a `Component`: a dataclass that is also saved
and loaded by its fields. A field that the component was made from (its network, its options) is marked
`field(metadata=UNSAVED)`.
"""

import dataclasses
import types
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt

from colonnade import __version__
from colonnade.protocol.errors import CheckpointError, LocalProtocolError

__all__ = ["UNSAVED", "Component", "Form", "form_of", "transient"]

T = TypeVar("T")
Convert = Callable[[Any], Any]

_TRANSIENT = "transient"
UNSAVED: Final = types.MappingProxyType({_TRANSIENT: True})  # for a component's field that `load` leaves unchanged
_PLAIN = (type(None), bool, int, float, str, bytes, np.random.Generator)


def transient(make: Callable[[], T]) -> T:
    """A field that is not saved: a cache. In a loaded state it has the value that `make` returns."""
    made: T = dataclasses.field(default_factory=make, repr=False, compare=False, metadata=UNSAVED)
    return made


class Component:
    """The base of a dataclass that is part of a role: its fields are its state, except those marked UNSAVED."""

    __slots__ = ()

    def save(self) -> dict[str, Any]:
        """The fields as plain values."""
        kind: Any = type(self)
        saved: dict[str, Any] = form_of(kind).plain(self)
        return saved

    def load(self, saved: dict[str, Any]) -> None:
        """Replace the fields with those that `save` returned, in place; CheckpointError if they do not fit."""
        kind: Any = type(self)
        for name, value in _values_of(kind)(saved).items():
            setattr(self, name, value)


def _same(value: Any) -> Any:
    return value


def _own(array: Any) -> Any:
    """A writable array: a checkpoint's arrays may be views of a mapped file."""
    return array if array.flags.writeable else array.copy()


class Form(NamedTuple):
    """The two conversions of a type: to plain values, and back."""

    plain: Convert
    typed: Convert


_AS_IT_IS = Form(_same, _same)
_ARRAY = Form(_same, _own)
_ARRAYS = (np.ndarray, npt.NDArray)  # since numpy 2.5 the latter is a type of its own, not an alias of the former


@cache
def form_of(kind: Any) -> Form:
    """The form of a type annotation; raises LocalProtocolError if the type cannot be saved."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind in _PLAIN or origin is Literal:
        return _AS_IT_IS
    if kind is np.ndarray or origin in _ARRAYS:
        return _ARRAY
    if origin in (Union, types.UnionType):
        return _of_union(kind, inner)
    if origin is list:
        return _of_each(form_of(inner[0]), list)
    if origin is tuple:
        return _of_tuple(inner)
    if origin is dict and form_of(inner[0]) == _AS_IT_IS:  # a tuple of plain values is also a valid key
        return _of_dict(form_of(inner[1]))
    names = _field_names(kind)
    if names is None:
        raise LocalProtocolError(f"a state cannot hold a {kind}: no rule says how to save it")
    return _of_fields(kind, names)


def _field_names(kind: Any) -> list[str] | None:
    if not isinstance(kind, type):
        return None
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind) if _TRANSIENT not in field.metadata]
    if issubclass(kind, msgspec.Struct):
        return list(kind.__struct_fields__)
    return list(kind._fields) if issubclass(kind, tuple) and hasattr(kind, "_fields") else None


def _of_union(kind: Any, inner: tuple[Any, ...]) -> Form:
    """Several plain types, or one other type, or structs, which are saved with their names; each may be None."""
    parts = [part for part in inner if part is not type(None)]
    forms = [form_of(part) for part in parts]
    if all(form is _AS_IT_IS for form in forms):
        return _AS_IT_IS
    if len(parts) > 1 and all(isinstance(part, type) and issubclass(part, msgspec.Struct) for part in parts):
        forms = [_of_named({part.__name__: form for part, form in zip(parts, forms, strict=True)})]
    if len(forms) > 1:
        raise LocalProtocolError(f"a state cannot hold a {kind}: a checkpoint does not say which of them it was")
    (form,) = forms
    return Form(_unless_none(form.plain), _unless_none(form.typed))


def _of_named(forms: dict[str, Form]) -> Form:
    def plain(value: Any) -> tuple[str, Any]:
        name = type(value).__name__
        return name, forms[name].plain(value)

    return Form(plain, lambda saved: forms[saved[0]].typed(saved[1]))


def _unless_none(convert: Convert) -> Convert:
    return _same if convert is _same else lambda value: None if value is None else convert(value)


def _of_each(item: Form, make: Callable[[Any], Any]) -> Form:
    return Form(_map(item.plain, make), _map(item.typed, make))


def _map(convert: Convert, make: Callable[[Any], Any]) -> Convert:
    return _same if convert is _same else lambda values: make(map(convert, values))


def _of_tuple(inner: tuple[Any, ...]) -> Form:
    if len(inner) == 2 and inner[1] is Ellipsis:
        return _of_each(form_of(inner[0]), tuple)
    forms = [form_of(part) for part in inner]
    return Form(_one_by_one([form.plain for form in forms]), _one_by_one([form.typed for form in forms]))


def _one_by_one(converts: list[Convert]) -> Convert:
    if all(convert is _same for convert in converts):
        return _same
    return lambda values: tuple(convert(value) for convert, value in zip(converts, values, strict=True))


def _of_dict(item: Form) -> Form:
    def convert(one: Convert) -> Convert:
        return _same if one is _same else lambda values: {key: one(value) for key, value in values.items()}

    return Form(convert(item.plain), convert(item.typed))


def _of_fields(kind: Any, names: list[str]) -> Form:
    forms, values = _forms_of(kind, names), _values_of(kind)

    def plain(value: Any) -> dict[str, Any]:
        return {name: form.plain(getattr(value, name)) for name, form in forms}

    return Form(plain, lambda saved: kind(**values(saved)))


def _forms_of(kind: Any, names: list[str]) -> list[tuple[str, Form]]:
    hints = get_type_hints(kind)
    return [(name, form_of(hints[name])) for name in names]


@cache
def _values_of(kind: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Converts the saved form of a dataclass, struct or named tuple to the values of its fields.

    A field that an earlier release did not have gets its default.
    """
    names = _field_names(kind) or []
    forms, defaults = _forms_of(kind, names), _defaults_of(kind)

    def values(saved: dict[str, Any]) -> dict[str, Any]:
        missing = [name for name in names if name not in saved]
        if len(saved) + len(missing) > len(names):
            raise _of_another_release(kind, "a newer", "has", [name for name in saved if name not in names])
        if unknown := [name for name in missing if name not in defaults]:
            raise _of_another_release(kind, "an older", "lacks", unknown)
        return {name: form.typed(saved[name]) if name in saved else defaults[name]() for name, form in forms}

    return values


def _of_another_release(kind: Any, which: str, verb: str, names: list[str]) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint is of {which} release than {__version__}: it {verb} {', '.join(names)} of a "
        f"{kind.__qualname__}. Continue with the release that wrote it, or start a new run with another --out"
    )


def _defaults_of(kind: Any) -> dict[str, Callable[[], Any]]:
    """What makes the default of each field that has one."""
    if dataclasses.is_dataclass(kind):
        fields: Any = dataclasses.fields(kind)
        none: Any = dataclasses.MISSING
    elif issubclass(kind, msgspec.Struct):
        fields, none = msgspec.structs.fields(kind), msgspec.NODEFAULT
    else:
        return {name: partial(_same, value) for name, value in kind._field_defaults.items()}
    found: dict[str, Callable[[], Any]] = {}
    for field in fields:
        if field.default_factory is not none:
            found[field.name] = field.default_factory
        elif field.default is not none:
            found[field.name] = partial(_same, field.default)
    return found
