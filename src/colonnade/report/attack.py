"""The results of an attack: a table with intervals, and bars beside chance."""

from collections.abc import Mapping
from html import escape
from typing import Any

import plotly.graph_objects as go

from colonnade.report.sections import Chart, Section
from colonnade.report.style import colours, titled

__all__ = ["attack_section", "attack_table"]

HEAD = (
    *("method", "attacker", "success", "95 % over all rows", "most frequent class", "Σp²"),
    *("shuffled labels (expected)", "asked", "refused"),
)


def attack_table(attack: Mapping[str, Any]) -> str:
    """Return a table of every attacker against every method."""
    return _data(attack) + (_inversion_table(attack["outcomes"]) if _inverts(attack) else _guesses_table(attack))


def _data(attack: Mapping[str, Any]) -> str:
    said = attack.get("data")
    return f"<p>Data: {escape(said['text'])}</p>" if said else "<p>Data: not recorded by the release that ran it.</p>"


def _guesses_table(attack: Mapping[str, Any]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in HEAD)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(outcome)) + "</tr>"
        for outcome in attack["outcomes"]
    )
    return f"<div class='scroll'><table><tr>{head}</tr>{rows}</table></div>"


def _cells(outcome: Mapping[str, Any]) -> list[str]:
    low, high = outcome["wilson"]
    return [
        outcome["method"],
        outcome["attacker"],
        f"{100 * outcome['success']:.2f} ± {100 * outcome['margin']:.2f} %",
        f"{100 * low:.2f}–{100 * high:.2f} %",
        f"{100 * outcome['chance']:.1f} %",
        _percent(outcome.get("matched")),
        f"{_percent(outcome['control'])} ({_percent(outcome.get('control_expected'))})",
        str(outcome["asked"]),
        str(outcome["refused"]),
    ]


def _percent(share: float | None) -> str:
    """Return a percentage; a dash for folders of earlier releases, which did not compute it."""
    return "–" if share is None else f"{100 * share:.1f} %"


def attack_section(attack: Mapping[str, Any]) -> Section:
    """Return bars, and the line of chance."""
    if _inverts(attack):
        return _inversion_section(attack)
    count = attack["trials"]
    text = (
        f"The share of training rows whose label was guessed correctly: the mean of {count} trials, with its 95 % "
        "interval. The dotted line is the share of the most frequent class, which needs no attack at all. Σp² is "
        "the success of guesses that name each class as often as it occurs."
    )
    return Section(f"Attack: {attack['attack']}", text, [Chart("attack", "Success", _bars(attack["outcomes"]))], True)


def _inverts(attack: Mapping[str, Any]) -> bool:
    return any("error" in outcome for outcome in attack["outcomes"])


def _inversion_table(outcomes: list[dict[str, Any]]) -> str:
    head = "".join(f"<th>{title}</th>" for title in ("method", "attacker", "noise", "ε", "error", "shuffled pairs"))
    rows = ""
    for said in outcomes:
        epsilon = f"{said['epsilon']:.4g}" if said["epsilon"] is not None else "not accounted"
        error = f"{said['error']:.3f} ± {said['margin']:.3f}"
        cells = (said["method"], said["attacker"], f"{said['noise']:g}", epsilon, error, f"{said['control']:.2f}")
        rows += "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
    return f"<div class='scroll'><table><tr>{head}</tr>{rows}</table></div>"


def _inversion_section(attack: Mapping[str, Any]) -> Section:
    text = (
        f"The error with which a server can recover a party's columns: the mean of {attack['trials']} trials. 1 is "
        "the error of the mean row, which needs no attack. A method without a mechanism has one point, at no noise."
    )
    figure = go.Figure()
    groups: dict[str, list[dict[str, Any]]] = {}
    for outcome in attack["outcomes"]:
        groups.setdefault(f"{outcome['method']}, {outcome['attacker']}", []).append(outcome)
    for name, colour in colours(groups).items():
        own = groups[name]
        figure.add_trace(
            go.Scatter(
                x=[f"{outcome['noise']:g}" for outcome in own],
                y=[outcome["error"] for outcome in own],
                error_y={"type": "data", "array": [outcome["margin"] for outcome in own]},
                mode="lines+markers",
                name=name,
                marker_color=colour,
            )
        )
    figure.add_hline(y=1.0, line_dash="dot", line_color="#888888")
    figure.update_xaxes(type="category")
    drawn = titled(figure, "noise (standard deviation)", "relative error")
    return Section(f"Attack: {attack['attack']}", text, [Chart("attack", "Reconstruction", drawn)], True)


def _bars(outcomes: list[dict[str, Any]]) -> go.Figure:
    figure = go.Figure()
    for method, colour in colours(dict.fromkeys(outcome["method"] for outcome in outcomes)).items():
        own = [outcome for outcome in outcomes if outcome["method"] == method]
        figure.add_trace(
            go.Bar(
                y=[f"{outcome['attacker']} · {method}" for outcome in own],
                x=[outcome["success"] for outcome in own],
                error_x={"type": "data", "array": [outcome["margin"] for outcome in own], "color": "#888888"},
                orientation="h",
                name=method,
                marker_color=colour,
                hovertemplate="%{y}: %{x:.1%}<extra></extra>",
            )
        )
    for chance in sorted({outcome["chance"] for outcome in outcomes}):
        figure.add_vline(x=chance, line_dash="dot", line_color="#888888")
    figure.update_xaxes(tickformat=".0%", range=[0, 1.05])
    figure.update_yaxes(autorange="reversed", type="category")
    return titled(figure, "labels guessed correctly", "", 120 + 26 * len(outcomes))
