"""A figure as plain JSON for a page, and the styles and scripts of pages."""

import base64
from functools import cache
from importlib.resources import files
from math import isfinite
from typing import Any

import numpy as np
import plotly.graph_objects as go

__all__ = ["asset", "plain"]

DIGITS = 5  # significant digits of every number in a figure


def plain(figure: go.Figure) -> dict[str, Any]:
    """Return data and layout as for JSON: no template, numbers of a few digits, no legend: the page has its own."""
    content = figure.to_dict()
    content["layout"].pop("template", None)
    if any("legendgroup" in trace for trace in content["data"]):
        content["layout"]["showlegend"] = False
    short: dict[str, Any] = _short(content)
    return short


def _short(value: Any) -> Any:
    """Turn arrays into lists: once rounded, these are shorter than plotly's base64, and readable."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if isfinite(value) else None
    if isinstance(value, dict):
        return _short(_decoded(value)) if "bdata" in value else {key: _short(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return _short(value.tolist())
    return [_short(item) for item in value] if isinstance(value, list | tuple) else value


def _decoded(value: dict[str, str]) -> np.ndarray:
    """Decode what plotly.py has written as {"dtype": "f8", "bdata": base64, "shape": "2, 3"}."""
    flat = np.frombuffer(base64.b64decode(value["bdata"]), value["dtype"])
    return flat.reshape([int(size) for size in value["shape"].split(",")]) if "shape" in value else flat


@cache
def asset(name: str, package: str = "colonnade.report") -> str:
    """Return a file of the package's folder `assets`."""
    return (files(package) / "assets" / name).read_text(encoding="utf-8")
