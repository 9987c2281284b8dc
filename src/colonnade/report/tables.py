"""The page's tables: the ranking with its winners, and every single run."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from html import escape
from typing import Any

from colonnade.algorithms import find_method
from colonnade.experiments.ranking import Ranking, by_reason, in_words, rank
from colonnade.protocol.errors import ConfigError
from colonnade.report.records import Record, by_label
from colonnade.results.summary import Summary
from colonnade.results.verdict import flaw_of

__all__ = ["all_runs", "privacy", "race", "remarks", "taking_no_part", "what_is_revealed", "winners"]

SHOWN_PARTIES = 40
_COLUMNS = {
    "seed": "seed", "status": "status", "value": "value (test)", "loss": "loss (test)",
    "validation_value": "value (validation)", "time_to_target_s": "s to target",
    "clock_s": "clock (s)", "wall_s": "real time (s)", "updates": "updates", "messages": "messages",
    "privacy": "ε", "bytes_up": "bytes up", "bytes_down": "bytes down", "trace_sha256": "trace",
    "weights_sha256": "weights",
}  # fmt: skip


def _groups(records: Sequence[Record]) -> dict[str, list[Summary]]:
    return {label: [record.summary for record in group] for label, group in by_label(records).items()}


def winners(records: Sequence[Record]) -> str:
    """Return a sentence about the winners, if there is more than one method."""
    groups = _groups(records)
    words = in_words(rank(groups)) if len(groups) > 1 else ""
    return f"<p><strong>{escape(words)}</strong></p>" if words else ""


def race(records: Sequence[Record]) -> str:
    """Return mean ± deviation of every label; marks the best of each column, strikes out a mean with a failed run.

    Methods are grouped by what they expose. On a narrow screen a method's name has its own line (page.css).
    """
    labels, ranking = by_label(records), rank(_groups(records))
    by_exposure: dict[str, list[str]] = {}
    for label, group in labels.items():
        by_exposure.setdefault(group[0].summary.get("exposes", ""), []).append(label)
    rows = []
    for words, members in by_exposure.items():
        if words and len(labels) > 1:
            rows.append(f"<tr class='group'><th colspan='{len(ranking.columns) + 1}'>{escape(words)}</th></tr>")
        rows += [_row(ranking, label, labels[label][0].summary["protocol"]) for label in members]
    head = "".join(f"<th>{escape(title)}</th>" for title in ("method", *(column.title for column in ranking.columns)))
    style = f"--columns:{len(ranking.columns)}"
    table = f"<table class='race' style='{style}'><tr class='head'>{head}</tr>{''.join(rows)}</table>"
    return f"<div class='scroll'>{table}</div>{_legend(ranking, len(labels) > 1)}"


def _row(ranking: Ranking, label: str, protocol: str) -> str:
    spread, several, flaw = ranking.seeds > 1, len(ranking.values) > 1, ranking.flaws.get(label, "")
    cells = [
        f"<td{_class(several and label in best)}>{_struck(escape(column.write(value, spread)), flaw)}</td>"
        for value, column, best in zip(ranking.values[label], ranking.columns, ranking.winners, strict=True)
    ]
    name = escape(label) + (f" <em>({escape(flaw)})</em>" if flaw else "")
    for words in (_summary_of(protocol), ranking.settings.get(label, "")):
        name += f"<br><span class='quiet'>{escape(words)}</span>" if words else ""
    return f"<tr><td>{name}</td>{''.join(cells)}</tr>"


def _summary_of(protocol: str) -> str:
    """Return what the method does, in a line; "" if its package is not installed here."""
    with suppress(ConfigError):
        return find_method(protocol).summary
    return ""


def _legend(ranking: Ranking, several: bool) -> str:
    """Explain the columns, with their units."""
    text = " ".join(f"<b>{escape(column.title)}</b>: {escape(column.meaning)}." for column in ranking.columns)
    if several:
        text += " ★: the best. An oracle and a method with a run that failed or has warnings take no part in the race."
    return f"<p class='quiet'>{text}</p>"


def taking_no_part(unsuitable: Mapping[str, str]) -> str:
    """List the methods that could not run, and why; "" if all could."""
    rows = "".join(
        f"<tr><td>{escape(', '.join(labels))}</td><td>{escape(reason)}</td></tr>"
        for reason, labels in by_reason(unsuitable).items()
    )
    return f"<h2>Took no part</h2><div class='scroll'><table class='prose'>{rows}</table></div>" if rows else ""


def _struck(text: str, flaw: str) -> str:
    return f"<s>{text}</s>" if flaw else text


def remarks(records: Sequence[Record]) -> str:
    """List what is wrong with which run; "" if all are results."""
    rows = "".join(
        f"<tr><td>{escape(record.label)}, seed {record.summary['seed']}</td><td>{escape(text)}</td></tr>"
        for record in records
        if flaw_of(record.summary)
        for text in filter(None, (*record.summary.get("warnings", ()), record.summary.get("note", "")))
    )
    return f"<h2>Warnings</h2><div class='scroll'><table class='prose'>{rows}</table></div>" if rows else ""


def _class(best: bool) -> str:
    return ' class="best"' if best else ""


def what_is_revealed(records: Sequence[Record]) -> str:
    """Say which role learns what, by method and settings; methods that reveal the same are grouped."""
    said = {label: group[0].summary.get("reveals", "") for label, group in by_label(records).items()}
    rows = "".join(
        f"<tr><td>{'<br>'.join(map(escape, labels))}</td><td>{escape(text)}</td></tr>"
        for text, labels in by_reason(said).items()
        if text
    )
    return f"<h2>What it reveals</h2><div class='scroll'><table class='prose'>{rows}</table></div>" if rows else ""


def all_runs(records: Sequence[Record]) -> str:
    """Return a row for each run's summary."""
    head = "".join(f"<th>{escape(title)}</th>" for title in ("run", *_COLUMNS.values()))
    rows = "".join(
        f"<tr><td>{escape(record.label)}</td>"
        + "".join(f"<td>{_summary_cell(key, record.summary)}</td>" for key in _COLUMNS)
        + "</tr>"
        for record in records
    )
    table = f"<div class='scroll'><table><tr>{head}</tr>{rows}</table></div>"
    return f"<details><summary>Every run</summary>{table}</details>"


