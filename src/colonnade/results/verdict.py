"""Whether a run is a result: what a reader must know before taking its numbers for one.

Every driver writes `warnings_of` its run into summary.json. A run with a warning, or one that did not finish, is marked
in every table and takes no part in a ranking.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf, log, sqrt
from typing import Any

from colonnade.data.suggest import listing
from colonnade.models.metrics import METRICS

__all__ = ["flaw_of", "flaws_of", "warnings_of"]

FINISHED = "finished"
_SHARES = ("accuracy", "top5", "auc")  # between 0 and 1: their margin is absolute, that of others relative

Summary = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]  # of metrics.jsonl


def warnings_of(summary: Summary, rows: Rows, test_rows: int, said: Iterable[str] = (), classes: int = 0) -> list[str]:
    """Short sentences, [] if all is well; `said`: what the method itself warns of; `classes`: 0 of numbers."""
    finished = summary["status"] == FINISHED
    about = _of_evaluations(summary, rows, test_rows, classes) if finished and test_rows else []
    return [*([] if finished else [_unfinished(summary, rows)]), *_of_members(summary, rows), *said, *about]


def flaw_of(summary: Summary | None) -> str:
    """In a word or two, why a run takes no part in a ranking; "": it does."""
    if summary is None:
        return "without a result"
    if summary["status"] != FINISHED:
        return str(summary["status"])
    return "with warnings" if summary.get("warnings") else ""  # folders of older releases have none


def flaws_of(seeds: Sequence[Summary | None]) -> str:
    """Of all seeds of one method: "diverged", or "1 of 3 diverged, 1 of 3 with warnings"; "": all are results."""
    found = Counter(filter(None, map(flaw_of, seeds)))
    alone = len(seeds) == 1
    return ", ".join(flaw if alone else f"{count} of {len(seeds)} {flaw}" for flaw, count in found.items())


def _unfinished(summary: Summary, rows: Rows) -> str:
    """The summary has the last loss that was recorded; a note on what diverged may name a later one."""
    numbers = f"its metric and loss are those of update {rows[-1]['update']}" if rows else "nothing was evaluated"
    return f"{summary['status']} at update {summary['updates']}; {numbers}"


def _of_members(summary: Summary, rows: Rows) -> list[str]:
    """Parties that were not there to the end."""
    withdrawn = (summary["privacy"] or {}).get("withdrawn", {})
    missing = [name for name in rows[-1]["missing"] if name not in withdrawn] if rows else []
    found = []
    if withdrawn:
        made = f"{summary['updates']} updates were made in all"
        found.append(f"withdrew before the end: {_who(withdrawn, summary)}; {made}")
    if missing:
        found.append(f"missing in the last evaluation: {_who(missing, summary)}")
    return found


def _who(names: Collection[str], summary: Summary) -> str:
    return f"{listing(names)} ({len(names)} of {summary['parties']} parties)"


def _of_evaluations(summary: Summary, rows: Rows, test_rows: int, classes: int) -> list[str]:
    """How it ended, compared with how it began and with equal odds for all classes (all weights 0)."""
    if not summary["updates"]:
        return ["no update was made: the model is the untrained one"]
    last: Mapping[str, Any] = rows[-1] if rows else {"value": None, "loss": None}
    metric = summary["metric"]
    lacking = [name for name, value in ((metric, last["value"]), ("loss", last["loss"])) if value is None]
    if lacking:
        return [f"the last evaluation has no finite {' and no finite '.join(dict.fromkeys(lacking))}"]
    first, margin = rows[0], 1 / sqrt(test_rows)
    changed = _gain(metric, first["value"], last["value"])
    if changed < -margin:
        return [_worse(metric, first["value"], last["value"])]
    # A loss has no such margin: a model whose odds are worse than none is no result, whatever its classes are.
    if first["loss"] is not None and last["loss"] > first["loss"]:
        return [_worse("loss", first["loss"], last["loss"])]
    if classes and last["loss"] > log(classes):
        return [f"the loss is worse than that of equal odds: {last['loss']:.4g}, and {log(classes):.4g}"]
    return []


def _gain(metric: str, first: float | None, last: float) -> float:
    """How much better the last is; what is below 1/√n may be chance: two deviations of a share of n rows, at most."""
    if first is None:
        return inf
    gain = last - first if METRICS[metric].higher_is_better else first - last
    return gain if metric in _SHARES else gain / max(abs(first), 1e-9)


def _worse(name: str, first: float, last: float) -> str:
    return f"the {name} is worse than before training: {last:.4g}, it was {first:.4g}"
