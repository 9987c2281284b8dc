"""One worker against several: wall time of the same simulated run, whose trace and weights must not change.

    python benchmarks/parallel.py [--workers 2] [--rounds 3] [--updates 160]

8 parties with CNNs on bands of 32 × 32 images under `sync`, `vafl` and `flex`; then `vafl` with linear models, where
Python's own work dominates. Runs take turns; the ratio of the medians counts.
"""

import argparse
import statistics
import time
from dataclasses import replace
from typing import Any

import numpy as np

import colonnade
from colonnade.data import Partition
from colonnade.experiments.config import from_dict
from colonnade.experiments.run import prepare

PARTIES, SIDE = 8, 32
CASES = [("sync", "cnn"), ("vafl", "cnn"), ("flex", "cnn"), ("vafl", "linear")]


def images(rows: int) -> Partition:
    """Noise with a class in it; each party has a band of 4 × 32 pixels."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, 10, rows)
    x = draw.random((rows, SIDE * SIDE), np.float32) + y[:, None].astype(np.float32) / 10
    dataset = replace(colonnade.from_arrays(x, y), image=(SIDE, SIDE))
    return colonnade.split(dataset, parties=PARTIES, how="rows")


def tables(method: str, model: str, updates: int) -> dict[str, Any]:
    """Speeds that differ, so that jobs of many parties are under way at any time."""
    rounds = updates if method == "vafl" else max(1, updates // PARTIES)
    options = {"timeout_s": 0.5} if method == "flex" else {}
    return {
        "protocol": {"name": method, **options},
        "model": {"party": model, "embedding": 16},
        "clock": {"compute": {"kind": "lognormal", "mean_s": 0.2}, "network": {"latency_s": 0.005}},
        "train": {"batch_size": 128, "updates": rounds, "learning_rate": 0.01, "eval_every": rounds},
    }


def seconds(data: Partition, settings: dict[str, Any], workers: int) -> tuple[float, str]:
    """Wall time, and what must not change."""
    run = prepare(from_dict(settings), data, workers=workers)
    start = time.perf_counter()
    summary = run.execute()
    return time.perf_counter() - start, summary["trace_sha256"] + summary["weights_sha256"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=160)
    options = parser.parse_args()
    data = images(4096)
    for method, model in CASES:
        settings = tables(method, model, options.updates)
        times: dict[int, list[float]] = {1: [], options.workers: []}
        digests = set()
        for _ in range(options.rounds):
            for workers, taken in times.items():
                took, digest = seconds(data, settings, workers)
                taken.append(took)
                digests.add(digest)
        assert len(digests) == 1, "another result"
        one, several = (statistics.median(taken) for taken in times.values())
        print(f"{method} {model}: {one:.1f} s with 1, {several:.1f} s with {options.workers}: {one / several:.2f} ×")


if __name__ == "__main__":
    main()
