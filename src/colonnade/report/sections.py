"""The sections of the page in order, with their figures, from the records of a run or a comparison."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import plotly.graph_objects as go

from colonnade.experiments.ranking import ORACLE, mean_and_spread
from colonnade.report.bars import SHOWN_ROLES as SHOWN_BARS
from colonnade.report.bars import bytes_by_kind, epsilon_of, metric_against_epsilon, time_to_target, utilisation
from colonnade.report.figures import curve
from colonnade.report.lanes import SHOWN_ROLES, staleness_histogram, staleness_map, timeline
from colonnade.report.records import Record, by_label, without_oracles
from colonnade.report.rounds import SHOWN, has_rounds, rates, speeds, steps, uneven_speeds
from colonnade.report.settings import metric_against, time_against, varied
from colonnade.results.summary import Summary
from colonnade.results.verdict import flaw_of

__all__ = ["Chart", "Section", "sections"]

SHOWN_ROUNDS = 4  # labels whose rounds are drawn
PLACES = {"clock_s": "the clock", "update": "updates", "megabytes": "data sent"}

OF_PROCESSES = (
    " In a run of processes the clock is the server's; each party reported its timeline to the server at the end, by "
    "that clock. A party's row is early by the time that a message from the server takes. Messages under way count as "
    "waiting, because no clock sees both of their ends. Blank means unknown: the party was away at the end, or the "
    "party or the server was killed before it saved that part."
)
Groups = Mapping[str, Sequence[Record]]


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure with its heading; `label` if it is about one method alone."""

    name: str
    title: str
    figure: go.Figure
    label: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, a sentence that says how to read it, and charts."""

    title: str
    text: str
    charts: list[Chart]
    wide: bool = False


def sections(records: Sequence[Record]) -> Iterator[Section]:
    """Yield one section after the other: drawing takes a while."""
    everyone = by_label(records)
    groups = without_oracles(everyone)
    oracles = {label: group for label, group in everyone.items() if label not in groups}
    seeds = max(len(group) for group in groups.values())
    yield _curves(groups, oracles, seeds)
    yield from _against_settings(groups, seeds)
    yield Section("What it cost", "Means over seeds." if seeds > 1 else "", _costs(groups))
    yield from _rounds(groups)
    yield from _lanes(groups)


def _against_settings(groups: Groups, seeds: int) -> Iterator[Section]:
    """Draw what a sweep found, if runs of one method differ in a number."""
    first = next(iter(groups.values()))[0].summary
    charts = []
    for setting in varied(groups):
        metric, target = first["metric"], first["target"]
        charts.append(
            Chart(f"against-{setting.key}", f"{metric} against {setting.key}", metric_against(groups, setting))
        )
        if target is not None:
            title, figure = f"Time to {metric} {target:g} against {setting.key}", time_against(groups, setting)
            charts.append(Chart(f"time-against-{setting.key}", title, figure))
    if charts:
        text = "Each line is one method with one choice of its other settings. A cross: some runs are not results. An"
        text += " open circle: some seeds have no value, or did not reach the target. A missing point: none did."
        text += " Bars are one standard deviation over seeds." if seeds > 1 else ""
        yield Section("Against the settings", text, charts)


def _rounds(groups: Groups) -> Iterator[Section]:
    """Draw the speeds of the parties, and the rounds of methods with local steps; the first seed."""
    firsts = [group[0] for group in groups.values()]
    charts = []
    if fast := next(filter(uneven_speeds, firsts), None):
        count = len(fast.parties)
        whose = f", the first {SHOWN} of {count:,} parties" if count > SHOWN else ""
        charts.append(Chart("speed", f"Speed of the parties ({fast.label}{whose})", speeds(fast)))
    in_rounds = [(index, record) for index, record in enumerate(firsts) if has_rounds(record)]
    for index, record in in_rounds[:SHOWN_ROUNDS]:
        charts.append(Chart(f"tau-{index}", f"{record.label}: τ by round", steps(record), record.label))
        charts.append(Chart(f"eta-{index}", f"{record.label}: η by round", rates(record), record.label))
    if charts:
        text = f"Seed {firsts[0].summary['seed']}."
        text += " Speed: batches per second while a party computes, as the clock sets it." if fast else ""
        text += " τ: a role's local steps in a round. η: the factor of its learning rate." if in_rounds else ""
        text += f" Rounds of the first {SHOWN_ROUNDS} of {len(in_rounds)}." if len(in_rounds) > SHOWN_ROUNDS else ""
        yield Section("Speeds and rounds", text, charts)


def _curves(groups: Groups, oracles: Groups, seeds: int) -> Section:
    first = next(iter(groups.values()))[0].summary
    metric, target = first["metric"], first["target"]
    charts = []
    for against, place in PLACES.items():
        charts.append(_curve(groups, oracles, against, place, metric, "value", target))
        if target is not None and len(charts) == 1:
            bars = time_to_target(groups)
            charts[0].figure.update_layout(
                height=max(charts[0].figure.layout.height, bars.layout.height)
            )  # side by side
            charts.append(Chart("target", f"Time to {metric} {target:g}", bars))
        charts.append(_curve(groups, oracles, against, place, "loss", "loss", None))
    charts += _diagnoses(groups, metric)
    text = _judged_on(first) + " A click on a name in the bar above hides it in every chart. Dragging zooms. The charts"
    text += " begin with the part in which most methods learn; a double click shows all of it."
    if seeds > 1:
        text += f" Lines are means over {seeds} seeds, bands one standard deviation."
    return Section("How it learns", text, charts)


def _diagnoses(groups: Groups, metric: str) -> Iterator[Chart]:
    """Draw what `[diagnose]` recorded, if it did."""
    told = {
        "training_value": (f"{metric} on training rows", "clock_s"),
        "gradient_norm2": ("‖∇F‖² on training rows", "update"),
    }
    for value, (title, against) in told.items():
        runs = {label: [record.rows for record in group] for label, group in groups.items()}
        runs = {label: own for label, own in runs.items() if all(rows and value in rows[0] for rows in own)}
        if not runs:
            continue
        figure = curve(runs, title, against, value=value)
        if value == "gradient_norm2":
            figure.update_yaxes(type="log", range=None, autorange=True, exponentformat="power")
        yield Chart(f"{value}-{against}", f"{title} against {PLACES[against]}", figure)


def _judged_on(summary: Summary) -> str:
    """Say which rows the curves are about; runs of older releases have no validation rows."""
    if summary.get("validation_rows"):
        return "On the validation rows; the tables have the test rows, evaluated once, at the end."
    return "On the test rows."


def _curve(
    groups: Groups,
    oracles: Groups,
    against: str,
    place: str,
    metric: str,
    value: Literal["value", "loss"],
    target: float | None,
) -> Chart:
    runs = {label: [record.rows for record in group] for label, group in groups.items()}
    results = {label: group for label, group in oracles.items() if not any(flaw_of(one.summary) for one in group)}
    ends = {label: [record.rows[-1][value] for record in group] for label, group in results.items()}
    means = {label: mean_and_spread(values) for label, values in ends.items()}
    levels = {label: found.mean for label, found in means.items() if found is not None and found.complete}
    figure = curve(runs, metric, against, target, levels, value)
    return Chart(f"{value}-{against}", f"{metric} against {place}", figure)


def _costs(groups: Groups) -> list[Chart]:
    first = next(iter(groups.values()))[0].summary
    charts = []
    roles = len(first["utilisation"])
    every = "every role" if roles <= SHOWN_BARS else f"the first {SHOWN_BARS} of {roles:,} roles"
    charts.append(Chart("utilisation", f"Busy share of {every}", utilisation(groups)))
    charts.append(Chart("bytes", "Data sent, by kind of message", bytes_by_kind(groups)))
    if len({epsilon_of(record) for group in groups.values() for record in group} - {None}) > 1:
        charts.append(Chart("privacy", f"{first['metric']} against ε", metric_against_epsilon(groups)))
    return charts


def _first_of(count: int, what: str) -> str:
    return f" Shown are the first {SHOWN_ROLES} of {count:,} {what}." if count > SHOWN_ROLES else ""


def _lanes(groups: Groups) -> Iterator[Section]:
    firsts = [group[0] for group in groups.values() if group[0].summary["protocol"] != ORACLE]
    numbered = [(f"{index}", record) for index, record in enumerate(firsts)]
    drawn = [
        Chart(f"timeline-{index}", record.label, timeline(record), record.label)
        for index, record in numbered
        if record.timeline
    ]
    seed = firsts[0].summary["seed"] if firsts else 0
    if drawn:
        simulated = [record.timeline["transit"] is not None for record in firsts if record.timeline]
        text = f"What every role did, seed {seed}. Busy: a job on its lane."
        if any(simulated):
            text += " In transit: not busy, and a message that it sent has not arrived."
        text += " Offline: crashed, late or disconnected. Waiting: the rest. Drag to zoom in."
        text += "" if all(simulated) else OF_PROCESSES
        text += _first_of(max(len(record.timeline["roles"]) for record in firsts if record.timeline), "roles")
        yield Section("Which role waited", text, drawn, wide=True)
    stale = [(index, record) for index, record in numbered if record.summary["staleness"]["max"] > 0]
    if not stale:
        return
    highest = max(age for _, record in stale for row in record.rows for age in row["staleness"])
    charts = [Chart("staleness", "How old the embeddings were that were used", staleness_histogram(groups))]
    charts += [
        Chart(f"staleness-{index}", f"{record.label}: mean age by party", staleness_map(record, highest), record.label)
        for index, record in stale
    ]
    fresh = [record.label for _, record in numbered if record.summary["staleness"]["max"] == 0]
    text = "Age: updates of the global model since the embedding was computed."
    text += _first_of(max(len(record.parties) for _, record in stale), "parties")
    text += f" The maps show seed {seed}." + (f" Never stale: {', '.join(fresh)}." if fresh else "")
    yield Section("Staleness", text, charts)
