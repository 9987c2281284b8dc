"""Numbers of a finished run, by name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from colonnade.models.metrics import METRICS

__all__ = ["MEASURES", "measure"]

Summary = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]  # of metrics.jsonl


def measure(what: str, summary: Summary, rows: Rows) -> float | None:
    """The number; None: the run has none, e.g. because it did not reach its target."""
    return MEASURES[what](summary, rows)


def _arrival(field: str) -> Callable[[Summary, Rows], float | None]:
    def at(summary: Summary, rows: Rows) -> float | None:
        metric, target = METRICS[summary["metric"]], summary["target"]
        if target is None:
            return None
        reached = (row for row in rows if row["value"] is not None and metric.reached(row["value"], target))
        first = next(reached, None)
        return None if first is None else float(first[field])

    return at


def _best(summary: Summary, rows: Rows) -> float | None:
    values = [row["value"] for row in rows if row["value"] is not None]
    best = max if METRICS[summary["metric"]].higher_is_better else min
    return best(values, default=None)


def _busy(summary: Summary, rows: Rows) -> float | None:
    """The mean busy share of the parties."""
    shares = [share for name, share in summary["utilisation"].items() if name != "server"]
    return sum(shares) / len(shares) if shares else None


def _least_busy(summary: Summary, rows: Rows) -> float | None:
    """The busy share of the party that waits most."""
    return min((share for name, share in summary["utilisation"].items() if name != "server"), default=None)


def _last(field: str) -> Callable[[Summary, Rows], float | None]:
    def at(summary: Summary, rows: Rows) -> float | None:
        return next((row[field] for row in reversed(rows) if row.get(field) is not None), None)

    return at


def _mean_of(field: str) -> Callable[[Summary, Rows], float | None]:
    def over(summary: Summary, rows: Rows) -> float | None:
        values = [row[field] for row in rows if row.get(field) is not None]
        return sum(values) / len(values) if values else None

    return over


def _account(*path: str) -> Callable[[Summary, Rows], float | None]:
    def at(summary: Summary, rows: Rows) -> float | None:
        found: Any = summary["privacy"]
        for name in path:
            found = found[name] if found else None
        return None if found is None else float(found)

    return at


MEASURES: dict[str, Callable[[Summary, Rows], float | None]] = {
    "value": lambda summary, rows: summary["value"],
    "loss": lambda summary, rows: summary["loss"],
    "best": _best,  # the best evaluation
    "time_to_target": _arrival("clock_s"),
    "updates_to_target": _arrival("update"),
    "epochs_to_target": _arrival("epochs"),
    "training": _last("training_value"),  # the metric on a sample of the training rows (diagnose.training)
    "gradient": _last("gradient_norm2"),  # ‖∇F‖² (diagnose.gradient)
    "mean_gradient": _mean_of("gradient_norm2"),
    "mu": _account("mu"),
    "claimed_mu": _account("claim_of_theorem_6", "mu"),
    "updates": lambda summary, rows: summary["updates"],
    "updates_per_s": lambda summary, rows: summary["updates"] / summary["clock_s"] if summary["clock_s"] else None,
    "busy": _busy,
    "least_busy": _least_busy,
    "bytes": lambda summary, rows: summary["bytes_up"] + summary["bytes_down"] + summary["bytes_relayed"],
}
