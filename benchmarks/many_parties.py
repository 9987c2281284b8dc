"""Ten, a hundred, a thousand parties: processor time per event and memory per party, which should not grow.

    python benchmarks/many_parties.py [--parties 10 100 1000] [--methods vafl flex] [--rows 100000] [--parts 15]

Every party has 2 columns of 100,000 rows (noise with a class in it) and a linear model to an embedding of width 4; the
server sums or averages the embeddings (its own network would grow with a concatenation) and has a linear layer.
Batches of 64, speeds that differ (lognormal), links with latency and bandwidth. The table is written once
beforehand, so that all of it is in memory; no party uploads all its rows at first (table = "zeros").

Each case is a process of its own. The measurement starts after the first step of all roles, in parts of 20,000
events that the cases take in turn: processor time per event, and the median of its ratio to the first case's over
the parts; evaluations come before and after. Memory is

    (peak RSS − RSS after a tiny run) / parties

and includes everything: columns, table, ages, models, the simulator. No accuracy is read and nothing is chosen, so
that no row is held out to validate on.
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
from colonnade.config.schema import from_dict
from colonnade.data import Partition
from colonnade.experiments.run import Run, one_thread, prepare

COLUMNS, WIDTH, BATCH, TEST_ROWS = 2, 4, 64, 1000
PART_EVENTS = 20_000  # more than a round of a thousand parties
FLAT = 1.5


def rss_mb(field: str) -> float:
    """A line of /proc/self/status: VmRSS is the memory in use, VmHWM the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def synthetic(parties: int, rows: int) -> Partition:
    """Made party by party, so that no table of all columns ever exists."""
    draw = np.random.default_rng(0)
    names = [f"x{i}" for i in range(COLUMNS * parties)]
    few = colonnade.from_arrays(draw.random((10, len(names)), np.float32), np.arange(10) % 2, columns=names)
    shape = colonnade.split(few, parties=parties, scale="none", validation_fraction=0)
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
        "protocol": {"name": method, **({"timeout_s": 0.5} if method == "flex" else {"table": "zeros"})},
        "model": {"party": "linear", "server": "linear", "embedding": WIDTH, "aggregate": aggregate},
        "clock": {"compute": {"kind": "lognormal", "mean_s": 0.1}, "network": {"latency_s": 0.005}},
        "train": {"batch_size": BATCH, "updates": 10**9, "learning_rate": 0.01, "seed": 0},
    }
    return prepare(from_dict(tables), data)


def begun(run: Run) -> bool:
    """Whether all roles have taken their first step."""
    return all(node.role.network.steps > 0 for node in run.simulator.nodes)  # type: ignore[attr-defined]


def touch(run: Run) -> None:
    """Write the whole table, as an epoch does: parts that were never written take no memory."""
    table = run.simulator.principal.role.table  # type: ignore[attr-defined]
    table.values[...], table.renewed[...] = 0, 0


def serve(method: str, aggregate: str, parties: int, rows: int, tiny_rows: int = 2 * BATCH) -> None:
    """In a process of its own: make the run, report when all have begun; then run one part for every line read."""
    with one_thread():
        run_of(method, aggregate, synthetic(2, tiny_rows)).simulator.advance(200)
        before_mb, start = rss_mb("VmRSS"), time.perf_counter()
        run = run_of(method, aggregate, synthetic(parties, rows))
        touch(run)
        while not begun(run):
            run.simulator.advance(PART_EVENTS)
        say({"begun_s": time.perf_counter() - start})
        for _ in sys.stdin:
            cpu, wall = time.process_time(), time.perf_counter()
            run.simulator.advance(PART_EVENTS)
            cpu_us, wall_us = (time.process_time() - cpu) * 1e6, (time.perf_counter() - wall) * 1e6
            mb = (rss_mb("VmHWM") - before_mb) / parties
            updates = run._progress().k
            say({"cpu_us": cpu_us / PART_EVENTS, "wall_us": wall_us / PART_EVENTS, "mb": mb, "updates": updates})


def say(found: dict[str, float]) -> None:
    print(json.dumps(found), flush=True)


class Case:
    """A run in a process of its own."""

    def __init__(self, *arguments: Any) -> None:
        command = [sys.executable, __file__, "--serve", *map(str, arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.begun_s = self._answer()["begun_s"]  # cases are made one at a time
        self.parts: list[dict[str, float]] = []

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        answer: dict[str, float] = json.loads(self._process.stdout.readline())
        return answer

    def advance(self) -> None:
        assert self._process.stdin is not None
        print("on", file=self._process.stdin, flush=True)
        self.parts.append(self._answer())

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def median(self, key: str) -> float:
        return statistics.median(part[key] for part in self.parts)


def compare(method: str, aggregate: str, parties: list[int], rows: int, parts: int) -> None:
    cases = {count: Case(method, aggregate, count, rows) for count in parties}
    for _ in range(parts):
        for case in cases.values():
            case.advance()
    first = cases[parties[0]]
    for count, case in cases.items():
        case.end()
        times = statistics.median(
            mine["cpu_us"] / least["cpu_us"] for mine, least in zip(case.parts, first.parts, strict=True)
        )
        mb = case.parts[-1]["mb"]
        print(
            f"{method}, {aggregate}, {count:5} parties: {case.median('cpu_us'):4.0f} µs of processor time per event "
            f"({times:.2f} ×; wall {case.median('wall_us'):.0f} µs), {mb:.2f} MB per party "
            f"({mb / first.parts[-1]['mb']:.2f} ×); all begun after {case.begun_s:.0f} s, "
            f"{case.parts[-1]['updates']:.0f} updates",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parties", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--methods", nargs="+", default=["vafl", "flex"])
    parser.add_argument("--aggregates", nargs="+", default=["sum"])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--parts", type=int, default=15)
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        method, aggregate, parties, rows = options.serve
        serve(method, aggregate, int(parties), int(rows))
        return
    for method in options.methods:
        for aggregate in options.aggregates:
            compare(method, aggregate, options.parties, options.rows, options.parts)
    print(f"at most {FLAT} × is called flat")


if __name__ == "__main__":
    main()
