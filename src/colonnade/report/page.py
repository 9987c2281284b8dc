"""One self-contained HTML page from a run's or a comparison's folder."""

import html
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from plotly.io import to_html

from colonnade.protocol.errors import ConfigError
from colonnade.report.figures import curve

__all__ = ["write_report"]

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:1000px;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
table{border-collapse:collapse;width:100%;display:block;overflow-x:auto}td,th{padding:.3rem .7rem;text-align:right;
border-bottom:1px solid #ddd;white-space:nowrap}td:first-child,th:first-child{text-align:left}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}pre{background:#f5f5f5;padding:1rem;overflow-x:auto}
"""
_COLUMNS = ("label", "seed", "status", "value", "time_to_target_s", "clock_s", "updates", "bytes_up", "bytes_down")


def write_report(folder: str | Path) -> Path:
    """report.html inside the folder."""
    folder = Path(folder)
    runs = _runs(folder)
    summaries = [summary for summary, _ in runs]
    grouped: dict[str, list[Any]] = {}
    for summary, rows in runs:
        grouped.setdefault(summary["label"], []).append(rows)
    oracles = _levels(summaries)
    if len(grouped) > len(oracles):  # a lone oracle is shown as a curve after all
        grouped = {label: rows for label, rows in grouped.items() if label not in oracles}
    metric, target = summaries[0]["metric"], summaries[0]["target"]
    figures = [curve(grouped, metric, axis, target, oracles) for axis in ("clock_s", "bytes_up")]
    titles = (f"{metric} against the clock", f"{metric} against bytes uploaded")
    parts = [
        f"<h2>{title}</h2>{to_html(figure, full_html=False, include_plotlyjs=index == 0)}"
        for index, (title, figure) in enumerate(zip(titles, figures, strict=True))
    ]
    config = next(folder.glob("**/config.toml")).read_text(encoding="utf-8")
    body = f"<h1>Colonnade: {html.escape(folder.name)}</h1>{''.join(parts)}<h2>Runs</h2>{_table(summaries)}"
    page = "<!doctype html><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
    page += f"<title>Colonnade</title><style>{_STYLE}</style>{body}<h2>Config</h2><pre>{html.escape(config)}</pre>"
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _runs(folder: Path) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    found = [folder] if (folder / "summary.json").exists() else sorted(p.parent for p in folder.glob("*/summary.json"))
    if not found:
        raise ConfigError("DIR", str(folder), "holds neither a finished run nor a comparison (no summary.json)")
    runs = []
    for path in found:
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        summary["label"] = path.name.rpartition("-seed")[0] or summary["protocol"]
        lines = (path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        runs.append((summary, [json.loads(line) for line in lines]))
    return runs


def _levels(summaries: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Where the oracles end, on average over seeds."""
    ends: dict[str, list[float]] = {}
    for summary in summaries:
        if summary["protocol"] == "centralised" and summary["value"] is not None:
            ends.setdefault(summary["label"], []).append(summary["value"])
    return {label: mean(values) for label, values in ends.items()}


def _table(summaries: Sequence[dict[str, Any]]) -> str:
    head = "".join(f"<th>{column}</th>" for column in _COLUMNS)
    rows = [
        "".join(f"<td>{html.escape(_cell(summary.get(column)))}</td>" for column in _COLUMNS) for summary in summaries
    ]
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
