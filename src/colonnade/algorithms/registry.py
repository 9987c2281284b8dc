"""All methods by name.

Each of Colonnade's own packages of methods is one entry of `_PACKAGES`. An installed package adds methods by an entry
point of the group `colonnade.methods`, whose value is a Method or a tuple of them. Colonnade imports such packages when
a caller asks for a name that it does not have, or lists all methods. For a method without an entry point, the caller
gives the dotted path, `package.module:METHOD`.
"""

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from colonnade.algorithms import asysqn, fedvs, flex, lockstep, swift, vafl, zeroth
from colonnade.algorithms.method import Method
from colonnade.protocol.errors import ConfigError

__all__ = ["DEFAULT_METHOD", "GROUP", "METHODS", "Installed", "find_method", "installed"]

GROUP = "colonnade.methods"
DEFAULT_METHOD = "swift"  # if a config names no method

_PACKAGES = (lockstep, swift, vafl, zeroth, flex, asysqn, fedvs)
METHODS: dict[str, Method[Any]] = {method.name: method for package in _PACKAGES for method in package.METHODS}


@dataclass(frozen=True, slots=True)
class Installed:
    """The methods of other installed packages, and the faults found while loading them."""

    methods: Mapping[str, Method[Any]]
    faults: Mapping[str, str]  # name of a method or of an entry point → why it cannot be used


@cache
def installed() -> Installed:
    """Return the methods of all entry points. The first call imports their packages."""
    methods: dict[str, Method[Any]] = {}
    faults: dict[str, str] = {}
    origins = dict.fromkeys(METHODS, "colonnade")
    for point in sorted(entry_points(group=GROUP), key=lambda point: (_origin(point), point.name)):
        try:
            found = _methods(point.load())
        except Exception as error:  # code of another package may raise anything
            faults[point.name] = f"{_origin(point)} brings it, but it cannot be loaded: {error}"
            continue
        for method in found:
            other = origins.setdefault(method.name, _origin(point))
            if methods.setdefault(method.name, method) is not method or method.name in METHODS:
                faults[method.name] = f"{other} and {_origin(point)} both have a method of this name; uninstall one"
    taken = {name: method for name, method in methods.items() if name not in faults and name not in METHODS}
    return Installed(taken, faults)


def _methods(value: object) -> tuple[Method[Any], ...]:
    found = value if isinstance(value, tuple) else (value,)
    for method in found:
        if not isinstance(method, Method):
            raise TypeError(f"it is a {type(method).__name__}, not a colonnade Method")
    return found


def _origin(point: EntryPoint) -> str:
    """Name the distribution of an entry point, for messages."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value


def find_method(name: str) -> Method[Any]:
    """Return the method with this name or dotted path; raise ConfigError if there is none."""
    if name in METHODS:
        return METHODS[name]
    if ":" in name:
        return _import(name)
    others = installed()
    if name in others.methods:
        return others.methods[name]
    if name in others.faults:
        raise ConfigError("protocol.name", name, others.faults[name])
    known = [*METHODS, *others.methods]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    broken = "".join(f"; {point} cannot be used: {why}" for point, why in others.faults.items())
    raise ConfigError("protocol.name", name, f"unknown method; {hint}there are: {', '.join(known)}{broken}")


def _import(path: str) -> Method[Any]:
    module, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError("protocol.name", path, f"cannot be imported: {error}") from None
    if not isinstance(found, Method):
        raise ConfigError("protocol.name", path, f"is a {type(found).__name__}, not a colonnade Method")
    return found
