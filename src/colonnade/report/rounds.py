"""Over the clock and over rounds: how fast every role computed, and the local steps and rates of flex."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from colonnade.protocol.errors import ConfigError
from colonnade.protocol.messages import Array
from colonnade.report.records import Record
from colonnade.report.style import lines, titled

__all__ = ["SHOWN", "has_rounds", "has_speeds", "rates", "speeds", "steps", "uneven_speeds"]

SHOWN = 16  # roles; more lines cannot be told apart
BINS = 60  # of the clock
ALIKE = 1.05  # speeds that differ by less count as the same: a clock counts whole nanoseconds
FAR = 10.0  # the fastest over the slowest from which the axis of speeds is logarithmic


def has_rounds(record: Record) -> bool:
    """Whether the run recorded rounds."""
    return any(row.get("round") for row in record.rows)


def steps(record: Record) -> go.Figure:
    """Draw τ_k: the local steps of each role, round by round."""
    return _by_round(record, "tau", "τ: local steps")


def rates(record: Record) -> go.Figure:
    """Draw η_k: the factor of each role's own rate, round by round."""
    return _by_round(record, "eta", "η: factor of the role's rate")


def _by_round(record: Record, what: str, title: str) -> go.Figure:
    if not has_rounds(record):
        raise ConfigError("plot", what, "the run recorded no rounds: only flex and its relatives do")
    rounds = [number for row in record.rows for number in row.get("round", ())]
    entries = [entry for row in record.rows for entry in row.get(what, ())]
    return titled(_of_roles(rounds, _roles(record), list(zip(*entries, strict=True))), "round", title, showlegend=True)


def _roles(record: Record) -> list[str]:
    return ["server", *record.parties]


def has_speeds(record: Record) -> bool:
    """Whether the run recorded how fast its parties computed: in the simulator, with a clock that charges computing."""
    found: dict[str, Any] | None = (record.timeline or {}).get("speed")
    return found is not None and any(any(row) for row in found["seconds"][1:])


def uneven_speeds(record: Record) -> bool:
    """Whether the parties, or the times, differ in speed: otherwise there is nothing to see."""
    if not has_speeds(record):
        return False
    speed = _speed(record)[1]
    return bool(np.nanmax(speed) > ALIKE * np.nanmin(speed))


def speeds(record: Record) -> go.Figure:
    """Draw the batches per second of each party, while it computed, over the clock."""
    if not has_speeds(record):
        raise ConfigError("plot", "speed", "the run has no speeds: only the simulator of this release records them")
    clock, speed = _speed(record)
    values = [[None if np.isnan(one) else one for one in row] for row in speed.tolist()]
    figure = _of_roles(clock.tolist(), record.parties, values)
    if np.nanmax(speed) > FAR * np.nanmin(speed):
        figure.update_yaxes(type="log")
    else:
        figure.update_yaxes(rangemode="tozero")
    return titled(figure, "clock (s)", "batches per second, while it computes", showlegend=True)


def _speed(record: Record) -> tuple[Array, Array]:
    """Return the middle of each bin, in seconds, and the speed of each party there; NaN: it began no job."""
    assert record.timeline is not None
    found, roles = record.timeline["speed"], record.timeline["roles"]
    parties = [place for place, role in enumerate(roles) if role != "server"]
    width = max(1, -(-len(found["batches"][0]) // BINS))
    batches, seconds = (_wider(np.array(found[name])[parties], width) for name in ("batches", "seconds"))
    speed = np.divide(batches, seconds, out=np.full(batches.shape, np.nan), where=seconds > 0)
    return (np.arange(speed.shape[1]) + 0.5) * width * found["bin_s"], speed


def _wider(bins: Array, width: int) -> Array:
    """Add up neighbouring bins."""
    wider: Array = np.pad(bins, ((0, 0), (0, -bins.shape[1] % width))).reshape(len(bins), -1, width).sum(2)
    return wider


def _of_roles(x: Sequence[float], roles: Sequence[str], values: Sequence[Sequence[Any]]) -> go.Figure:
    """Draw a line with steps for each role; a place without a value is left out."""
    figure = go.Figure()
    pairs = dict(list(zip(roles, values, strict=False))[:SHOWN])
    for name, line in lines(pairs).items():
        known = [(place, value) for place, value in zip(x, pairs[name], strict=True) if value is not None]
        if known:
            places, own = zip(*known, strict=True)
            drawn = {**line, "shape": "hvh"}
            figure.add_trace(go.Scatter(x=places, y=own, name=name, mode="lines", line=drawn, hovertemplate="%{y:.4g}"))
    figure.update_layout(hovermode="x unified")
    return figure
