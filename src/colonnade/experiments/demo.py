"""The race that `colonnade demo` runs: embedded data, one party ten times slower than the others.

Every method has its own best rate out of sgd 0.1–0.4, momentum 0.01–0.1 and adam 0.002–0.04 (three seeds).
"""

from typing import Any

__all__ = ["DEMO", "DEMO_METHODS"]

DEMO_METHODS = ["centralised", "sync", "t-sync", "vafl", "vafl-zeros"]

DEMO: dict[str, Any] = {
    "data": {"source": "digits", "parties": 4},
    "model": {"party": "mlp:64", "embedding": 16, "server": "mlp:64"},
    "clock": {"compute": [{"kind": "exponential", "mean_s": mean_s} for mean_s in (0.02, 0.02, 0.02, 0.2)]},
    "train": {
        "batch_size": 64,
        "optimiser": "adam",
        "learning_rate": 0.01,
        "seconds": 40.0,
        "eval_every": "0.25 s",
        "target": 0.95,
    },
    "methods": {
        "centralised": {"train.seconds": None, "train.epochs": 40, "train.eval_every": "1 epoch"},
        "sync": {"train.learning_rate": 0.02},
        "vafl-zeros": {"protocol.name": "vafl", "protocol.table": "zeros"},
    },
}
