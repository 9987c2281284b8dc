"""Ten, a hundred, a thousand parties: processor time per event and memory per party, which should not grow.

    python benchmarks/many_parties.py [--parties 10 100 1000] [--methods vafl flex] [--rows 100000] [--rounds 3]

Every party has 2 columns of 100,000 rows (noise with a class in it) and a linear model to an embedding of width 4; the
server sums or averages the embeddings (its own network would grow with a concatenation) and has a linear layer.
Batches of 64, speeds that differ (lognormal), links with latency and bandwidth; the table is warm: all of it is used.

Each case is a process of its own. Counted is what comes after the warm-up and everyone's first step, in parts of 5,000
events: processor time per event, the median over the parts; evaluations stand before and after. Memory is

    (peak RSS − RSS after a tiny run) / parties

and holds all there is: columns, table, ages, models, the simulator. Rounds take turns; the medians count.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars

import colonnade
from colonnade.data import Partition
from colonnade.experiments.config import from_dict
from colonnade.experiments.run import Run, one_thread, prepare

COLUMNS, WIDTH, BATCH, TEST_ROWS = 2, 4, 64, 1000
PART_EVENTS, PARTS = 5_000, 8
FLAT = 1.5


def rss_mb(field: str) -> float:
    """A line of /proc/self/status: VmRSS is the memory in use, VmHWM the most that ever was."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def synthetic(parties: int, rows: int) -> Partition:
    """Made party by party: never is there a table of all columns."""
    draw = np.random.default_rng(0)
    names = [f"x{i}" for i in range(COLUMNS * parties)]
    few = colonnade.from_arrays(draw.random((10, len(names)), np.float32), np.arange(10) % 2, columns=names)
    shape = colonnade.split(few, parties=parties, scale="none")
    y = draw.integers(0, 2, rows + TEST_ROWS)
    shift = y[:, None].astype(np.float32)
    blocks = [draw.random((len(y), COLUMNS), np.float32) + shift / 10 for _ in range(parties)]
    return replace(
        shape,
        train=tuple(block[:rows] for block in blocks),
        test=tuple(block[rows:] for block in blocks),
        y_train=y[:rows],
        y_test=y[rows:],
        ids=polars.Series("ids", np.arange(len(y))).cast(polars.String),
    )


def run_of(method: str, aggregate: str, data: Partition) -> Run:
    tables = {
        "protocol": {"name": method, **({"timeout_s": 0.5} if method == "flex" else {})},
        "model": {"party": "linear", "server": "linear", "embedding": WIDTH, "aggregate": aggregate},
        "clock": {"compute": {"kind": "lognormal", "mean_s": 0.1}, "network": {"latency_s": 0.005}},
        "train": {"batch_size": BATCH, "updates": 10**9, "learning_rate": 0.01, "seed": 0},
    }
    return prepare(from_dict(tables), data)


def begun(run: Run) -> bool:
    """Whether everyone has taken its first step."""
    return all(node.role.network.steps > 0 for node in run.simulator.nodes)  # type: ignore[attr-defined]


def measure(method: str, aggregate: str, parties: int, rows: int) -> dict[str, float]:
    """In this process, which must be fresh."""
    with one_thread():
        tiny = run_of(method, aggregate, synthetic(2, 2 * BATCH))
        tiny.simulator.advance(200)
        before_mb = rss_mb("VmRSS")
        start = time.perf_counter()
        run = run_of(method, aggregate, synthetic(parties, rows))
        simulator = run.simulator
        made_s = time.perf_counter() - start
        while not begun(run):
            simulator.advance(PART_EVENTS)
        begun_s = time.perf_counter() - start - made_s
        cpu_us, wall_us = [], []
        for _ in range(PARTS):
            cpu, wall = time.process_time(), time.perf_counter()
            simulator.advance(PART_EVENTS)
            cpu_us.append((time.process_time() - cpu) / PART_EVENTS * 1e6)
            wall_us.append((time.perf_counter() - wall) / PART_EVENTS * 1e6)
    return {
        "cpu_us": statistics.median(cpu_us),
        "wall_us": statistics.median(wall_us),
        "mb": (rss_mb("VmHWM") - before_mb) / parties,
        "made_s": made_s,
        "begun_s": begun_s,
        "updates": run._progress().k,
    }


def child(*arguments: Any) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def report(method: str, aggregate: str, found: dict[int, dict[str, float]]) -> None:
    least = min(found)
    for parties, of in found.items():
        cpu, mb = of["cpu_us"] / found[least]["cpu_us"], of["mb"] / found[least]["mb"]
        print(
            f"{method}, {aggregate}, {parties:5} parties: {of['cpu_us']:6.0f} µs of processor time per event "
            f"({cpu:.2f} ×; wall {of['wall_us']:.0f} µs), {of['mb']:5.2f} MB per party ({mb:.2f} ×); "
            f"made in {of['made_s']:.1f} s, all begun after {of['begun_s']:.1f} s, {of['updates']:.0f} updates",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parties", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--methods", nargs="+", default=["vafl", "flex"])
    parser.add_argument("--aggregates", nargs="+", default=["sum"])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        method, aggregate, parties, rows = options.child
        print(json.dumps(measure(method, aggregate, int(parties), int(rows))))
        return
    for method in options.methods:
        for aggregate in options.aggregates:
            rounds = [
                {parties: child(method, aggregate, parties, options.rows) for parties in options.parties}
                for _ in range(options.rounds)
            ]
            medians = {
                parties: {key: statistics.median(r[parties][key] for r in rounds) for key in rounds[0][parties]}
                for parties in options.parties
            }
            report(method, aggregate, medians)
    print(f"at most {FLAT} × is called flat")


if __name__ == "__main__":
    main()
