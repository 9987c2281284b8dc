"""Which method won: the columns of a comparison, their means over seeds, and the best of each.

The oracle does not federate, so its clock and bytes mean nothing. It takes no part in the ranking, nor does a method
with a run that failed or has a warning. The time to the target is a mean over the runs that reached it. More such runs
win first: a method that is quick with one seed of three does not beat one that always reaches the target.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import NamedTuple

from colonnade.models.metrics import METRICS
from colonnade.results.summary import Summary
from colonnade.results.verdict import flaws_of

__all__ = ["ORACLE", "Column", "Ranking", "by_reason", "in_words", "mean_and_spread", "rank"]

ORACLE = "centralised"


class Statistic(NamedTuple):
    """Mean and sample standard deviation of the runs with a value, their number, and the number of all runs."""

    mean: float
    spread: float
    known: int
    runs: int

    @property
    def complete(self) -> bool:
        """Whether every run has a value."""
        return self.known == self.runs


def mean_and_spread(values: Sequence[float | None]) -> Statistic | None:
    """Ignore missing values; None if there are no values."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Statistic(mean(known), stdev(known) if len(known) > 1 else 0.0, len(known), len(values))


class Column(NamedTuple):
    """A number of a summary, its format, and which direction is better (None: neither)."""

    title: str
    read: Callable[[Summary], float | None]
    form: str
    higher_is_better: bool | None = None
    praise: str = ""  # what its winner is called
    unit: str = ""
    partial: bool = False  # a run may have no value, and the others still count
    meaning: str = ""  # an explanation of the title

    def of(self, group: Sequence[Summary | None]) -> Statistic | None:
        """Return one label's number over its seeds; None in `group` is a run without a summary."""
        found = mean_and_spread([self.read(summary) if summary is not None else None for summary in group])
        return found if found is None or found.complete or self.partial else None

    def winners(self, values: Mapping[str, Statistic | None]) -> list[str]:
        """Return the labels with the best number, if the column has winners: most runs first, then the better mean."""
        known = {label: value for label, value in values.items() if value is not None}
        if self.higher_is_better is None or not known:
            return []
        sign = 1 if self.higher_is_better else -1
        scores = {label: (value.known / value.runs, sign * value.mean) for label, value in known.items()}
        return [label for label, score in scores.items() if score == max(scores.values())]

    def write(self, value: Statistic | None, spread: bool) -> str:
        """Return a cell's text, e.g. "12.30 ± 0.41 (2 of 3)"; the deviation only with `spread`."""
        if value is None:
            return "–"
        several = spread and self.higher_is_better is not None and value.known > 1
        deviation = f" ± {value.spread:{self.form}}" if several else ""
        share = "" if value.complete else f" ({value.known} of {value.runs})"
        return f"{value.mean:{self.form}}{deviation}{share}"


@dataclass(frozen=True, slots=True)
class Ranking:
    """Every label's statistics, column by column, and each column's winners."""

    columns: list[Column]
    values: dict[str, list[Statistic | None]]
    winners: list[list[str]]
    seeds: int
    flaws: dict[str, str]  # label → what is wrong with its runs; only labels with a fault
    settings: dict[str, str]  # label → what it has instead of the configured model; only labels with a change
    judged_on: str = "test"  # the rows of the evaluations during training: "validation" or "test"


def rank(groups: Mapping[str, Sequence[Summary | None]]) -> Ranking:
    """Rank the groups: each has the summaries of one label's seeds; None is a run without one."""
    first = next((summary for group in groups.values() for summary in group if summary is not None), None)
    judged_on = "validation" if first and first.get("validation_rows") else "test"
    columns = _columns(*((first["metric"], first["target"]) if first else ("value", None)), judged_on)
    values = {label: [column.of(group) for column in columns] for label, group in groups.items()}
    flaws = {label: found for label, group in groups.items() if (found := flaws_of(group))}
    racing = [label for label, group in groups.items() if label not in flaws and not _oracle(group)]
    if len(racing) < 2:
        racing = []  # a single method has nothing to beat, least of all the oracle
    winners = [
        column.winners({label: values[label][index] for label in racing}) for index, column in enumerate(columns)
    ]
    settings = {label: words for label, group in groups.items() if (words := _adapted(group))}
    seeds = max((len(group) for group in groups.values()), default=0)
    return Ranking(columns, values, winners, seeds, flaws, settings, judged_on)


def by_reason(unsuitable: Mapping[str, str]) -> dict[str, list[str]]:
    """Invert label → reason: methods of one family often have the same reason."""
    groups: dict[str, list[str]] = {}
    for label, reason in unsuitable.items():
        groups.setdefault(reason, []).append(label)
    return groups


def _oracle(group: Sequence[Summary | None]) -> bool:
    return any(summary is not None and summary["protocol"] == ORACLE for summary in group)


def _adapted(group: Sequence[Summary | None]) -> str:
    """E.g. "polynomial:1, mean": the same for all seeds."""
    found = (summary.get("adapted", {}) for summary in group if summary is not None)
    return ", ".join(next(found, {}).values())


def _columns(metric: str, target: float | None, judged_on: str) -> list[Column]:
    upwards = METRICS[metric].higher_is_better if metric in METRICS else True
    columns = [
        Column(metric, lambda s: s["value"], ".4f", upwards, f"best {metric}", meaning="on the test rows, at the end"),
        Column(
            "MB", lambda s: (s["bytes_up"] + s["bytes_down"]) / 1e6, ".1f", False, "fewest bytes", " MB",
            meaning="megabytes sent, both ways",
        ),
        Column("updates", lambda s: s["updates"], ".0f", meaning="steps of the global model"),
        Column(
            "staleness", lambda s: s["staleness"]["mean"], ".1f", meaning="mean age of the embeddings used, in updates"
        ),
        Column("clock s", lambda s: s["clock_s"], ".2f", meaning="the length of the run, in seconds of the clock"),
    ]  # fmt: skip
    if target is None:
        return columns
    to_target = Column(
        f"s to {target:g}", lambda s: s["time_to_target_s"], ".2f", False, f"fastest to {metric} {target:g}", " s",
        partial=True, meaning=f"seconds of the clock until the {metric} of the {judged_on} rows was first {target:g}",
    )  # fmt: skip
    return [to_target, *columns]


def in_words(ranking: Ranking) -> str:
    """Return the winner of each column, e.g. "Fastest to accuracy 0.95: vafl (3.10 s); …".

    Returns "" if there is nothing to rank.
    """
    parts: list[str] = []
    if not any(ranking.winners):
        return ""
    for index, (column, winners) in enumerate(zip(ranking.columns, ranking.winners, strict=True)):
        if winners:
            value = ranking.values[winners[0]][index]
            assert value is not None  # a winner has a value
            share = "" if value.complete else f" in {value.known} of {value.runs} runs"
            number = f"{value.mean:{column.form}}{column.unit}{share}"
            parts.append(f"{column.praise}: {' and '.join(winners)} ({number})")
        elif column.partial:
            parts.append(f"{column.praise}: no method reached it")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if any(ranking.winners) else ""
