"""Curves: the metric or the loss against the clock, updates or bytes; mean and band over seeds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from colonnade.report.style import PALETTE, lines, titled

__all__ = ["AXES", "PALETTE", "curve"]

AXES = {
    "clock_s": "clock (s)",
    "update": "updates of the global model",
    "epochs": "epochs",
    "megabytes": "data sent, both ways (MB)",
    "bytes_up": "bytes uploaded",
    "wall_s": "real time (s)",
}
GRID_POINTS = 200
NEARLY, MOST, ROOM = 0.9, 0.75, 1.5  # share of a curve's way; share of the curves; factor on the place they reach
STEEP = 0.2  # share of the values in view that is left out: those nearest to the curves' beginnings

Rows = Sequence[Mapping[str, Any]]
Points = tuple[np.ndarray, np.ndarray]


def curve(
    runs: Mapping[str, Sequence[Rows]],
    metric: str,
    against: str = "clock_s",
    target: float | None = None,
    oracles: Mapping[str, float] | None = None,
    value: str = "value",
) -> go.Figure:
    """Draw one line per label; several runs of a label (seeds) become their mean and a band of one deviation.

    An oracle does not federate, so it has no clock and no bytes: its final level is drawn instead.
    """
    figure = go.Figure()
    for label, line in lines(runs).items():
        x, mean, spread = _band([_points(rows, against, value) for rows in runs[label]])
        if len(runs[label]) > 1:
            outline = go.Scatter(
                x=np.concatenate([x, x[::-1]]), y=np.concatenate([mean + spread, (mean - spread)[::-1]]),
                fill="toself", fillcolor=line["color"], opacity=0.15, line={"width": 0}, hoverinfo="skip",
                legendgroup=label, showlegend=False,
            )  # fmt: skip
            figure.add_trace(outline)
        hover = f"%{{y:.4g}} ± %{{customdata:.2g}}<extra>{_plain(label)}</extra>"
        sure = {"customdata": spread, "hovertemplate": hover} if len(runs[label]) > 1 else {}
        figure.add_trace(go.Scatter(x=x, y=mean, name=label, legendgroup=label, line=line, mode="lines", **sure))
    _levels(figure, target, oracles or {}, "top left" if value == "value" else "bottom right")
    _first_view(figure)
    return titled(figure, AXES.get(against, against), metric, hovermode="x unified")


def _first_view(figure: go.Figure) -> None:
    """Set axis ranges that show where the curves move; a double click on the chart shows everything.

    The x axis ends soon after three quarters of the curves have risen (or fallen) nearly as far as they ever do. The y
    axis leaves out the steep beginnings, which would compress everything else into a narrow band.
    """
    drawn = [(np.asarray(trace.x, float), np.asarray(trace.y, float)) for trace in figure.data if trace.mode == "lines"]
    settled = [place for x, y in drawn if (place := _settled(x, y)) is not None]
    if len(drawn) < 2 or not settled:
        return
    last = max(x[-1] for x, _ in drawn)
    end = min(last, ROOM * float(np.quantile(settled, MOST)))
    if not end > 0:
        return
    seen = np.concatenate([y[(x <= end) & np.isfinite(y)] for x, y in drawn])
    rising = np.median([y[np.isfinite(y)][-1] - y[np.isfinite(y)][0] for _, y in drawn if np.isfinite(y).any()]) > 0
    low, high = np.quantile(seen, (STEEP, 1) if rising else (0, 1 - STEEP))
    levels = [shape.y0 for shape in figure.layout.shapes]
    low, high = min([low, *levels]), max([high, *levels])
    margin = 0.05 * (high - low)
    if margin > 0:
        figure.update_xaxes(range=[0, end])
        figure.update_yaxes(range=[low - margin, high + margin])


def _settled(x: np.ndarray, y: np.ndarray) -> float | None:
    """Return the place where a curve has first covered nearly all of its way."""
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    if len(y) < 2:
        return None
    way = np.abs(y - y[0])
    return float(x[np.argmax(way >= NEARLY * way.max())])


def _plain(label: str) -> str:
    """Escape a label: plotly reads hover texts as HTML."""
    return label.replace("&", "&amp;").replace("<", "&lt;")


def _levels(figure: go.Figure, target: float | None, oracles: Mapping[str, float], place: str) -> None:
    for label, level in oracles.items():
        figure.add_hline(
            y=level, line_dash="dash", line_color="#888888", line_width=1, annotation_text=_plain(label),
            annotation_position=place,
        )  # fmt: skip
    if target is not None:
        figure.add_hline(
            y=target, line_dash="dot", line_color="#888888", annotation_text=f"target {target:g}",
            annotation_position="bottom right",
        )  # fmt: skip


def _points(rows: Rows, against: str, value: str) -> Points:
    pairs = [(_place(row, against), row[value]) for row in rows if row.get(value) is not None]
    x, y = np.array(pairs or [(0.0, np.nan)], float).T
    return _thinned(x, y)


def _place(row: Mapping[str, Any], against: str) -> float:
    place: float = (row["bytes_up"] + row["bytes_down"]) / 1e6 if against == "megabytes" else row[against]
    return place


def _thinned(x: np.ndarray, y: np.ndarray) -> Points:
    """Keep at most a few hundred points: no screen shows more."""
    if len(x) <= 2 * GRID_POINTS:
        return x, y
    keep = np.linspace(0, len(x) - 1, 2 * GRID_POINTS).round().astype(int)
    return x[keep], y[keep]


def _band(repeats: list[Points]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if len(repeats) == 1:
        x, y = repeats[0]
        return x, y, np.zeros_like(y)
    start, end = max(x[0] for x, _ in repeats), min(x[-1] for x, _ in repeats)
    grid = np.linspace(start, max(start, end), GRID_POINTS)
    values = np.array([np.interp(grid, x, y) for x, y in repeats])
    return grid, values.mean(0), values.std(0)
