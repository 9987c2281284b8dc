"""All methods by name; a method of your own is named by its dotted path, `package.module:METHOD`."""

import difflib
import importlib
from typing import Any

from colonnade.algorithms import asysqn, fedvs, flex, lockstep, vafl, zeroth
from colonnade.algorithms.method import Method
from colonnade.protocol.errors import ConfigError

__all__ = ["METHODS", "find_method"]

_PACKAGES = (lockstep, vafl, zeroth, flex, asysqn, fedvs)
METHODS: dict[str, Method[Any]] = {method.name: method for package in _PACKAGES for method in package.METHODS}


def find_method(name: str) -> Method[Any]:
    """The method of this name or dotted path."""
    if name in METHODS:
        return METHODS[name]
    if ":" in name:
        return _import(name)
    close = difflib.get_close_matches(name, METHODS, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ConfigError("protocol.name", name, f"unknown method; {hint}there are: {', '.join(METHODS)}")


def _import(path: str) -> Method[Any]:
    module, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError("protocol.name", path, f"cannot be imported: {error}") from None
    if not isinstance(found, Method):
        raise ConfigError("protocol.name", path, f"is a {type(found).__name__}, not a colonnade Method")
    return found
