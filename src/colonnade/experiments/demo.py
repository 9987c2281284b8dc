"""The race that `colonnade demo` runs: embedded data, one party ten times slower than the others."""

from typing import Any

__all__ = ["DEMO", "DEMO_METHODS"]

DEMO_METHODS = ["centralised", "sync", "t-sync", "vafl", "vafl-ahead"]

DEMO: dict[str, Any] = {
    "data": {"source": "digits", "parties": 4},
    "model": {"party": "mlp:64", "embedding": 16, "server": "mlp:64"},
    "clock": {
        "compute": [
            {"kind": "exponential", "mean_s": 0.02},
            {"kind": "exponential", "mean_s": 0.02},
            {"kind": "exponential", "mean_s": 0.02},
            {"kind": "exponential", "mean_s": 0.2},
        ],
    },
    "train": {"batch_size": 64, "learning_rate": 0.3, "seconds": 60.0, "target": 0.95, "metric": "accuracy"},
    "methods": {
        "centralised": {"train.seconds": None, "train.epochs": 60},
        "vafl-ahead": {"protocol.name": "vafl", "protocol.batches": "shared", "protocol.extra_rows": 1},
    },
}
