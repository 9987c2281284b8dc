"""The lines of metrics.jsonl and the fields of summary.json: the same for every driver."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, NotRequired, TypedDict

import numpy as np

from colonnade.algorithms.evaluation import Measurement
from colonnade.algorithms.training import Training
from colonnade.config.continuing import Continuation
from colonnade.config.resolve import Plan
from colonnade.data.suggest import listing
from colonnade.drivers.traffic import Traffic
from colonnade.models.metrics import METRICS
from colonnade.privacy.settings import PrivacySettings
from colonnade.protocol.role import Histogram, PrivacySpent, RoleSummary, StalenessSummary
from colonnade.results.verdict import Commonest, warnings_of

__all__ = [
    "Summary",
    "TrafficFields",
    "finite",
    "live_summary",
    "metrics_row",
    "staleness_histogram",
    "summarise",
    "time_to_target",
    "traffic_fields",
    "weights_digest",
]

STALENESS_BINS = 128
FRESH: StalenessSummary = {"mean": 0.0, "p95": 0.0, "max": 0.0}


class TrafficFields(TypedDict):
    """What crossed the network."""

    messages: int
    bytes_up: int
    bytes_down: int
    bytes_relayed: int
    bytes_eval: int
    bytes_by_kind: dict[str, int]
    duplicates_dropped: int
    undeliverable: int
    messages_given_up: NotRequired[int]  # only over a real network


class Summary(TrafficFields):
    """summary.json of a run. Folders of earlier releases lack some of the keys.

    It is a dictionary, so that a new summary and one read from a folder have the same type.
    """

    protocol: str
    parties: int
    seed: int
    driver: str
    status: str  # finished, diverged, stalled or stopped
    note: str
    warnings: list[str]  # why its numbers are not a result; []: they are one
    updates: int
    epochs: float
    clock_s: float
    wall_s: float
    metric: str
    value: float | None  # of `metric`, on the test rows at the end; None: the run did not reach its end
    accuracy: float | None
    loss: float | None
    validation_value: float | None  # of `metric`, on the validation rows in the last evaluation
    validation_loss: float | None
    validation_rows: int  # 0: the lines of metrics.jsonl are about the test rows
    test_rows: int
    also: NotRequired[dict[str, float | None]]  # only with `train.also`: further metrics, on the same rows as `value`
    target: float | None
    time_to_target_s: float | None  # from the lines of metrics.jsonl
    fresh_rows: int
    method: dict[str, object]  # fields that only this method has
    reveals: str
    exposes: str  # the same in a few words
    staleness: StalenessSummary
    utilisation: dict[str, float]  # the busy share of each role's time
    privacy: dict[str, Any] | None  # see `_privacy_fields`; None: there is no account
    trace_sha256: str
    weights_sha256: str | None  # None: a party has not sent its digest
    continued_from: NotRequired[dict[str, str]]  # only of a run with --continue: the earlier run's folder and id
    label: NotRequired[str]  # only in a comparison
    adapted: NotRequired[dict[str, str]]  # only there: dotted key → what replaces the configured value


def summarise(
    plan: Plan,
    principal: RoleSummary,
    *,
    driver: str,
    status: str,
    note: str,
    clock_s: float,
    wall_s: float,
    rows: Sequence[dict[str, Any]],
    held_out: int,
    commonest: Commonest | None,
    traffic: TrafficFields,
    utilisation: dict[str, float],
    spent: Mapping[str, PrivacySpent],
    trace_sha256: str,
    weights_sha256: str | None,
    before: Continuation | None = None,
) -> Summary:
    """Make the summary of a run, the same for every driver.

    `principal` is the summary of the coordinating role, `note` the driver's own remark. `rows` are the lines of
    metrics.jsonl, `held_out` counts the validation and test rows. `spent` holds the accounts of the parties that sent
    theirs.
    """
    metric, withdrawn, validation = plan.training.metric, principal.get("withdrawn", {}), plan.training.validation
    last = rows[-1] if rows else {}
    of_tests = "test_" if validation else ""
    summary: Summary = {
        "protocol": plan.method.name,
        "parties": len(plan.parties),
        "seed": plan.training.seed,
        "driver": driver,
        "status": status,
        "note": "; ".join(filter(None, (note, principal.get("note", ""), _withdrawn_note(withdrawn)))),
        "warnings": [],
        "updates": principal["updates"],
        "epochs": principal["epochs"],
        "clock_s": clock_s,
        "wall_s": round(wall_s, 3),
        "metric": metric,
        "value": last.get(f"{of_tests}value"),
        "accuracy": last.get(f"{of_tests}accuracy"),
        "loss": last.get(f"{of_tests}loss"),
        "validation_value": last.get("value") if validation else None,
        "validation_loss": last.get("loss") if validation else None,
        "validation_rows": validation,
        "test_rows": held_out - validation,
        "target": plan.target,
        "time_to_target_s": time_to_target(rows, metric, plan.target),
        **traffic,
        "fresh_rows": principal.get("fresh_rows", 0),
        "method": principal.get("method", {}),
        "reveals": plan.options.reveals or plan.method.reveals,
        "exposes": plan.options.exposes or plan.method.exposes,
        "staleness": principal.get("staleness", FRESH),
        "utilisation": utilisation,
        "privacy": _privacy_fields(plan.privacy, plan.parties, spent, withdrawn, plan.options.claim),
        "trace_sha256": trace_sha256,
        "weights_sha256": weights_sha256,
    }
    if plan.training.also:
        summary["also"] = {name: last.get(f"{of_tests}{name}") for name in plan.training.also}
    if before is not None:
        summary["continued_from"] = before.origin
    summary["warnings"] = warnings_of(summary, rows, principal.get("warnings", ()), commonest)
    return summary


def live_summary(
    plan: Plan,
    principal: RoleSummary,
    *,
    driver: str,
    clock_s: float,
    wall_s: float,
    traffic: TrafficFields,
    utilisation: dict[str, float],
) -> dict[str, Any]:
    """Return the part of a summary that is known while the run is under way, as far as figures need it."""
    return {
        "protocol": plan.method.name,
        "parties": len(plan.parties),
        "seed": plan.training.seed,
        "driver": driver,
        "status": "running",
        "warnings": [],
        "updates": principal["updates"],
        "epochs": principal["epochs"],
        "clock_s": clock_s,
        "wall_s": round(wall_s, 3),
        "metric": plan.training.metric,
        "validation_rows": plan.training.validation,
        "target": plan.target,
        **traffic,
        "staleness": principal.get("staleness", FRESH),
        "utilisation": utilisation,
    }


def metrics_row(
    record: Measurement, training: Training, clock_s: float, wall_s: float, traffic: Traffic
) -> dict[str, Any]:
    """Make one line of metrics.jsonl; `rows` names the rows of its value, accuracy and loss."""
    metric, tested = training.metric, record.tested
    row: dict[str, Any] = {
        "clock_s": clock_s,
        "wall_s": round(wall_s, 4),
        "update": record.update,
        "epochs": record.epochs,
        "value": finite(record.values[metric]),
        "accuracy": finite(record.values.get("accuracy")),
        "loss": finite(record.loss),
        "train_loss": finite(record.train_loss),
        "bytes_up": traffic.bytes_up,
        "bytes_down": traffic.bytes_down,
        "staleness": record.staleness,
        "missing": record.missing,
        "rows": "validation" if training.validation else "test",
    }
    row |= {name: finite(record.values.get(name)) for name in training.also}
    if (rounds := record.rounds) is not None:
        row |= {"round": rounds.round, "round_clock_s": rounds.clock_s, "tau": rounds.tau, "eta": rounds.eta}
    if tested is None:
        return row
    row |= {f"test_{name}": finite(tested.values.get(name)) for name in training.also}
    return row | {
        "test_value": finite(tested.values[metric]),
        "test_accuracy": finite(tested.values.get("accuracy")),
        "test_loss": finite(tested.loss),
    }


def time_to_target(rows: Iterable[dict[str, Any]], metric: str, target: float | None) -> float | None:
    """Return the clock at the first evaluation that reached the target; None if none did."""
    if target is None:
        return None
    values = ((row["clock_s"], row["value"]) for row in rows)
    return next(
        (clock for clock, value in values if value is not None and METRICS[metric].reached(value, target)), None
    )


def traffic_fields(traffic: Traffic, given_up: int | None = None) -> TrafficFields:
    """Return what crossed the network; `given_up`: number of undelivered messages, if that can happen."""
    found: TrafficFields = {
        "messages": traffic.messages,
        "bytes_up": traffic.bytes_up,
        "bytes_down": traffic.bytes_down,
        "bytes_relayed": traffic.bytes_relayed,
        "bytes_eval": traffic.evaluation_bytes,
        "bytes_by_kind": {kind: size for kind, (_, size) in traffic.by_kind.items()},
        "duplicates_dropped": traffic.duplicates_dropped,
        "undeliverable": traffic.undeliverable,
    }
    return found if given_up is None else {**found, "messages_given_up": given_up}


def staleness_histogram(found: Histogram | None) -> Histogram:
    """Return staleness.json: how often embeddings of each age were used, in bins of `width` updates."""
    found = found or {"width": 1, "counts": []}
    counts, width = np.asarray(found["counts"], np.int64), found["width"]
    counts = counts[: np.flatnonzero(counts)[-1] + 1] if counts.any() else counts[:0]
    while len(counts) > STALENESS_BINS:  # powers of two, so that histograms of several runs can be added
        counts, width = np.pad(counts, (0, len(counts) % 2)).reshape(-1, 2).sum(1), 2 * width
    return {"width": width, "counts": counts.tolist()}


def weights_digest(parts: Iterable[str]) -> str:
    """Return one digest over all roles' digests, the server's first."""
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def _privacy_fields(
    settings: PrivacySettings,
    parties: Iterable[str],
    spent: Mapping[str, PrivacySpent],
    withdrawn: Mapping[str, str],
    claim: str,
) -> dict[str, Any] | None:
    """Return `privacy` of summary.json, for the party that spent most.

    Returns None if there is no account, which does not mean 0.

    If a party has not sent its account (it left before the end), the maximum is unknown: μ and ε are null.
    """
    if not settings.on:
        return None
    silent = [name for name in parties if name not in spent]
    worst = None if silent else max(spent.values(), key=lambda one: one["mu"])
    return {
        "mu": finite(worst["mu"] if worst else None),
        "epsilon": finite(worst["epsilon"] if worst else None),
        "delta": settings.delta,
        "not_told": silent,
        "mechanism": settings.mechanism,
        "clip": settings.clip,
        "noise": settings.noise,
        "local_updates": settings.local_updates,
        claim: {
            "mu": finite(worst["claim_mu"] if worst else None),
            "epsilon": finite(worst["claim_epsilon"] if worst else None),
        },
        "parties": {name: _all_finite(one) for name, one in spent.items()},
        "withdrawn": dict(withdrawn),
    }


def _withdrawn_note(withdrawn: Mapping[str, str]) -> str:
    return listing((f"{name} withdrew: {why}" for name, why in withdrawn.items()), "; ")


def _all_finite(numbers: Mapping[str, Any]) -> dict[str, Any]:
    return {key: finite(value) if isinstance(value, float) else value for key, value in numbers.items()}


def finite(value: float | None) -> float | None:
    """Return the value; None if it is not a finite number, which JSON does not have."""
    return value if value is not None and isfinite(value) else None
