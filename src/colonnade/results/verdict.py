"""Decide whether a run is a result: what a reader must know before using its numbers.

Every driver writes `warnings_of` its run into summary.json. A run with a warning, or one that did not finish, is marked
in every table and takes no part in a ranking.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf, log, sqrt
from typing import Any, NamedTuple

import numpy as np

from colonnade.data import Task
from colonnade.data.suggest import listing
from colonnade.models.metrics import METRICS
from colonnade.protocol.messages import Array

__all__ = ["Commonest", "commonest", "flaw_of", "flaws_of", "warnings_of"]

FINISHED = "finished"
# Between 0 and 1: their margin is absolute, that of other metrics relative.
_SHARES = ("accuracy", "top5", "auc", "f1", "pr-auc", "brier", "ece")

Summary = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]  # of metrics.jsonl


class Commonest(NamedTuple):
    """How many of the evaluated rows have the commonest class, and how many classes there are."""

    share: float
    classes: int


def commonest(task: Task, held_out: Array, validation: int) -> Commonest | None:
    """Count the commonest class if the labels are classes that are known here.

    The validation rows come first in `held_out`.
    """
    labels = held_out[:validation] if validation else held_out
    if not task.classes or not len(labels):
        return None
    return Commonest(float(np.bincount(np.asarray(labels)).max() / len(labels)), len(task.classes))


def warnings_of(
    summary: Summary, rows: Rows, said: Iterable[str] = (), commonest: Commonest | None = None
) -> list[str]:
    """Return short sentences, [] if there is nothing to warn about; `said`: the method's own warnings."""
    finished = summary["status"] == FINISHED
    about = _of_evaluations(summary, rows, commonest) if finished and summary["test_rows"] else []
    return [*([] if finished else [_unfinished(summary, rows)]), *_of_members(summary, rows), *said, *about]


def flaw_of(summary: Summary | None) -> str:
    """Say in a word or two why a run takes no part in a ranking; "": it takes part."""
    if summary is None:
        return "without a result"
    if summary["status"] != FINISHED:
        return str(summary["status"])
    return "with warnings" if summary.get("warnings") else ""  # folders of older releases have none


def flaws_of(seeds: Sequence[Summary | None]) -> str:
    """Summarise all seeds of one method: "diverged", or "1 of 3 diverged, 1 of 3 with warnings".

    Returns "" if all are results.
    """
    found = Counter(filter(None, map(flaw_of, seeds)))
    alone = len(seeds) == 1
    return ", ".join(flaw if alone else f"{count} of {len(seeds)} {flaw}" for flaw, count in found.items())


def _unfinished(summary: Summary, rows: Rows) -> str:
    """Report the last recorded loss; a note about the divergence may name a later one."""
    which = "validation metric and loss" if summary["validation_rows"] else "metric and loss"
    numbers = f"its {which} are those of update {rows[-1]['update']}" if rows else "nothing was evaluated"
    untested = ", and the test rows were not evaluated" if rows and summary["validation_rows"] else ""
    return f"{summary['status']} at update {summary['updates']}; {numbers}{untested}"


def _of_members(summary: Summary, rows: Rows) -> list[str]:
    """Warn about parties that were absent at the end."""
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


def _of_evaluations(summary: Summary, rows: Rows, commonest: Commonest | None) -> list[str]:
    """Compare the end with the beginning and with chance level, on the validation rows if there are any."""
    if not summary["updates"]:
        return ["no update was made: the model is the untrained one"]
    last: Mapping[str, Any] = rows[-1] if rows else {"value": None, "loss": None}
    metric, validation = summary["metric"], summary["validation_rows"]
    of, count = ("validation ", validation) if validation else ("", summary["test_rows"])
    # The metric of the validation rows may have no value, as auc if they lack a class; their loss always has one.
    tested = (
        [("test ", "test_value", metric), ("test ", "test_loss", "loss")] if validation else [("", "value", metric)]
    )
    found = [(f"{which}{name}", last.get(key)) for which, key, name in (*tested, (of, "loss", "loss"))]
    lacking = [name for name, value in found if value is None]
    if lacking:
        return [f"the last evaluation has no finite {' and no finite '.join(dict.fromkeys(lacking))}"]
    first, margin = rows[0], 1 / sqrt(count)
    changed = 0.0 if last["value"] is None else _gain(metric, first["value"], last["value"])
    if changed < -margin:
        return [_worse(f"{of}{metric}", first["value"], last["value"])]
    # If the metric improved and the loss rose too, the model is only too sure of its few mistakes.
    if changed > margin and not (commonest and metric == "accuracy" and last["value"] <= commonest.share):
        return []
    if metric != "loss" and _gain("loss", first["loss"], last["loss"]) < -margin:
        return [_worse(f"{of}loss", first["loss"], last["loss"])]
    odds = inf if commonest is None else log(commonest.classes)
    if last["loss"] > max(odds, first["loss"] if first["loss"] is not None else odds):
        return [f"the {of}loss is worse than that of equal odds: {last['loss']:.4g} instead of {odds:.4g}"]
    return []


def _gain(metric: str, first: float | None, last: float) -> float:
    """Return how much better the last value is.

    Less than 1/√n may be chance: two deviations of a share of n rows, at most.
    """
    if first is None:
        return inf
    gain = last - first if METRICS[metric].higher_is_better else first - last
    return gain if metric in _SHARES else gain / max(abs(first), 1e-9)


def _worse(name: str, first: float, last: float) -> str:
    return f"the {name} is worse than before training: {last:.4g} instead of {first:.4g}"
