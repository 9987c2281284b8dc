"""The comparison of `colonnade demo`: all five families on embedded data, one party ten times slower than the others.

A method has its default settings, unless this study found better ones for these data (3 seeds, 231 runs):

    python benchmarks/demo.py --out FOLDER

The study chooses on the validation rows; the test rows play no part in it. Its results are in docs/results/demo.md.
"""

from typing import Any

__all__ = ["ABOUT", "DEMO", "DEMO_METHODS"]

DEMO_METHODS = [
    "centralised", "swift", "vafl", "t-sync", "sync", "flex", "adaptive-flex", "ignore", "wait", "wait-dp", "cascaded",
    "fedvs", "asysqn-sgd", "asysqn-svrg", "asysqn-saga", "synsqn-svrg",
]  # fmt: skip

ABOUT = (
    "Images of handwritten digits, 8 × 8 pixels: each of four parties holds two rows of pixels. The question is "
    "whether the digit is even or odd. All methods get this question, because the quasi-Newton methods can only tell "
    "two classes apart. The quasi-Newton methods have a linear model, which cannot do much better than the "
    "target; the other methods have networks."
)

FASTER = {"train.optimiser": "adam", "train.learning_rate": 0.03}
AVERAGED = {"protocol.average": True}

DEMO: dict[str, Any] = {
    "data": {"source": "digits-parity", "parties": 4, "validation_fraction": 0.3},
    "clock": {"compute": [{"kind": "exponential", "mean_s": mean_s} for mean_s in (0.02, 0.02, 0.02, 0.2)]},
    "train": {"seconds": 20.0, "eval_every": "0.1 s", "patience": 0, "target": 0.88},
    "methods": {
        "centralised": {"train.seconds": None, "train.epochs": 20, "train.eval_every": "1 epoch"},
        "vafl": AVERAGED,
        "t-sync": AVERAGED,
        "sync": AVERAGED | FASTER,
        "wait": FASTER,
        "fedvs": FASTER,
        "wait-dp": {"train.optimiser": "adam", "train.learning_rate": 0.02},
        "cascaded": {"train.optimiser": "adam", "train.learning_rate": {"server": 0.03, "party": 0.001}},
    },
}
