"""The ratios of several benchmarks, of this checkout and of another one in turns, with their spread.

    python benchmarks/before_after.py --against FOLDER --data DIR [--rounds 5] [--only events,overhead]

Each benchmark is the checkout's own, run with its own code, so both must have it. Every number is a ratio in one run of
one benchmark. The table has medians over the rounds, with the least and the greatest. Run it on a quiet machine.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parents[1]
LIMIT_S = 900.0


class Measure(NamedTuple):
    """A ratio that a benchmark prints; `pattern` has it as its only group."""

    what: str
    reach: str
    pattern: str


class Benchmark(NamedTuple):
    """One command, and what it prints."""

    command: str
    measures: list[Measure]


BENCHMARKS = {
    "asysqn": Benchmark(
        "linear.py wall --data a9a --dir {data} --rounds 1 --updates 100",
        [
            Measure("asysqn-svrg on a9a to 1e-4 / saga", "at most 10", r"saga +│ +([\d.]+)"),
            Measure("the same / lbfgs", "at most 10", r"lbfgs +│ +([\d.]+)"),
            Measure("block step of asysqn-svrg / synsqn-svrg", "at most 1.3", r"step of asysqn-svrg[^│]*│ +([\d.]+)"),
        ],
    ),
    "fedvs": Benchmark(
        "fedvs.py round",
        [Measure("secure fedvs round / plaintext round", "at most 4", r"secure round / plaintext round ([\d.]+)")],
    ),
    "events": Benchmark(
        "events.py --cycles 5000 --rounds 1",
        [
            Measure(f"events/s / lean SimPy, {case}", "at least 1.2", rf"{start}.*?own mailbox  ([\d.]+)")
            for case, start in (
                ("4 parties", r"^4 parties, latency,"),
                ("4 parties, bandwidth", r"^4 parties, latency \+"),
                ("100 parties", r"^100 parties, latency,"),
                ("100 parties, bandwidth", r"^100 parties, latency \+"),
            )
        ],
    ),
    "overhead": Benchmark(
        "overhead.py",
        [
            Measure(f"simulator sync, batch {batch} / split loop", reach, rf"^batch {batch}:.*?split loop  ([\d.]+)")
            for batch, reach in ((64, "at most 1.15"), (256, ""))
        ],
    ),
    "network": Benchmark(
        "network.py --seconds 2 --rounds 1",
        [
            Measure(f"round trips/s / tuned stream, {n} p.", "at least 0.75", rf"^{n} p.*?tuned.*?ratio ([\d.]+)")
            for n in (1, 4)
        ],
    ),
    "splitnn": Benchmark(
        "splitnn.py --dir {data} --rounds 1",
        [Measure("splitnn / torch loop", "at least 0.9", r"^median:.*ratio ([\d.]+)")],
    ),
    "predict": Benchmark(
        "predict.py",
        [
            Measure(f"prediction for {ids} ids, p50 / bare model", reach, rf"^│ {ids} +│(?:[^│]*│){{5}} +([\d.]+)")
            for ids, reach in ((1, "at most 4"), (100, ""), (1000, ""))
        ],
    ),
}  # fmt: skip


def measured(checkout: Path, name: str, data: Path) -> list[float | None]:
    """Run one benchmark of a checkout; None for what it did not print."""
    benchmark = BENCHMARKS[name]
    script, *arguments = benchmark.command.format(data=data).split()
    environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command = [sys.executable, str(checkout / "benchmarks" / script), *arguments]
    try:
        done = subprocess.run(
            command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        print(f"{name} of {checkout.name}: not over after {LIMIT_S:.0f} s", file=sys.stderr, flush=True)
        return [None] * len(benchmark.measures)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        print(f"{name} of {checkout.name}: {''.join(said)}", file=sys.stderr, flush=True)
    found = [re.search(one.pattern, done.stdout, re.MULTILINE | re.DOTALL) for one in benchmark.measures]
    return [float(match[1]) if match else None for match in found]


def shown(values: list[float | None]) -> str:
    """The median and the spread."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return "–"
    return f"{statistics.median(known):.2f} ({known[0]:.2f}–{known[-1]:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, required=True, metavar="FOLDER", help="the other checkout")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the folder with the real data")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(BENCHMARKS), help=f"some of {', '.join(BENCHMARKS)}")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"--only {','.join(unknown)}: there are {', '.join(BENCHMARKS)}")
    checkouts, data = (options.against.resolve(), HERE), options.data.resolve()
    print("| what | before | now | reach |\n|---|---|---|---|", flush=True)
    for name in names:
        rounds = [[measured(checkout, name, data) for checkout in checkouts] for _ in range(options.rounds)]
        for place, one in enumerate(BENCHMARKS[name].measures):
            before, now = ([row[side][place] for row in rounds] for side in (0, 1))
            print(f"| {one.what} | {shown(before)} | {shown(now)} | {one.reach} |", flush=True)


if __name__ == "__main__":
    main()
