"""What a zeroth-order update costs: `cascaded` against `vafl` on the same model, both in the simulator.

    python benchmarks/zeroth.py [--updates 1500] [--rounds 5] [--distribution gaussian]

Four parties `dense` 128 and a server `mlp:128`, batches of 64, SGD, one thread; rows of the size of digits
(16 columns for each party) and of MNIST (196). Both run in the same process, alternating; the ratio is that of the
medians of updates per second. Random data: nothing here is about learning.
"""

import argparse
import time
from statistics import median

import numpy as np
import torch

import colonnade
from colonnade.data import from_arrays, split

PARTIES, WIDTH, CLASSES, BATCH, ROWS = 4, 128, 10, 64, 6000
SIZES = {"digits": 16, "MNIST": 196}  # columns for each party
GOAL = 0.5


def updates_per_second(data: colonnade.Partition, protocol: dict[str, object], updates: int) -> float:
    """One run, without set-up and evaluation."""
    run = colonnade.prepare(
        data,
        protocol={**protocol, "table": "zeros"},
        party_model="dense",
        embedding=WIDTH,
        server_model="mlp:128",
        batch_size=BATCH,
        updates=updates,
        eval_every=updates,
        learning_rate=0.001,
    )
    start = time.process_time()  # one thread, and independent of other load on the machine
    run.simulator.run()
    return updates / (time.process_time() - start)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--updates", type=int, default=1500)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--distribution", choices=("gaussian", "sphere"), default="gaussian")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    contestants: dict[str, dict[str, object]] = {
        "vafl": {"name": "vafl"},
        "cascaded": {"name": "cascaded", "distribution": options.distribution},
    }
    for size, columns in SIZES.items():
        x = generator.standard_normal((ROWS, PARTIES * columns), dtype=np.float32)
        y = generator.integers(0, CLASSES, len(x))
        data = split(from_arrays(x, y, x_test=x[:64], y_test=y[:64]), parties=PARTIES, scale="none")
        speeds: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(options.rounds):
            for name, protocol in contestants.items():
                speeds[name].append(updates_per_second(data, protocol, options.updates))
        middle = {name: median(values) for name, values in speeds.items()}
        print(f"{size}: " + ", ".join(f"{name} {speed:.0f} updates/s" for name, speed in middle.items()))
        print(f"  cascaded / vafl {middle['cascaded'] / middle['vafl']:.2f}   (at least {GOAL})")


if __name__ == "__main__":
    main()
