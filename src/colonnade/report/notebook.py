"""The report's figures of one run, by name."""

from collections.abc import Callable, Sequence

import plotly.graph_objects as go

from colonnade.protocol.errors import ConfigError
from colonnade.report.bars import bytes_by_kind, utilisation
from colonnade.report.figures import AXES, curve
from colonnade.report.lanes import staleness_histogram, staleness_map, timeline
from colonnade.report.records import Record, by_label, without_oracles
from colonnade.report.rounds import rates, speeds, steps

__all__ = ["figure", "race_figure"]

_FIGURES: dict[str, Callable[[Record], go.Figure]] = {
    "loss": lambda record: curve({record.label: [record.rows]}, _named(record, "loss"), value="loss"),
    "timeline": timeline,
    "staleness": staleness_map,
    "ages": lambda record: staleness_histogram({record.label: [record]}),
    "utilisation": lambda record: utilisation({record.label: [record]}),
    "tau": steps,
    "eta": rates,
    "speed": speeds,
    "bytes": lambda record: bytes_by_kind({record.label: [record]}),
}


def figure(record: Record, what: str) -> go.Figure:
    """Draw the metric against an axis, or another figure; the title says what is wrong with the run."""
    if what not in (*AXES, *_FIGURES):
        raise ConfigError("plot", what, f"choose one of {', '.join([*AXES, *_FIGURES])}")
    drawn = _against(record, what) if what in AXES else _FIGURES[what](record)
    if warnings := record.summary.get("warnings"):
        drawn.update_layout(title={"text": "<br>".join(warnings), "font": {"size": 12, "color": "#D55E00"}})
        drawn.update_layout(margin={"t": 60 + 16 * len(warnings)})
    return drawn


def _against(record: Record, what: str) -> go.Figure:
    return curve(
        {record.label: [record.rows]}, _named(record, record.summary["metric"]), what, record.summary["target"]
    )


def _named(record: Record, what: str) -> str:
    """Add which rows the curve is about."""
    return f"{what} ({'validation' if record.summary.get('validation_rows') else 'test'} rows)"


def race_figure(records: Sequence[Record], what: str) -> go.Figure:
    """Draw the metric of every label against an axis; a method that does not federate is drawn as a level."""
    if what not in AXES:
        raise ConfigError("plot", what, f"choose one of {', '.join(AXES)}")
    if not records:
        raise ConfigError("plot", what, "no run of the race has a result")
    groups, first = by_label(records), records[0]
    racing = without_oracles(groups)
    oracles = {
        label: sum(values) / len(values)
        for label, group in groups.items()
        if label not in racing and (values := [row for one in group if (row := one.rows[-1]["value"]) is not None])
    }
    lines = {label: [record.rows for record in group] for label, group in racing.items()}
    return curve(lines, _named(first, first.summary["metric"]), what, first.summary["target"], oracles)
