"""Colours and the layout that all figures share; the page adds its light or dark theme."""

from collections.abc import Iterable
from typing import Any

import plotly.graph_objects as go

__all__ = ["PALETTE", "STATES", "UNKNOWN", "colours", "lines", "titled"]

# Okabe and Ito: readers with colour blindness can distinguish them too.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A6D00", "#7F7F7F")
DASHES = ("solid", "dash", "dot", "dashdot")
STATES = {"busy": "#009E73", "transit": "#E69F00", "offline": "#D55E00", "waiting": "#9AA3AE"}  # readable on black too
UNKNOWN = "unknown"  # stays blank


def colours(labels: Iterable[str]) -> dict[str, str]:
    """Return each label's colour: the same in every figure that is given the same labels."""
    return {label: PALETTE[index % len(PALETTE)] for index, label in enumerate(labels)}


def lines(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return each label's line style; after the last colour, dashes distinguish the labels."""
    return {
        label: {"color": PALETTE[index % len(PALETTE)], "dash": DASHES[index // len(PALETTE) % len(DASHES)], "width": 2}
        for index, label in enumerate(labels)
    }


def titled(figure: go.Figure, x: str, y: str, height: int = 360, **layout: Any) -> go.Figure:
    """Add axis titles, margins and a legend above the figure."""
    figure.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 60, "r": 20, "t": 40, "b": 50},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        hovermode="closest",
    )
    figure.update_layout(layout)
    figure.update_xaxes(title_text=x, automargin=True)
    figure.update_yaxes(title_text=y, automargin=True)
    return figure
