"""What a result or a comparison shows in a notebook: small tables, escaped, without scripts."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import polars

from colonnade.report.records import Record
from colonnade.report.tables import race, remarks, taking_no_part, winners
from colonnade.results.summary import Summary
from colonnade.results.verdict import flaw_of

__all__ = ["race_html", "summary_html", "table_html"]

# A notebook has its own styles: add only what the tables need, and only inside this element.
_STYLE = (
    "<style>.colonnade table{border-collapse:collapse}.colonnade td,.colonnade th{text-align:right;padding:2px 8px}"
    ".colonnade td:first-child,.colonnade th:first-child,.colonnade .prose td{text-align:left}"
    ".colonnade .best{font-weight:bold}.colonnade .quiet{opacity:.7;font-size:90%}"
    ".colonnade h2{font-size:100%;margin:.6em 0 .2em}.colonnade .scroll{overflow-x:auto}</style>"
)


def _cell(content: str) -> str:
    return f'<div class="colonnade">{_STYLE}{content}</div>'


def summary_html(summary: Summary) -> str:
    """Return the table of one run."""
    flaw, validation = flaw_of(summary), summary["validation_rows"]
    rows = [(f"{summary['metric']}, {summary['test_rows']:,} test rows", _number(summary["value"], flaw))]
    if validation:
        name = f"{summary['metric']}, {validation:,} validation rows"
        rows.append((name, _number(summary["validation_value"], flaw)))
    if summary["target"] is not None:
        reached = summary["time_to_target_s"]
        rows.append((f"seconds to {summary['target']:g}", "not reached" if reached is None else f"{reached:.2f}"))
    rows += [
        ("updates, epochs", f"{summary['updates']:,}, {summary['epochs']:.2f}"),
        ("virtual clock, real time", f"{summary['clock_s']:.2f} s, {summary['wall_s']:.1f} s"),
        ("sent up, down", f"{summary['bytes_up'] / 1e6:.2f} MB, {summary['bytes_down'] / 1e6:.2f} MB"),
        ("staleness, mean and most", f"{summary['staleness']['mean']:.1f}, {summary['staleness']['max']:.0f}"),
    ]
    if (spent := summary["privacy"]) is not None:
        rows.append(("ε at δ", f"{_plain(spent['epsilon'])} at {spent['delta']:g}"))
    head = f"<strong>{escape(summary['protocol'])}: {escape(summary['status'])}</strong>"
    told = "".join(f"<br>{escape(text)}" for text in (*summary["warnings"], summary["note"]) if text)
    body = "".join(f"<tr><td>{escape(name)}</td><td>{text}</td></tr>" for name, text in rows)
    return _cell(f"<p>{head}{told}</p><table>{body}</table>")


def race_html(records: Sequence[Record], unsuitable: Mapping[str, str]) -> str:
    """Return the table of a comparison, as in the report."""
    table = race(records) if records else ""
    return _cell(winners(records) + table + remarks(records) + taking_no_part(unsuitable))


def table_html(frame: polars.DataFrame, best: Sequence[Mapping[str, Any]], unsuitable: Mapping[str, str]) -> str:
    """Return the table of a sweep, with the rows of the best points marked."""
    names = [name for name in frame.columns if frame[name].null_count() < len(frame)]
    rows = []
    for row in frame.iter_rows(named=True):
        marked = any(all(str(row[key]) == str(value) for key, value in point.items()) for point in best)
        cells = "".join(f"<td>{escape(_plain(row[name]))}</td>" for name in names)
        which = ' class="best"' if marked else ""
        rows.append(f"<tr{which}>{cells}</tr>")
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    return _cell(f"<div class='scroll'><table><tr>{head}</tr>{''.join(rows)}</table></div>{taking_no_part(unsuitable)}")


def _number(value: float | None, flaw: str) -> str:
    """Strike out a number of the evaluations if the run is not a result."""
    text = "–" if value is None else f"{value:.4f}"
    return f"<s>{text}</s>" if flaw and value is not None else text


def _plain(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
