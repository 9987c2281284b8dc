"""MNIST, seven linear parties, one of them slow: time to 88 % for every method at its own best rate.

    python benchmarks/race.py --data DIR [--slow 4] [--seeds 5] [--delays one-slow|poisson] [--only sync,vafl]

Softmax on the sum of the parties' outputs, batch 600. One party computes a step in Exp(2 s), the others in
Exp(0.2 s); or, with `poisson`, party m in Poisson(2m)/2M s as in VAFL. Every method is tuned by itself over
optimisers and rates (all settings with one seed, those within 1.6 times of the best with all seeds); the
reported mean is over fresh seeds, and a best value at the edge of its grid is said. Afterwards each method
runs once more (seed 0), longer and with a decaying rate, to see where it ends: that column is one run, not a mean.
"""

import argparse
import multiprocessing
from functools import partial
from statistics import mean
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from colonnade.config.schema import from_dict
from colonnade.data import Partition, load, split
from colonnade.experiments.run import prepare

PARTIES, TARGET = 7, 0.88
GRID = {
    "sgd": (0.5, 1.0, 2.0, 4.0, 8.0),
    "momentum": (0.05, 0.1, 0.2, 0.4, 0.8, 1.6),
    "adam": (0.00625, 0.0125, 0.025, 0.05, 0.1, 0.2),
}
METHODS: dict[str, dict[str, Any]] = {
    "sync": {"name": "sync"},
    "vafl": {"name": "vafl", "table": "zeros"},
    "t-sync (t = 3)": {"name": "t-sync", "t": 3, "table": "zeros"},
    "vafl, extra rows": {"name": "vafl", "table": "zeros", "extra_rows": 0.25},
}


def compute_models(delays: str, slow: int) -> list[dict[str, Any]]:
    """Each party's seconds per step."""
    numbers = range(1, PARTIES + 1)
    if delays == "poisson":
        return [{"kind": "poisson", "mean_s": m / PARTIES, "unit_s": 1 / (2 * PARTIES)} for m in numbers]
    return [{"kind": "exponential", "mean_s": 2.0 if m == slow else 0.2} for m in numbers]


DATA: list[Partition] = []  # set before the workers are forked, so that they share it


def train(protocol: dict[str, Any], clock: list[dict[str, Any]], **settings: Any) -> dict[str, Any]:
    """One run's summary."""
    tables = {
        "model": {"party": "linear", "embedding": 10, "server": "none", "aggregate": "sum"},
        "protocol": protocol,
        "clock": {"compute": clock},
        "train": {"batch_size": 600, "target": TARGET} | settings,
    }
    return prepare(from_dict(tables), DATA[0]).execute()


def time_to_target(
    protocol: dict[str, Any], clock: Any, seconds: float, setting: tuple[str, float, int]
) -> float | None:
    """The clock at which one setting (optimiser, rate, seed) reaches the target."""
    optimiser, rate, seed = setting
    settings = {"learning_rate": rate, "optimiser": optimiser, "seed": seed, "seconds": seconds, "eval_every": "0.5 s"}
    return train(protocol, clock, **settings)["time_to_target_s"]


def tune(pool: Any, protocol: dict[str, Any], clock: Any, seeds: int, seconds: float) -> tuple[float, str, float, bool]:
    """(mean time to target, optimiser, rate, whether the rate is at its grid's edge) of the best setting."""
    one_run = partial(time_to_target, protocol, clock, seconds)
    grid = [(optimiser, rate) for optimiser, rates in GRID.items() for rate in rates]
    first = dict(zip(grid, pool.map(one_run, [(*setting, 0) for setting in grid]), strict=True))
    fastest = min(time for time in first.values() if time is not None)
    hopeful = [setting for setting, time in first.items() if time is not None and time <= 1.6 * fastest]
    repeats = pool.map(one_run, [(*setting, seed) for setting in hopeful for seed in range(1, seeds)])
    best = (float("inf"), "", 0.0, False)
    for index, (optimiser, rate) in enumerate(hopeful):
        times = [first[optimiser, rate], *repeats[index * (seeds - 1) : (index + 1) * (seeds - 1)]]
        if None not in times:
            best = min(best, (mean(times), optimiser, rate, rate in (GRID[optimiser][0], GRID[optimiser][-1])))
    return best


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", required=True, help="folder with the MNIST IDX files")
    arguments.add_argument("--slow", type=int, default=PARTIES, help="which party is slow (4 holds the middle rows)")
    arguments.add_argument("--seeds", type=int, default=3, help="per setting while tuning")
    arguments.add_argument("--final-seeds", type=int, default=12, help="fresh seeds for the reported mean")
    arguments.add_argument("--delays", choices=("one-slow", "poisson"), default="one-slow")
    arguments.add_argument("--jobs", type=int, default=2)
    arguments.add_argument("--only", default="", help="labels, separated by commas")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    console = Console(width=120)
    DATA.append(split(load("mnist", dir=options.data), parties=PARTIES))
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        race(options, pool, console)


def race(options: argparse.Namespace, pool: Any, console: Console) -> None:
    """Tune every method and print the table."""
    clock = compute_models(options.delays, options.slow)
    title = (
        f"MNIST, {options.delays}, party {options.slow} slow"
        if options.delays == "one-slow"
        else "MNIST, Poisson(2m)/2M"
    )
    table = Table(
        "method", f"time to {TARGET:.0%} (s)", "of sync", "optimiser, rate", "grid edge", "one run ends at", title=title
    )
    chosen = [label for label in METHODS if not options.only or label in options.only]
    reference = None
    for label in chosen:
        protocol = METHODS[label]
        seconds = 80.0 if label == "sync" else 30.0
        _, optimiser, rate, edge = tune(pool, protocol, clock, options.seeds, seconds)
        one_run = partial(time_to_target, protocol, clock, 2 * seconds)
        times = pool.map(one_run, [(optimiser, rate, 1000 + seed) for seed in range(options.final_seeds)])
        time_s = mean(time for time in times if time is not None)
        missed = times.count(None)
        reference = time_s if reference is None else reference
        decay = {"step_rule": "inverse", "step_offset": 300.0 if label == "sync" else 2000.0}
        end = train(protocol, clock, seconds=600.0, learning_rate=rate, optimiser=optimiser, **decay)["accuracy"]
        row = (
            f"{time_s:.1f}" + (f" ({missed} missed)" if missed else ""),
            f"{time_s / reference:.2f}",
            f"{optimiser} {rate:g}",
            "yes" if edge else "no",
            f"{end:.4f}",
        )
        table.add_row(label, *row)
        console.print(label, *row)
    oracle = train({"name": "centralised"}, clock, epochs=20, learning_rate=0.5, batch_size=600)["accuracy"]
    table.add_row("centralised (20 epochs, sgd 0.5)", "–", "–", "–", "–", f"{oracle:.4f}")
    console.print(table)


if __name__ == "__main__":
    main()
