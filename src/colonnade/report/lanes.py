"""Rows over the clock: what every role did, and how old the embeddings of every party were."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go

from colonnade.protocol.errors import ConfigError
from colonnade.report.records import Record
from colonnade.report.style import STATES, UNKNOWN, lines, titled

__all__ = ["staleness_histogram", "staleness_map", "timeline"]

SHOWN_BINS = 400
SHOWN_ROLES = 60
COLUMNS = 200  # of a heat map
WORDS = {"transit": "in transit", UNKNOWN: "not known"}  # if the name is not the word to show
BLANK = {"symbol": "square-open", "size": 12, "color": STATES["waiting"]}


def timeline(record: Record) -> go.Figure:
    """Draw a row per role; in every bin of the clock, its height is divided among the states.

    The figure is one heat map: a role's row consists of `parts` thin rows, filled from below in proportion to the
    states' shares. What is left after waiting is not known, and stays blank.
    """
    content = record.timeline
    if content is None:
        raise ConfigError("plot", "timeline", "the run has no timeline.json, because an older release made it")
    roles = content["roles"][:SHOWN_ROLES]
    parts = 10 if len(roles) <= 20 else 4
    found = _shares(content, len(roles))
    names = [name for name in STATES if name in found]
    shares = np.array([found[name] for name in names])  # (state, role, bin)
    x = (np.arange(shares.shape[2]) + 0.5) * content["bin_s"]
    figure = go.Figure(
        go.Heatmap(
            x=x,
            y=(np.arange(len(roles) * (parts + 1)) + 0.5) / (parts + 1) - 0.5,
            z=_stacked(shares, parts),
            zmin=0,
            zmax=len(names) - 1,
            colorscale=_steps([STATES[name] for name in names]),
            showscale=False,
            hoverinfo="skip",
        ),
    )
    words = WORDS if "transit" in found else WORDS | {"waiting": "waiting or in transit"}
    for trace in _hover(found, roles, x, words):
        figure.add_trace(trace)
    for name in found:
        marker = {"symbol": "square", "size": 12, "color": STATES[name]} if name != UNKNOWN else BLANK
        name = words.get(name, name)
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", name=name, marker=marker, hoverinfo="skip"))
    figure.update_yaxes(
        tickvals=list(range(len(roles))), ticktext=roles, range=[len(roles) - 0.5, -0.5], zeroline=False
    )
    figure.update_xaxes(range=[0, content["end_s"] or 1], showgrid=False)
    figure.update_yaxes(showgrid=False)
    return titled(figure, "clock (s)", "", 110 + (30 if parts > 4 else 14) * max(len(roles), 1))


def _shares(content: Mapping[str, Any], roles: int) -> dict[str, np.ndarray]:
    """Return by state (role, bin). Runs of processes have no transit; in the simulator nothing is unknown."""
    names = ("busy", "transit", "offline", UNKNOWN)
    found = {name: np.array(content[name][:roles]) for name in names if content.get(name) is not None}
    waiting = np.clip(1 - np.sum(list(found.values()), 0), 0, None)
    unknown = found.pop(UNKNOWN, np.zeros(0))
    return found | {"waiting": waiting} | ({UNKNOWN: unknown} if unknown.any() else {})


def _hover(
    shares: Mapping[str, np.ndarray], roles: Sequence[str], x: np.ndarray, words: Mapping[str, str]
) -> list[go.Heatmap]:
    """Return invisible rows that carry the hover texts."""
    percent = np.round(np.stack(list(shares.values()), -1) * 100).astype(int)  # (role, bin, state)
    says = "".join(f"<br>{words.get(name, name)} %{{customdata[{index}]}} %" for index, name in enumerate(shares))
    return [
        go.Heatmap(
            x=x,
            y=[index - 0.5, index + 0.5],
            z=np.zeros((1, len(x)), int),
            customdata=percent[index : index + 1],
            opacity=0,
            showscale=False,
            hovertemplate=f"{role}, %{{x:.2f}} s{says}<extra></extra>",
        )
        for index, role in enumerate(roles)
    ]


def _stacked(shares: np.ndarray, parts: int) -> list[list[int | None]]:
    """(state, role, bin) → the state of every thin row; rows run downwards, so fill from their end."""
    edges = np.cumsum(shares, 0)
    height = (np.arange(parts) + 0.5) / parts
    state = (height[None, :, None] > edges[:, :, None, :]).sum(0)[:, ::-1]  # (role, part, bin)
    blank = len(shares)
    gap = np.full((len(state), 1, state.shape[2]), blank)
    rows = np.concatenate([state, gap], 1).reshape(-1, state.shape[2])
    return [[None if value == blank else value for value in row] for row in rows.tolist()]


def _steps(palette: Sequence[str]) -> list[list[Any]]:
    """Return a colour scale without transitions."""
    edges = np.linspace(0, 1, len(palette) + 1).tolist()
    return [[edge, colour] for i, colour in enumerate(palette) for edge in (edges[i], edges[i + 1])]


def staleness_map(record: Record, highest: float | None = None) -> go.Figure:
    """Draw party × clock: the mean age, in updates, of each party's embeddings used since the last evaluation."""
    used = [row for before, row in pairwise([{"update": -1}, *record.rows]) if row["update"] > before["update"]]
    rows = used[:: max(1, len(used) // COLUMNS)]  # without an update between two evaluations, no embedding was used
    parties = record.parties[:SHOWN_ROLES]
    ages = np.array([row["staleness"][: len(parties)] for row in rows], float).reshape(len(rows), -1).T
    figure = go.Figure(
        go.Heatmap(
            x=[row["clock_s"] for row in rows],
            y=parties[: len(ages)],
            z=ages.round(2),
            zmin=0,
            zmax=highest,
            colorscale="Cividis",
            colorbar={"title": {"text": "updates"}, "thickness": 12},
            hovertemplate="%{y}, %{x:.2f} s: %{z:.1f} updates<extra></extra>",
        )
    )
    figure.update_yaxes(autorange="reversed", type="category")
    return titled(figure, "clock (s)", "", 120 + 26 * max(len(parties), 1))


def staleness_histogram(groups: Mapping[str, Sequence[Record]]) -> go.Figure:
    """Draw how old the embeddings were that the server used, as shares of all uses."""
    figure = go.Figure()
    for label, line in lines(groups).items():
        found = [record.staleness for record in groups[label] if record.staleness and record.staleness["counts"]]
        if not found:
            continue
        width = max(content["width"] for content in found)
        counts = _sum([_widened(content, width) for content in found])
        x, share = np.arange(len(counts)) * width, counts / counts.sum() / width
        figure.add_trace(
            go.Scatter(
                x=x,
                y=share,
                name=label,
                legendgroup=label,
                mode="lines",
                line={**line, "shape": "hv"},
                hovertemplate="%{x} updates old: %{y:.2%}",
            )
        )
    figure.update_yaxes(tickformat=".1%", rangemode="tozero")
    return titled(figure, "age (updates since it was computed)", "share of the embeddings used")


def _widened(content: Mapping[str, Any], width: int) -> np.ndarray:
    counts = np.array(content["counts"], np.int64)
    factor = width // content["width"]
    return np.pad(counts, (0, -len(counts) % factor)).reshape(-1, factor).sum(1)


def _sum(histograms: Sequence[np.ndarray]) -> np.ndarray:
    total = np.zeros(max(map(len, histograms)), np.int64)
    for histogram in histograms:
        total[: len(histogram)] += histogram
    return total
