"""One worker against several: wall time of the same simulated run, whose trace and weights must not change.

    python benchmarks/parallel.py [--workers 2] [--rounds 5] [--tries 20] [--updates 480] [--schedule]

8 parties with CNNs on bands of 32 × 32 images under `sync`, `vafl` and `flex`; then `vafl` with linear models, where
Python's own work dominates. Every round also measures what the machine can give: processes that do nothing
but the parties' forward and backward passes, several at once against one with all of the work. All take turns; the
medians over the rounds count. A run is evaluated at its beginning and its end, by one thread.

--schedule measures separately what the order of the jobs allows: linear models, whose jobs sleep as long as a pass of
20 ms would take, which needs no core. Two workers cannot be more than twice as fast there.

A ratio needs both cores: a round counts if everything else on the machine took less than 0.15 of a core at any time
that was measured. If the tries give too few rounds, those with the least are taken, and the line says how much.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

import colonnade
from colonnade.algorithms.flex.messages import LocalStep
from colonnade.algorithms.vafl.messages import Embed, Refine
from colonnade.config.schema import from_dict
from colonnade.data import Partition
from colonnade.experiments.run import Run, prepare

PARTIES, SIDE, BATCH, WIDTH = 8, 32, 128, 16
CASES = [("sync", "cnn"), ("vafl", "cnn"), ("flex", "cnn"), ("vafl", "linear")]
QUIET = 0.15  # cores
PASS_S = 0.02  # forward and backward, asleep
T = TypeVar("T")
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
    """Wall time, and the results that must not change."""
    start = time.perf_counter()
    summary = run.execute()
    return time.perf_counter() - start, summary["trace_sha256"] + summary["weights_sha256"]


def asleep(run: Run) -> Run:
    """The same run, with the clock's work unchanged and jobs that sleep: two fifths of a pass are its forward half."""
    for node in run.simulator.nodes[1:]:
        compute = node.role.compute

        def rest(job: Any, compute: Any = compute) -> Any:
            match job:
                case Embed(batch=np.ndarray()):
                    time.sleep(0.4 * PASS_S)
                case Refine() | LocalStep(first=True):
                    time.sleep(0.6 * PASS_S)
                case LocalStep():
                    time.sleep(PASS_S)
            return compute(job)

        node.role.compute = rest  # type: ignore[method-assign]
    return run


def schedule(data: Partition, method: str, options: argparse.Namespace) -> None:
    times: dict[int, list[float]] = {1: [], options.workers: []}
    for _ in range(options.rounds):
        for workers, taken in times.items():
            taken.append(seconds(asleep(run_of(data, method, "linear", options.updates, workers)))[0])
    one, several = (statistics.median(taken) for taken in times.values())
    print(
        f"{method}, asleep: {one:.2f} s with 1, {several:.2f} s with {options.workers}: {one / several:.2f} ×",
        flush=True,
    )


def machine_s() -> float:
    """Processor time of everything on this machine."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    busy = sum(map(int, fields)) - int(fields[3]) - int(fields[4])  # without idle time and waits for a disk
    return busy / os.sysconf("SC_CLK_TCK")


def processes_s(pids: list[int]) -> float:
    """Processor time of these processes."""
    found = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13] for pid in pids)
    return sum(int(ticks) for fields in found for ticks in fields) / os.sysconf("SC_CLK_TCK")


class Others:
    """The most cores that other processes took during any measurement."""

    def __init__(self, pids: list[int]) -> None:
        self._pids, self.most = [os.getpid(), *pids], 0.0

    def watch(self, measured: Callable[[], T]) -> T:
        before, start = machine_s() - processes_s(self._pids), time.perf_counter()
        result = measured()
        taken = machine_s() - processes_s(self._pids) - before
        self.most = max(self.most, taken / (time.perf_counter() - start))
        return result


def passes(model: str) -> None:
    """In a process of its own: this many forward and backward passes for every line read, and nothing else."""
    torch.set_num_threads(1)
    parties: list[Any] = [node.role for node in run_of(images(1024), "sync", model, 8, 1).simulator.nodes[1:]]
    gradient = np.full((BATCH, WIDTH), 1e-3, np.float32)
    print("ready", flush=True)
    for line in sys.stdin:
        for step in range(int(line)):
            party = parties[step % PARTIES]
            x = party.x[:BATCH]
            party.network.forward(x, step, 0)
            party.network.backward(x, step, 0, gradient)
        print("done", flush=True)


class Machine:
    """The gain of several processes at once, without clock and messages."""

    def __init__(self, count: int, model: str) -> None:
        command = [sys.executable, __file__, "--passes", model]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._processes = [subprocess.Popen(command, **pipes) for _ in range(count)]
        self.pids = [process.pid for process in self._processes]
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

    def alone(self) -> float:
        """Seconds of one process that does all the work."""
        return self._seconds(self._processes[:1], PASSES)

    def together(self) -> float:
        """Seconds of all processes with a part each."""
        return self._seconds(self._processes, PASSES // len(self._processes))

    def close(self) -> None:
        for process in self._processes:
            process.stdin.close()
            process.wait()


class Round(NamedTuple):
    """One round: seconds of each measurement."""

    others: float  # in cores, not seconds
    one: float
    several: float
    alone: float
    together: float


def measure(data: Partition, case: tuple[str, str], workers: int, updates: int, machine: Machine) -> Round:
    """Measure everything once, as close together as possible."""
    others = Others(machine.pids)
    alone, together = others.watch(machine.alone), others.watch(machine.together)
    runs = [run_of(data, *case, updates, count) for count in (1, workers)]
    (one, first), (several, second) = (others.watch(lambda run=run: seconds(run)) for run in runs)  # type: ignore[misc]
    assert first == second, "another result"
    return Round(others.most, one, several, alone, together)


def compare(data: Partition, case: tuple[str, str], options: argparse.Namespace) -> None:
    machine = Machine(options.workers, case[1])
    rounds: list[Round] = []
    while len(rounds) < options.tries and sum(each.others < QUIET for each in rounds) < options.rounds:
        rounds.append(measure(data, case, options.workers, options.updates, machine))
    machine.close()
    quietest = sorted(rounds)[: options.rounds]
    one, several, alone, together = (
        statistics.median(getattr(each, name) for each in quietest) for name in Round._fields[1:]
    )
    print(
        f"{' '.join(case)}: {one:.2f} s with 1, {several:.2f} s with {options.workers}: {one / several:.2f} × "
        f"({', '.join(f'{each.one / each.several:.2f}' for each in quietest)}); {options.workers} processes without a "
        f"simulator {alone / together:.2f} × ({alone / PASSES * 1000:.1f} ms forward and backward), of which that is "
        f"{one / several / (alone / together):.0%}; {len(quietest)} rounds of {len(rounds)}, in which all else took at "
        f"most {quietest[-1].others:.2f} cores",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--updates", type=int, default=480)
    parser.add_argument("--methods", nargs="+", default=[])
    parser.add_argument("--schedule", action="store_true")
    parser.add_argument("--passes", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.passes:
        passes(options.passes)
        return
    data = images(4096)
    chosen = [case for case in CASES if not options.methods or case[0] in options.methods]
    for case in chosen:
        if not options.schedule:
            compare(data, case, options)
        elif case[1] == "cnn":
            schedule(data, case[0], options)


if __name__ == "__main__":
    main()
