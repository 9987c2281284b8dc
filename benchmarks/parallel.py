"""One worker against several: wall time of the same simulated run, whose trace and weights must not change.

    python benchmarks/parallel.py [--workers 2] [--rounds 5] [--updates 480]

8 parties with CNNs on bands of 32 × 32 images under `sync`, `vafl` and `flex`; then `vafl` with linear models, where
Python's own work dominates. What the machine has to give is measured in every round, too: processes that do nothing
but the parties' forward and backward passes, several at once against one with all of the work. All take turns; the
medians over the rounds count. A run is evaluated at its beginning and its end, by one thread.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import colonnade
from colonnade.data import Partition
from colonnade.experiments.config import from_dict
from colonnade.experiments.run import Run, prepare

PARTIES, SIDE, BATCH, WIDTH = 8, 32, 128, 16
CASES = [("sync", "cnn"), ("vafl", "cnn"), ("flex", "cnn"), ("vafl", "linear")]
PASSES = 320  # forward and backward, of all processes together


def images(rows: int) -> Partition:
    """Noise with a class in it; each party has a band of 4 × 32 pixels."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, 10, rows)
    x = draw.random((rows, SIDE * SIDE), np.float32) + y[:, None].astype(np.float32) / 10
    dataset = replace(colonnade.from_arrays(x, y), image=(SIDE, SIDE))
    return colonnade.split(dataset, parties=PARTIES, how="rows")


def run_of(data: Partition, method: str, model: str, updates: int, workers: int) -> Run:
    """Speeds that differ, so that jobs of many parties are under way at any time."""
    rounds = updates if method == "vafl" else max(1, updates // PARTIES)
    options = {"timeout_s": 0.5} if method == "flex" else {}
    tables = {
        "protocol": {"name": method, **options},
        "model": {"party": model, "embedding": WIDTH},
        "clock": {"compute": {"kind": "lognormal", "mean_s": 0.2}, "network": {"latency_s": 0.005}},
        "train": {"batch_size": BATCH, "updates": rounds, "learning_rate": 0.01, "eval_every": rounds},
    }
    return prepare(from_dict(tables), data, workers=workers)


def seconds(run: Run) -> tuple[float, str]:
    """Wall time, and what must not change."""
    start = time.perf_counter()
    summary = run.execute()
    return time.perf_counter() - start, summary["trace_sha256"] + summary["weights_sha256"]


def passes(model: str) -> None:
    """In a process of its own: so many forward and backward passes for every line read, and nothing else."""
    torch.set_num_threads(1)
    parties: list[Any] = [node.role for node in run_of(images(1024), "sync", model, 8, 1).simulator.nodes[1:]]
    gradient = np.full((BATCH, WIDTH), 1e-3, np.float32)
    print("ready", flush=True)
    for line in sys.stdin:
        for step in range(int(line)):
            party = parties[step % PARTIES]
            x = party._x[:BATCH]
            party.network.forward(x, step, 0)
            party.network.backward(x, step, 0, gradient)
        print("done", flush=True)


class Machine:
    """What several processes at once are worth, with no clock and no messages."""

    def __init__(self, count: int, model: str) -> None:
        command = [sys.executable, __file__, "--passes", model]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._processes = [subprocess.Popen(command, **pipes) for _ in range(count)]
        self._heard(self._processes)
        self._seconds(self._processes, PARTIES)  # the first passes are slow

    def _heard(self, processes: list[Any]) -> None:
        for process in processes:
            process.stdout.readline()

    def _seconds(self, processes: list[Any], each: int) -> float:
        start = time.perf_counter()
        for process in processes:
            print(each, file=process.stdin, flush=True)
        self._heard(processes)
        return time.perf_counter() - start

    def measure(self) -> tuple[float, float]:
        """Seconds of one process with all of the work, and of all with a part each."""
        count = len(self._processes)
        return self._seconds(self._processes[:1], PASSES), self._seconds(self._processes, PASSES // count)

    def close(self) -> None:
        for process in self._processes:
            process.stdin.close()
            process.wait()


def compare(data: Partition, method: str, model: str, options: argparse.Namespace) -> None:
    machine = Machine(options.workers, model)
    times: dict[int, list[float]] = {1: [], options.workers: []}
    bare: list[tuple[float, float]] = []
    digests = set()
    for _ in range(options.rounds):
        bare.append(machine.measure())
        for workers, taken in times.items():
            took, digest = seconds(run_of(data, method, model, options.updates, workers))
            taken.append(took)
            digests.add(digest)
    machine.close()
    assert len(digests) == 1, "another result"
    one, several = (statistics.median(taken) for taken in times.values())
    ceiling = statistics.median(alone / together for alone, together in bare)
    a_pass = statistics.median(alone for alone, _ in bare) / PASSES * 1000
    each = ", ".join(f"{mine / theirs:.2f}" for mine, theirs in zip(*times.values(), strict=True))
    print(
        f"{method} {model}: {one:.1f} s with 1, {several:.1f} s with {options.workers}: {one / several:.2f} × "
        f"({each}); {options.workers} processes without a simulator {ceiling:.2f} × "
        f"({a_pass:.1f} ms forward and backward), of which that is {one / several / ceiling:.0%}; "
        f"load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=480)
    parser.add_argument("--methods", nargs="+", default=[])
    parser.add_argument("--passes", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.passes:
        passes(options.passes)
        return
    data = images(4096)
    for method, model in CASES:
        if not options.methods or method in options.methods:
            compare(data, method, model, options)


if __name__ == "__main__":
    main()
