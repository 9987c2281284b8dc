"""The report's figures of one run, by name."""

from collections.abc import Callable

import plotly.graph_objects as go

from colonnade.protocol.errors import ConfigError
from colonnade.report.bars import bytes_by_kind, utilisation
from colonnade.report.figures import AXES, curve
from colonnade.report.lanes import staleness_histogram, staleness_map, timeline
from colonnade.report.records import Record

__all__ = ["figure"]

_FIGURES: dict[str, Callable[[Record], go.Figure]] = {
    "loss": lambda record: curve({record.label: [record.rows]}, "loss", value="loss"),
    "timeline": timeline,
    "staleness": staleness_map,
    "ages": lambda record: staleness_histogram({record.label: [record]}),
    "utilisation": lambda record: utilisation({record.label: [record]}),
    "bytes": lambda record: bytes_by_kind({record.label: [record]}),
}


def figure(record: Record, what: str) -> go.Figure:
    """The metric against an axis, or another figure."""
    if what in AXES:
        return curve({record.label: [record.rows]}, record.summary["metric"], what, record.summary["target"])
    if what not in _FIGURES:
        raise ConfigError("plot", what, f"choose one of {', '.join([*AXES, *_FIGURES])}")
    return _FIGURES[what](record)
