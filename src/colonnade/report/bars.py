"""Bars: time to the target, how busy every role was, bytes by kind of message; and the cost of privacy."""

from collections.abc import Mapping, Sequence
from statistics import mean

import plotly.graph_objects as go

from colonnade.experiments.ranking import mean_and_spread
from colonnade.report.records import Record
from colonnade.report.style import PALETTE, colours, titled
from colonnade.results.verdict import flaws_of

__all__ = [
    "bytes_by_kind",
    "epsilon_against_budget",
    "epsilon_of",
    "metric_against_epsilon",
    "time_to_target",
    "utilisation",
]

Groups = Mapping[str, Sequence[Record]]
SHOWN_ROLES = 40


def time_to_target(groups: Groups) -> go.Figure:
    """Draw a bar per label: the mean of the runs that reached the target, with their number beside it."""
    figure = go.Figure()
    for label, colour in colours(groups).items():
        times = [record.summary["time_to_target_s"] for record in groups[label]]
        reached = mean_and_spread(times)
        text = f"{reached.mean:.3g} s" if reached else "not reached"
        text += f" ({reached.known} of {reached.runs})" if reached and not reached.complete else ""
        text += f" ({flaw})" if (flaw := flaws_of([record.summary for record in groups[label]])) else ""
        several = reached is not None and reached.known > 1
        spread = {"type": "data", "array": [reached.spread], "color": "#888888"} if reached and several else None
        figure.add_trace(
            go.Bar(
                y=[label],
                x=[reached.mean if reached else 0],
                orientation="h",
                name=label,
                legendgroup=label,
                marker_color=colour,
                error_x=spread,
                hovertext=[text],
                hovertemplate="%{y}: %{hovertext}<extra></extra>",
            )
        )
        figure.add_trace(  # a separate trace, to the right of the error bar
            go.Scatter(
                y=[label],
                x=[reached.mean + reached.spread if reached else 0],
                mode="text",
                text=[f" {text}"],
                legendgroup=label,
                textposition="middle right",
                cliponaxis=False,
                showlegend=False,
                hoverinfo="skip",
            )
        )
    figure.update_yaxes(autorange="reversed", type="category")
    longest = max((trace.x[0] for trace in figure.data), default=0)
    figure.update_xaxes(range=[0, 1.3 * longest or 1])  # room for the text to the right of the bar
    return titled(figure, "clock (s)", "", 120 + 30 * len(groups), showlegend=False, barmode="stack")


def epsilon_of(record: Record) -> float | None:
    """Return ε of the run; None if there is no account, or if a party has not sent its own."""
    spent = record.summary["privacy"]
    return spent["epsilon"] if spent else None


def metric_against_epsilon(groups: Groups) -> go.Figure:
    """Draw a point per label, mean over seeds; one line for each method, in the order of ε.

    A cross marks a label some of whose runs are not results; the hover text says why.
    """
    figure = go.Figure()
    tint = colours(groups)
    points: dict[str, list[tuple[float, float, str]]] = {}
    for label, group in groups.items():
        runs = [(epsilon_of(record), record.summary["value"]) for record in group]
        known = [(epsilon, value) for epsilon, value in runs if epsilon and value is not None]
        if len(known) == len(group):
            point = (mean(epsilon for epsilon, _ in known), mean(value for _, value in known), label)
            points.setdefault(group[0].summary["protocol"], []).append(point)
    for own in points.values():
        own.sort()
        x, y = [place for place, _, _ in own], [height for _, height, _ in own]
        if len(own) > 1:
            line = {"color": "#9AA3AE", "width": 1}
            figure.add_trace(go.Scatter(x=x, y=y, mode="lines", line=line, showlegend=False, hoverinfo="skip"))
        for place, height, label in own:
            flaw = flaws_of([record.summary for record in groups[label]])
            marker = {"color": tint[label], "size": 10, "symbol": "x" if flaw else "circle"}
            figure.add_trace(
                go.Scatter(
                    x=[place], y=[height], mode="markers", name=label, legendgroup=label, marker=marker,
                    hovertemplate="ε %{x:.4g}: %{y:.4f}" + (f" ({flaw})" if flaw else ""),
                )
            )  # fmt: skip
    figure.update_xaxes(type="log")
    metric = next(iter(groups.values()))[0].summary["metric"]
    return titled(figure, "ε of one record against the server", f"{metric} (test rows)")


def epsilon_against_budget(parties: Mapping[str, Mapping[str, float | None]]) -> go.Figure:
    """Draw ε of every party so far; a line marks the budget of a party that has one, if it is known."""
    figure = go.Figure()
    names = list(parties)[:SHOWN_ROLES]
    spent = [parties[name].get("epsilon") for name in names]
    budgets = [parties[name].get("budget") for name in names]
    text = [_of_budget(one, budget) for one, budget in zip(spent, budgets, strict=True)]
    bars = go.Bar(
        y=names, x=spent, orientation="h", name="ε so far", marker_color=PALETTE[0], hovertext=text,
        hovertemplate="%{y}: %{hovertext}<extra></extra>",
    )  # fmt: skip
    figure.add_trace(bars)
    if any(budgets):
        marker = {"symbol": "line-ns", "size": 20, "line": {"width": 3, "color": PALETTE[1]}}
        limits = go.Scatter(
            y=names, x=budgets, mode="markers", name="budget", marker=marker, hoverinfo="skip", cliponaxis=False
        )
        figure.add_trace(limits)
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_xaxes(range=[0, 1.08 * max([*filter(None, (*spent, *budgets)), 1e-9])])
    return titled(figure, "ε of one record against the server", "", 110 + 30 * max(len(names), 1))


def _of_budget(spent: float | None, budget: float | None) -> str:
    said = "not known" if spent is None else f"ε {spent:.4g}"
    return f"{said} of {budget:.4g}" if budget else said


def utilisation(groups: Groups) -> go.Figure:
    """Draw the share of the clock in which each role was busy, mean over seeds."""
    figure = go.Figure()
    for label, colour in colours(groups).items():
        shares = [record.summary["utilisation"] for record in groups[label]]
        roles = list(shares[0])[:SHOWN_ROLES]
        height = [mean(share.get(role, 0.0) for share in shares) for role in roles]
        figure.add_trace(
            go.Bar(
                x=roles,
                y=height,
                name=label,
                legendgroup=label,
                marker_color=colour,
                hovertemplate="%{x}: %{y:.0%}",
            )
        )
    figure.update_yaxes(tickformat=".0%", range=[0, 1])
    figure.update_xaxes(type="category")
    return titled(figure, "", "busy", barmode="group")


def bytes_by_kind(groups: Groups) -> go.Figure:
    """Draw the megabytes of every kind of message, stacked, mean over seeds."""
    kinds = list(
        dict.fromkeys(kind for group in groups.values() for record in group for kind in record.summary["bytes_by_kind"])
    )
    figure = go.Figure()
    for index, kind in enumerate(kinds):
        sizes = [
            mean(record.summary["bytes_by_kind"].get(kind, 0) for record in group) / 1e6 for group in groups.values()
        ]
        figure.add_trace(
            go.Bar(
                y=list(groups),
                x=sizes,
                orientation="h",
                name=kind,
                marker_color=PALETTE[index % len(PALETTE)],
                hovertemplate="%{y}: %{x:.3g} MB",
            )
        )
    figure.update_yaxes(autorange="reversed", type="category")
    return titled(figure, "data sent (MB)", "", 140 + 30 * len(groups), barmode="stack")
