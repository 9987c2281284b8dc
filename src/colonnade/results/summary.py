"""The lines of metrics.jsonl and the fields of summary.json: the same for every driver."""

import hashlib
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

import numpy as np

from colonnade.algorithms.evaluation import Measurement
from colonnade.data.suggest import listing
from colonnade.drivers.traffic import Traffic
from colonnade.models.metrics import METRICS
from colonnade.privacy.settings import PrivacySettings

__all__ = ["metrics_row", "privacy_fields", "staleness_histogram", "time_to_target", "traffic_fields", "weights_digest",
           "withdrawn_note"]  # fmt: skip

STALENESS_BINS = 128


def metrics_row(record: Measurement, metric: str, clock_s: float, wall_s: float, traffic: Traffic) -> dict[str, Any]:
    """One line of metrics.jsonl."""
    return {
        "clock_s": clock_s,
        "wall_s": round(wall_s, 4),
        "update": record.update,
        "epochs": record.epochs,
        "value": _finite(record.values[metric]),
        "accuracy": _finite(record.values.get("accuracy")),
        "loss": _finite(record.loss),
        "train_loss": _finite(record.train_loss),
        "bytes_up": traffic.bytes_up,
        "bytes_down": traffic.bytes_down,
        "staleness": record.staleness,
        "missing": record.missing,
    }


def time_to_target(rows: Iterable[dict[str, Any]], metric: str, target: float | None) -> float | None:
    """The clock at the first evaluation that reached the target."""
    if target is None:
        return None
    values = ((row["clock_s"], row["value"]) for row in rows)
    return next(
        (clock for clock, value in values if value is not None and METRICS[metric].reached(value, target)), None
    )


def traffic_fields(traffic: Traffic) -> dict[str, Any]:
    """What crossed the wire."""
    return {
        "messages": traffic.messages,
        "bytes_up": traffic.bytes_up,
        "bytes_down": traffic.bytes_down,
        "bytes_relayed": traffic.bytes_relayed,
        "bytes_eval": traffic.evaluation_bytes,
        "bytes_by_kind": {kind: size for kind, (_, size) in traffic.by_kind.items()},
        "duplicates_dropped": traffic.duplicates_dropped,
        "undeliverable": traffic.undeliverable,
    }


def staleness_histogram(found: Mapping[str, Any]) -> dict[str, Any]:
    """staleness.json: how often embeddings of each age were used, in bins of `width` updates."""
    counts, width = np.asarray(found.get("counts", ()), np.int64), found.get("width", 1)
    counts = counts[: np.flatnonzero(counts)[-1] + 1] if counts.any() else counts[:0]
    while len(counts) > STALENESS_BINS:  # powers of two: histograms of several runs can be added
        counts, width = np.pad(counts, (0, len(counts) % 2)).reshape(-1, 2).sum(1), 2 * width
    return {"width": width, "counts": counts.tolist()}


def weights_digest(parts: Iterable[str]) -> str:
    """One digest over all roles' digests, the server's first."""
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def privacy_fields(
    settings: PrivacySettings,
    parties: Iterable[str],
    spent: Mapping[str, Mapping[str, Any]],
    withdrawn: Mapping[str, str],
    claim: str,
) -> dict[str, Any] | None:
    """`privacy` of summary.json: that of the party that spent most; None where nothing is accounted, which is not 0.

    Where a party has not told its account (it left before the end), nobody knows the most: μ and ε are null.
    """
    if not settings.on:
        return None
    silent = [name for name in parties if name not in spent]
    unknown = {"mu": None, "epsilon": None, "claim_mu": None, "claim_epsilon": None}
    worst = unknown if silent else max(spent.values(), key=lambda one: one["mu"])
    return {
        **{key: _finite(worst[key]) for key in ("mu", "epsilon")},
        "delta": settings.delta,
        "not_told": silent,
        "mechanism": settings.mechanism,
        "clip": settings.clip,
        "noise": settings.noise,
        "local_updates": settings.local_updates,
        claim: {key: _finite(worst[f"claim_{key}"]) for key in ("mu", "epsilon")},
        "parties": {name: _all_finite(one) for name, one in spent.items()},
        "withdrawn": dict(withdrawn),
    }


def withdrawn_note(withdrawn: Mapping[str, str]) -> str:
    """For people."""
    return listing((f"{name} withdrew: {why}" for name, why in withdrawn.items()), "; ")


def _all_finite(numbers: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _finite(value) if isinstance(value, float) else value for key, value in numbers.items()}


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None
