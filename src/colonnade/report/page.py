"""One self-contained HTML page from the folder of a run or a comparison.

plotly.js and the figures are inside, compressed: as plain text plotly.js alone would be 4.8 MB. A content security
policy forbids the page to load anything from anywhere.
"""

import base64
import gzip
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from itertools import chain
from pathlib import Path

from plotly.offline import get_plotlyjs

from colonnade import __version__
from colonnade.protocol.strict_json import to_json
from colonnade.report.attack import attack_section, attack_table
from colonnade.report.plain import asset, plain
from colonnade.report.records import (
    Progress,
    Record,
    by_label,
    load_about,
    load_attack,
    load_records,
    load_unsuitable,
    without_oracles,
)
from colonnade.report.scenario import scenario
from colonnade.report.sections import Chart, Section, sections
from colonnade.report.style import lines
from colonnade.report.tables import all_runs, privacy, race, remarks, taking_no_part, what_is_revealed, winners

__all__ = ["write_report"]

POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:"
)
SECTIONS = 7  # at most, for the progress bar
LOADING, DRAWING = 0.4, 0.8  # the part of the work that is done after each


def write_report(folder: str | Path, on_progress: Progress = lambda text, done: None) -> Path:
    """Write report.html inside the folder; returns its path."""
    folder = Path(folder)
    records = load_records(folder, lambda text, done: on_progress(text, LOADING * done))
    attack = load_attack(folder)
    drawn: list[Section] = []
    for section in chain([attack_section(attack)] if attack else [], sections(records) if records else []):
        on_progress(f"draws: {section.title}", LOADING + (DRAWING - LOADING) * len(drawn) / SECTIONS)
        drawn.append(section)
    on_progress("writes the page", DRAWING)
    path = folder / "report.html"
    results = (attack_table(attack) if attack else "") + _race(records, load_unsuitable(folder))
    results = scenario(records, load_about(folder)) + results
    path.write_text(_page(folder.resolve().name, records, drawn, _command(folder), results), encoding="utf-8")
    on_progress("done", 1.0)
    return path


def _command(folder: Path) -> str:
    path = folder / "command.txt"
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""


def _page(name: str, records: Sequence[Record], drawn: Sequence[Section], command: str, results: str) -> str:
    figures = {chart.name: plain(chart.figure) for section in drawn for chart in section.charts}
    content = to_json(figures, compact=True)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(name)} – Colonnade</title><style>{asset("page.css")}</style></head><body>
<header><h1>{escape(name)}</h1><span class="quiet">{_about(records)}</span>
<button id="theme" type="button">Dark</button></header>
<p id="trouble"><noscript>The charts need JavaScript.</noscript></p>
{results}
{"".join(_section(section) for section in drawn)}
{privacy(records)}
{what_is_revealed(records)}
<h2>How it was made</h2>{_made(records, command)}
<script type="text/plain" id="figures">{_packed(content)}</script>
<script type="text/plain" id="plotly">{_library()}</script>
<script>{asset("charts.js")}{asset("page.js")}</script>
</body></html>
"""


def _race(records: Sequence[Record], unsuitable: Mapping[str, str]) -> str:
    logarithmic = '<button id="logarithmic" type="button" aria-pressed="false">log x</button>'
    if not records:
        return f'<div id="legend" hidden>{logarithmic}</div>'  # the page's script needs it
    tables = f"{winners(records)}{race(records)}{taking_no_part(unsuitable)}{remarks(records)}"
    return f'{tables}\n<div id="legend">{_legend(records)}{logarithmic}</div>'


def _about(records: Sequence[Record]) -> str:
    if not records:
        return "attack"
    summary, labels = records[0].summary, by_label(records)
    seeds = max(len(group) for group in labels.values())
    methods = f"{len(labels)} methods" if len(labels) > 1 else records[0].label
    what = f"{methods} × {seeds} seeds" if seeds > 1 else f"{methods}, seed {summary['seed']}"
    return escape(f"{what}, {summary['parties']} parties, driver {summary['driver']}")


def _legend(records: Sequence[Record]) -> str:
    buttons = []
    for label, line in lines(without_oracles(by_label(records))).items():
        style = f"border-color:{line['color']};border-top-style:{_BORDERS[line['dash']]}"
        text = f'<i style="{style}"></i>{escape(label)}'
        buttons.append(f'<button type="button" aria-pressed="true" value="{escape(label)}">{text}</button>')
    return "".join(buttons)


_BORDERS = {"solid": "solid", "dash": "dashed", "dot": "dotted", "dashdot": "double"}


def _section(section: Section) -> str:
    charts = "".join(_chart(chart) for chart in section.charts)
    kind = "" if section.wide else ' class="grid"'
    return f"<h2>{escape(section.title)}</h2><p class='quiet'>{escape(section.text)}</p><div{kind}>{charts}</div>"


def _chart(chart: Chart) -> str:
    label = f' data-label="{escape(chart.label)}"' if chart.label else ""
    height = chart.figure.layout.height  # reserved, so that the page does not jump while charts are drawn
    return (
        f"<section{label}><h3>{escape(chart.title)}</h3>"
        f'<div class="chart" id="{escape(chart.name)}" style="min-height:{height}px"></div></section>'
    )


def _made(records: Sequence[Record], command: str) -> str:
    typed = f"<pre>{escape(command)}</pre>" if command else "<p class='quiet'>Made from Python, without a command.</p>"
    configs = "".join(
        f"<details><summary>config.toml of {escape(label)}, as resolved</summary>"
        f"<pre>{escape(group[0].config)}</pre></details>"
        for label, group in by_label(records).items()
    )
    runs = all_runs(records) if records else ""
    return f"{typed}{runs}{configs}<p class='quiet'>Colonnade {escape(__version__)}</p>"


@cache
def _library() -> str:
    return _packed(get_plotlyjs())


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
