"""Plotly figures of runs: the metric against the clock, updates or bytes, mean and band over seeds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

__all__ = ["AXES", "PALETTE", "curve"]

AXES = {
    "clock_s": "clock (s)",
    "update": "updates of the global model",
    "epochs": "epochs",
    "bytes_up": "bytes uploaded",
}
# Okabe and Ito: told apart by people with colour blindness too.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A6D00", "#7F7F7F")

Rows = Sequence[Mapping[str, Any]]
GRID_POINTS = 200


def curve(
    runs: Mapping[str, Sequence[Rows]],
    metric: str,
    against: str = "clock_s",
    target: float | None = None,
    oracles: Mapping[str, float] | None = None,
) -> go.Figure:
    """One line per label; several runs of a label (seeds) become their mean and a band of one deviation.

    An oracle does not federate, so it has no clock and no bytes: the level where it ends is drawn instead.
    """
    figure = go.Figure()
    for index, (label, repeats) in enumerate(runs.items()):
        colour = PALETTE[index % len(PALETTE)]
        x, mean, spread = _band([_points(rows, against) for rows in repeats])
        if len(repeats) > 1:
            band = np.concatenate([mean + spread, (mean - spread)[::-1]])
            outline = go.Scatter(
                x=np.concatenate([x, x[::-1]]), y=band, fill="toself", fillcolor=colour, opacity=0.15,
                line={"width": 0}, hoverinfo="skip", legendgroup=label, showlegend=False,
            )  # fmt: skip
            figure.add_trace(outline)
        figure.add_trace(
            go.Scatter(x=x, y=mean, name=label, legendgroup=label, line={"color": colour, "width": 2}, mode="lines")
        )
    for label, level in (oracles or {}).items():
        figure.add_hline(y=level, line_dash="dash", line_color="#444444", annotation_text=label)
    if target is not None:
        figure.add_hline(
            y=target,
            line_dash="dot",
            line_color="#888888",
            annotation_text=f"target {target:g}",
            annotation_position="bottom right",
        )
    figure.update_layout(
        xaxis_title=AXES.get(against, against), yaxis_title=metric, template="plotly_white",
        legend={"orientation": "h", "y": 1.08}, margin={"l": 60, "r": 20, "t": 40, "b": 50}, hovermode="x unified",
    )  # fmt: skip
    return figure


def _points(rows: Rows, against: str) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(row[against], row["value"]) for row in rows if row.get("value") is not None]
    x, y = np.array(pairs or [(0.0, np.nan)], float).T
    return x, y


def _band(repeats: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if len(repeats) == 1:
        x, y = repeats[0]
        return x, y, np.zeros_like(y)
    start, end = max(x[0] for x, _ in repeats), min(x[-1] for x, _ in repeats)
    grid = np.linspace(start, max(start, end), GRID_POINTS)
    values = np.array([np.interp(grid, x, y) for x, y in repeats])
    return grid, values.mean(0), values.std(0)
