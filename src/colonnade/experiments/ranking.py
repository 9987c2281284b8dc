"""Who won what: the columns of a race, their means over seeds, and the best of each.

The oracle does not federate, so its clock and bytes mean nothing; it takes no part in the race, nor does a method
with a run that failed or carries a warning.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import NamedTuple

from colonnade.models.metrics import METRICS
from colonnade.results.summary import Summary
from colonnade.results.verdict import flaws_of

__all__ = ["ORACLE", "Column", "Ranking", "in_words", "mean_and_spread", "rank"]

ORACLE = "centralised"
Statistic = tuple[float, float]  # mean and sample standard deviation


def mean_and_spread(values: Sequence[float | None]) -> Statistic | None:
    """Mean and sample standard deviation; None if any value is missing."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return mean(known), stdev(known) if len(known) > 1 else 0.0


class Column(NamedTuple):
    """A number of a summary, how it is written, and which way is better (None: neither)."""

    title: str
    read: Callable[[Summary], float | None]
    form: str
    higher_is_better: bool | None = None
    praise: str = ""  # what its winner is called
    unit: str = ""

    def best(self, values: Sequence[Statistic | None]) -> float | None:
        """The winning mean, if the column has winners."""
        means = [value[0] for value in values if value is not None]
        if self.higher_is_better is None or not means:
            return None
        return max(means) if self.higher_is_better else min(means)

    def write(self, value: Statistic | None, spread: bool) -> str:
        """A cell's text."""
        if value is None:
            return "–"
        mean_text = f"{value[0]:{self.form}}"
        return f"{mean_text} ± {value[1]:{self.form}}" if spread and self.higher_is_better is not None else mean_text


@dataclass(frozen=True, slots=True)
class Ranking:
    """Every label's statistics, column by column, and each column's winners."""

    columns: list[Column]
    values: dict[str, list[Statistic | None]]
    winners: list[list[str]]
    seeds: int
    flaws: dict[str, str]  # by label, what is wrong with its runs; only of those with something wrong
    judged_on: str = "test"  # the rows that the evaluations while training are of: "validation" or "test"


def rank(groups: Mapping[str, Sequence[Summary | None]]) -> Ranking:
    """Groups are the summaries of one label's seeds; None is a run without one."""
    first = next((summary for group in groups.values() for summary in group if summary is not None), None)
    columns = _columns(*((first["metric"], first["target"]) if first else ("value", None)))
    values = {
        label: [mean_and_spread([column.read(s) if s is not None else None for s in group]) for column in columns]
        for label, group in groups.items()
    }
    flaws = {label: found for label, group in groups.items() if (found := flaws_of(group))}
    racing = [label for label, group in groups.items() if label not in flaws and not _oracle(group)]
    if len(racing) < 2:
        racing = []  # one alone beats nobody, least of all the oracle
    winners = []
    for index, column in enumerate(columns):
        best = column.best([values[label][index] for label in racing])
        winners.append([label for label in racing if best is not None and _mean(values[label][index]) == best])
    seeds = max((len(group) for group in groups.values()), default=0)
    judged_on = "validation" if first and first.get("validation_rows") else "test"
    return Ranking(columns, values, winners, seeds, flaws, judged_on)


def _oracle(group: Sequence[Summary | None]) -> bool:
    return any(summary is not None and summary["protocol"] == ORACLE for summary in group)


def _mean(value: Statistic | None) -> float | None:
    return value[0] if value is not None else None


def _columns(metric: str, target: float | None) -> list[Column]:
    upwards = METRICS[metric].higher_is_better if metric in METRICS else True
    columns = [
        Column(metric, lambda s: s["value"], ".4f", upwards, f"best {metric}"),
        Column("MB", lambda s: (s["bytes_up"] + s["bytes_down"]) / 1e6, ".1f", False, "fewest bytes", " MB"),
        Column("updates", lambda s: s["updates"], ".0f"),
        Column("staleness", lambda s: s["staleness"]["mean"], ".1f"),
    ]
    if target is None:
        return columns
    praise = f"fastest to {metric} {target:g}"
    return [Column(f"s to {target:g}", lambda s: s["time_to_target_s"], ".2f", False, praise, " s"), *columns]


def in_words(ranking: Ranking) -> str:
    """The winner of each column, e.g. "Fastest to accuracy 0.95: vafl (3.10 s); …"; "" without a race."""
    parts: list[str] = []
    if not any(ranking.winners):
        return ""
    for index, (column, winners) in enumerate(zip(ranking.columns, ranking.winners, strict=True)):
        if winners:
            value = column.write(ranking.values[winners[0]][index], False)
            parts.append(f"{column.praise}: {' and '.join(winners)} ({value}{column.unit})")
        elif column.praise.startswith("fastest"):
            parts.append(f"{column.praise}: nobody in every run")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if any(ranking.winners) else ""
