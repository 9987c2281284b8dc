"""The one way to write JSON for other programs.

JSON has no NaN and no infinity. Python writes them anyway, and most readers then refuse the whole file.
"""

import json
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from math import isfinite
from typing import Any

__all__ = ["to_json"]

MOST_NAMED = 5  # keys in a warning


@cache
def _encoder(default: Callable[[Any], Any] | None) -> Callable[[Any], str]:
    """Kept, because json.dumps would make an encoder for every line of a log."""
    return json.JSONEncoder(default=default, allow_nan=False).encode


def to_json(
    value: object,
    *,
    indent: int | None = None,
    compact: bool = False,
    default: Callable[[Any], Any] | None = None,
    warn: bool = True,
) -> str:
    """`value` as strict JSON. A number that is not finite becomes null, and a RuntimeWarning names its key."""
    separators = (",", ":") if compact else None
    try:
        if indent is None and not compact:
            return _encoder(default)(value)
        return json.dumps(value, indent=indent, separators=separators, default=default, allow_nan=False)
    except ValueError:
        lost: list[str] = []
        finite = _finite(value, "", lost)
    text = json.dumps(finite, indent=indent, separators=separators, default=default, allow_nan=False)
    if warn:
        named = ", ".join(lost[:MOST_NAMED]) + ", …" * (len(lost) > MOST_NAMED)
        warnings.warn(f"not a finite number, written as null: {named}", RuntimeWarning, stacklevel=2)
    return text


def _finite(value: Any, path: str, lost: list[str]) -> Any:
    if isinstance(value, float) and not isfinite(value):
        lost.append(path or "the value")
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item, f"{path}.{key}" if path else str(key), lost) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item, f"{path}[{place}]", lost) for place, item in enumerate(value)]
    return value