def _summary_cell(key: str, summary: Mapping[str, Any]) -> str:
    """Strike out the numbers of the last evaluation if the run is not a result, and say why beside them."""
    flaw, text = flaw_of(summary), escape(_cell(key, summary.get(key)))
    if key == "status" and flaw:
        return escape(", ".join(dict.fromkeys((text, flaw))))
    return _struck(text, flaw) if key in ("value", "loss", "validation_value", "time_to_target_s") else text


def privacy(records: Sequence[Record]) -> str:
    """List what was spent, the paper's claim, and which parties stopped; "" if no run has an account."""
    if not any(record.summary["privacy"] for record in records):
        return ""
    head = "".join(f"<th>{escape(title)}</th>" for title in _PRIVACY)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for record in records
        for cells in _privacy_rows(record)
    )
    note = (
        "One record replaced, against a server that sees everything. The last column is what the method's paper "
        "counts: VAFL's Thm 6 as printed (a subsampled release for each row), or for wait-dp the releases of one row "
        "alone: this claim does not hold against the server, which knows the rows and sees networks trained on "
        "the record."
    )
    table = f"<div class='scroll'><table><tr>{head}</tr>{rows}</table></div>"
    return f"<h2>Privacy</h2><p>{escape(note)}</p>{table}"


_PRIVACY = ("run", "seed", "party", "mechanism", "μ", "ε", "δ", "releases", "withdrew", "claim of the paper")


def _privacy_rows(record: Record) -> list[list[str]]:
    spent, seed = record.summary["privacy"], str(record.summary["seed"])
    if not spent:
        return [[record.label, seed, "all", "none", "not accounted", "not accounted", "", "", "", ""]]
    mechanism = f"{spent['mechanism']}, {spent['local_updates']} updates, noise {spent['noise']:g}"
    return [
        [
            record.label, seed, name, mechanism, *(_cell("", one[key]) for key in ("mu", "epsilon", "delta")),
            str(one["releases"]), spent["withdrawn"].get(name, ""), f"ε = {_cell('', one['claim_epsilon'])}",
        ]
        for name, one in list(spent["parties"].items())[:SHOWN_PARTIES]
    ] + _rest(record, len(spent["parties"]) - SHOWN_PARTIES)  # fmt: skip


def _rest(record: Record, parties: int) -> list[list[str]]:
    text = f"and {parties:,} more (summary.json)"
    return [[record.label, str(record.summary["seed"]), text, *[""] * (len(_PRIVACY) - 3)]] if parties > 0 else []


def _cell(key: str, value: Any) -> str:
    if key == "privacy":
        return "not accounted" if value is None else _cell("", value["epsilon"])
    if value is None:
        return "–"
    if key.endswith("sha256"):
        return str(value)[:12]
    return f"{value:.4g}" if isinstance(value, float) else str(value)
