"""The report's figures of one run, each drawn again only when its content has changed visibly.

plotly.py takes 20 to 100 ms for a figure, and the page asks every second.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import plotly.graph_objects as go

from colonnade.report.bars import bytes_by_kind, epsilon_against_budget, utilisation
from colonnade.report.figures import curve
from colonnade.report.lanes import staleness_histogram, staleness_map, timeline
from colonnade.report.plain import plain
from colonnade.report.records import Record

__all__ = ["Figures"]

Drawing = tuple[str, Hashable, Callable[[], go.Figure]]  # the name, what it shows in short, and how to draw it


class Figures:
    """Keeps the figures that the page has."""

    def __init__(self) -> None:
        self._drawn: dict[str, tuple[Hashable, dict[str, Any]]] = {}

    def of(self, record: Record | None, privacy: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return the figures that the run has something for, as JSON."""
        found = {}
        for name, shown, draw in _drawings(record, privacy) if record is not None else ():
            if self._drawn.get(name, (None,))[0] != shown:
                self._drawn[name] = shown, plain(draw())
            found[name] = self._drawn[name][1]
        return found


def _drawings(record: Record, privacy: Mapping[str, Mapping[str, Any]]) -> Iterator[Drawing]:
    summary, alone = record.summary, {record.label: [record]}
    runs, rows = {record.label: [record.rows]}, (len(record.rows), record.rows[-1]["clock_s"] if record.rows else 0)
    if record.rows:
        yield "metric", rows, lambda: curve(runs, summary["metric"], "clock_s", summary["target"])
        yield "loss", rows, lambda: curve(runs, "loss", "clock_s", value="loss")
    if record.timeline is not None:
        yield "timeline", (record.timeline["end_s"], summary["status"]), lambda: timeline(record)
    if summary["staleness"]["max"] > 0 and any(row["update"] > 0 for row in record.rows):
        yield "ages", rows, lambda: staleness_map(record)
        yield "staleness", rows, lambda: staleness_histogram(alone)
    if sizes := summary["bytes_by_kind"]:
        yield "bytes", tuple(f"{kind} {size:.2g}" for kind, size in sizes.items()), lambda: bytes_by_kind(alone)
    if shares := summary["utilisation"]:
        yield "utilisation", tuple(f"{role} {share:.2f}" for role, share in shares.items()), lambda: utilisation(alone)
    if privacy:
        yield "privacy", repr(privacy), lambda: epsilon_against_budget(privacy)
