"""Figures against a setting: what a sweep, or a comparison with different settings of one method, shows.

A setting is varied if runs of the same method have different numbers for it in their config.toml. So folders of earlier
releases have these figures, too.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from math import log10
from typing import Any, NamedTuple

import plotly.graph_objects as go

from colonnade.experiments.ranking import mean_and_spread
from colonnade.report.records import Record
from colonnade.report.style import lines, titled
from colonnade.results.verdict import flaws_of

__all__ = ["metric_against", "time_against", "varied"]

Groups = Mapping[str, Sequence[Record]]
WIDE = 8.0  # the largest value over the smallest from which an axis is logarithmic
MOST_KEYS = 4
SKIPPED = ("train.seed", "data.split_seed")


class Varied(NamedTuple):
    """A setting with several values: of each line, by its name, the value and the label of each point."""

    key: str
    lines: dict[str, list[tuple[float, str]]]

    @property
    def values(self) -> list[float]:
        """All values, in order."""
        return sorted({value for points in self.lines.values() for value, _ in points})


def varied(groups: Groups) -> list[Varied]:
    """Return the settings with several values among runs of one method; labels of other settings are other lines."""
    settings = {label: dict(_numbers(_tables(group[0].config))) for label, group in groups.items()}
    by_method: dict[str, list[str]] = {}
    for label, group in groups.items():
        by_method.setdefault(group[0].summary["protocol"], []).append(label)
    keys = dict.fromkeys(key for labels in by_method.values() for key in _differing([settings[one] for one in labels]))
    found = [_lines_of(key, list(keys), by_method, settings) for key in list(keys)[:MOST_KEYS]]
    return [setting for setting in found if setting.lines]


def _tables(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}


def _numbers(tables: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield all numbers of a config by their dotted keys; lists are no settings of one number."""
    if isinstance(tables, dict):
        for name, inner in tables.items():
            yield from _numbers(inner, f"{path}.{name}" if path else name)
    elif isinstance(tables, int | float) and not isinstance(tables, bool) and path not in SKIPPED:
        yield path, float(tables)


def _differing(settings: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the keys that all of them have, with different values."""
    common = [key for key in settings[0] if all(key in one for one in settings)]
    return [key for key in common if len({one[key] for one in settings}) > 1]


def _lines_of(
    key: str, keys: Sequence[str], by_method: Mapping[str, list[str]], settings: Mapping[str, Mapping[str, float]]
) -> Varied:
    found: dict[str, list[tuple[float, str]]] = {}
    for method, labels in by_method.items():
        own = [label for label in labels if key in settings[label]]
        others = [other for other in keys if other != key and len({settings[one].get(other) for one in own}) > 1]
        for label in own:
            rest = [f"{other.rpartition('.')[2]} {settings[label][other]:g}" for other in others]
            found.setdefault(", ".join([method, *rest]), []).append((settings[label][key], label))
    several = {name: sorted(points) for name, points in found.items() if len({value for value, _ in points}) > 1}
    return Varied(key, several)


def metric_against(groups: Groups, setting: Varied) -> go.Figure:
    """Draw the metric at the end, on the test rows: a line for each method, with the deviation over seeds.

    A cross marks a point some of whose runs are not results; the hover text says why.
    """
    first = next(iter(groups.values()))[0].summary
    return _drawn(groups, setting, "value", f"{first['metric']} (test rows)")


def time_against(groups: Groups, setting: Varied) -> go.Figure:
    """Draw the time to the target; a point is left out if no seed reached it, and open if not all did."""
    first = next(iter(groups.values()))[0].summary
    figure = _drawn(groups, setting, "time_to_target_s", f"clock to {first['metric']} {first['target']:g} (s)")
    figure.update_yaxes(rangemode="tozero")
    return figure


def _drawn(groups: Groups, setting: Varied, what: str, title: str) -> go.Figure:
    figure = go.Figure()
    for name, line in lines(setting.lines).items():
        points = [_point(groups[label], value, what) for value, label in setting.lines[name]]
        known = [point for point in points if point is not None]
        several = any(point.spread for point in known)
        figure.add_trace(
            go.Scatter(
                x=[point.x for point in known],
                y=[point.y for point in known],
                error_y={"type": "data", "array": [point.spread for point in known], "width": 3} if several else None,
                mode="lines+markers",
                name=name,
                line=line,
                marker={"symbol": [point.symbol for point in known], "size": 9},
                text=[point.text for point in known],
                hovertemplate="%{x:g}: %{y:.4g}%{text}",
            )
        )
    _show_all_values(figure, setting.values)
    return titled(figure, setting.key, title, showlegend=True)


def _show_all_values(figure: go.Figure, values: Sequence[float]) -> None:
    """Set the range of the x axis: values without a point, too; a logarithmic axis if the values are far apart."""
    low, high = values[0], values[-1]
    if low > 0 and high / low >= WIDE:
        figure.update_xaxes(type="log", tickvals=values, ticktext=[f"{value:g}" for value in values])
        low, high = log10(low), log10(high)
    margin = 0.06 * (high - low)
    figure.update_xaxes(range=[low - margin, high + margin])


class Point(NamedTuple):
    """A point of a line: means over seeds."""

    x: float
    y: float
    spread: float
    symbol: str
    text: str


def _point(group: Sequence[Record], x: float, what: str) -> Point | None:
    found = mean_and_spread([record.summary.get(what) for record in group])  # type: ignore[misc]
    if found is None:
        return None
    flaw = flaws_of([record.summary for record in group])
    missing = "" if found.complete else f" ({found.known} of {found.runs} seeds)"
    symbol = "x" if flaw else "circle" if found.complete else "circle-open"
    return Point(x, found.mean, found.spread, symbol, missing + (f" ({flaw})" if flaw else ""))
