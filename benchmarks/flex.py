"""Flex-VFL's experiments: time to target against round trips, speeds, timeouts and CPU traces.

    python benchmarks/flex.py common|tuned|traces|timeouts|auto [--data DIR] [--seeds 5] [--workers 2] [--out DIR]

One unit of time is a second of the simulated clock. Parties take 5, 10, 15 and 20 local steps in a timeout of 20, the
server 20; t_comm (a round trip) is 1, 10 or 50. digits: 8 parties, target 90 %; mfeat: 6 parties, one view each, target
95 %; the mean of five evaluations counts. Plain SGD, batch 64. A round's cost does not change what it learns, so one
run of a round-based method serves all round trips; `vafl` runs for each.

    common     one common rate, all methods, both data sets and both ways to treat labels
    tuned      digits, labels kept: every method with its own rate from a grid; a best value at its edge is said
    traces     Google's CPU traces (--data .../google-cluster-2011/GCD_VMs.tar.gz): adaptive against fixed rates
    timeouts   time to target against the timeout, at t_comm = 10: a U, drawn in flex-timeouts.html
    auto       timeout_s = "auto" against the best fixed timeout of the same grid
"""

import argparse
import json
import multiprocessing
from collections import defaultdict
from collections.abc import Iterable
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import plotly.graph_objects as plotly
import torch
from plotly.subplots import make_subplots
from rich.console import Console
from rich.progress import track
from rich.table import Table

from colonnade.experiments.config import from_dict
from colonnade.experiments.run import prepare
from colonnade.protocol.errors import TrainingDiverged

TIMEOUT, ROUND_TRIPS = 20.0, (1, 10, 50)
ROUNDS = {"flex": TIMEOUT, "adaptive-flex": TIMEOUT, "sync-min": TIMEOUT, "sync-max": 4 * TIMEOUT, "p-bcd": TIMEOUT / 5}
DATA: dict[str, dict[str, Any]] = {
    "digits": {"data": {"source": "digits", "parties": 8}, "steps": (5, 10, 15, 20) * 2, "target": 0.9, "rate": 0.03},
    "mfeat": {
        "data": {"source": "mfeat", "split": "views"},
        "steps": (5, 10, 15, 20, 5, 20),
        "target": 0.95,
        "rate": 0.03,
    },
}
RATES = {
    "flex": (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3),
    "adaptive-flex": (0.2, 0.3, 0.5, 0.8, 1.2, 2.0, 3.0),  # A
    "sync-min": (0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5),
    "sync-max": (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2),
    "p-bcd": (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0),
    "vafl": (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0),
}
TIMEOUTS = (4.0, 8.0, 12.0, 16.0, 20.0, 28.0, 40.0, 60.0, 100.0)
LIMIT_S = {1.0: 8_000.0, 10.0: 20_000.0, 50.0: 60_000.0}  # of the clock, by t_comm: who is not there by then is not
MACHINES = 1600  # in the archive
TUNED_LIMIT_S = {1.0: 2_500.0, 10.0: 4_000.0, 50.0: 16_000.0}  # the best rates need a third of that
SMOOTH = 5  # evaluations whose mean has to reach the target: single ones jump

Job = dict[str, Any]


def clock(steps: Iterable[float], t_comm: float) -> dict[str, Any]:
    """Fixed speeds, and a round trip of t_comm."""
    free = {"latency_s": 0.0, "bandwidth_mbps": inf}
    return {
        "compute": [{"mean_s": TIMEOUT / step} for step in steps],
        "network": free | {"latency_s": t_comm / 2},
        "server": {"compute": {"mean_s": 1.0}, "network": free},
    }


def job(source: str, protocol: dict[str, Any], rate: float, seed: int, t_comm: float = 10.0, **train: Any) -> Job:
    """One run as a config; `times` below says what is read from it."""
    setting = DATA[source]
    every = 20 if protocol["name"] == "vafl" else 5 if protocol["name"] == "p-bcd" else 1
    return {
        "data": setting["data"],
        "model": {"party": "mlp:32", "embedding": 8, "server": "linear"},
        "protocol": protocol,
        "clock": clock(setting["steps"], t_comm),
        "train": {
            "batch_size": 64,
            "learning_rate": rate,
            "seconds": LIMIT_S[float(t_comm)],
            "target": setting["target"],
            "eval_every": every,
            "seed": seed,
        }
        | train,
    }


def reach(tables: Job) -> tuple[float, int]:
    """Clock and rounds at the target; (inf, 0) if it is never reached, or training diverges."""
    torch.set_num_threads(1)
    run = prepare(from_dict(tables))
    try:
        while (found := crossing(run.rows, tables["train"]["target"])) is None and run.simulator.advance(500):
            pass
    except TrainingDiverged:
        return inf, 0
    return (found["clock_s"], found["update"]) if found else (inf, 0)


def crossing(rows: list[dict[str, Any]], target: float) -> dict[str, Any] | None:
    """The first evaluation at which the mean of the last ones is at the target."""
    values = [row["value"] or 0.0 for row in rows]
    for last in range(SMOOTH, len(rows) + 1):
        if mean(values[last - SMOOTH : last]) >= target:
            return rows[last - 1]
    return None


def run_all(jobs: list[Job], workers: int) -> list[tuple[float, int]]:
    """All of them, in the order given."""
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return list(track(pool.imap(reach, jobs), total=len(jobs), description="runs"))


def at(method: str, t_comm: float, measured: tuple[float, int], timeout: float = TIMEOUT) -> float:
    """The time of a round-based run, had its round trip been t_comm; it ran with 10."""
    clock_s, rounds = measured
    return clock_s + (t_comm - 10.0) * rounds if clock_s < inf else inf


def show(title: str, columns: list[str], rows: list[list[str]]) -> None:
    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="left" if column == columns[0] else "right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def number(values: list[float]) -> str:
    """The mean, or how many of them never came."""
    missing = sum(value == inf for value in values)
    return f"{mean(values):,.0f}" if not missing else f"– ({missing} of {len(values)})"


def contestants(labels: str) -> dict[str, dict[str, Any]]:
    """All six methods."""
    local = {"timeout_s": TIMEOUT, "labels": labels}
    rounds = {name: {"name": name} | (local if name != "p-bcd" else {"labels": labels}) for name in ROUNDS}
    return rounds | {"vafl": {"name": "vafl", "table": "zeros"}}


def times_of(
    source: str, labels: str, rates: dict[str, float], seeds: range, workers: int
) -> dict[tuple[str, int], list[float]]:
    """(method, t_comm) → a time for every seed."""
    keys, jobs = [], []
    for name, protocol in contestants(labels).items():
        for t_comm in ROUND_TRIPS if name == "vafl" else (10,):
            for seed in seeds:
                keys.append((name, t_comm))
                jobs.append(job(source, protocol, rates[name], seed, t_comm))
    times: dict[tuple[str, int], list[float]] = defaultdict(list)
    for (name, t_comm), measured in zip(keys, run_all(jobs, workers), strict=True):
        for other in (t_comm,) if name == "vafl" else ROUND_TRIPS:
            times[name, other].append(measured[0] if name == "vafl" else at(name, other, measured))
    return times


def common(options: argparse.Namespace) -> dict[str, Any]:
    """One rate for everybody (adaptive-flex: A = 20 times that, the rate of a whole round of the fastest)."""
    found = {}
    for source in DATA:
        rate = DATA[source]["rate"]
        rates = dict.fromkeys(contestants("server"), rate) | {"adaptive-flex": 20 * rate}
        for labels in ("server", "shared"):
            times = times_of(source, labels, rates, range(options.seeds), options.workers)
            rows = [[name, *(number(times[name, t]) for t in ROUND_TRIPS)] for name in rates]
            title = f"{source}, labels = {labels!r}, rate {rate}, target {DATA[source]['target']}"
            show(title, ["method", *(f"t_comm {t}" for t in ROUND_TRIPS)], rows)
            found[f"{source} {labels}"] = {f"{name} {t}": values for (name, t), values in times.items()}
    return found


def tuned(options: argparse.Namespace) -> dict[str, Any]:
    """digits: every method at the best of the grid."""
    keys, jobs = [], []
    for name, protocol in contestants("server").items():
        for t_comm in ROUND_TRIPS if name == "vafl" else (10,):
            for rate in RATES[name]:
                for seed in range(options.seeds):
                    keys.append((name, t_comm, rate))
                    jobs.append(job("digits", protocol, rate, seed, t_comm, seconds=TUNED_LIMIT_S[float(t_comm)]))
    times: dict[Any, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (name, t_comm, rate), measured in zip(keys, run_all(jobs, options.workers), strict=True):
        for other in (t_comm,) if name == "vafl" else ROUND_TRIPS:
            value = measured[0] if name == "vafl" else at(name, other, measured)
            times[name, other][rate].append(value)
    rows = [[name, *(best_of(times[name, t]) for t in ROUND_TRIPS)] for name in contestants("server")]
    show("digits, every method at its best rate", ["method", *(f"t_comm {t}" for t in ROUND_TRIPS)], rows)
    return {" ".join(map(str, key)): {str(rate): v for rate, v in by.items()} for key, by in times.items()}


def best_of(by_rate: dict[float, list[float]]) -> str:
    """The best mean, its rate, and whether that is the grid's edge."""
    rate = min(by_rate, key=lambda rate: mean(by_rate[rate]))
    edge = " (edge!)" if rate in (min(by_rate), max(by_rate)) else ""
    return f"{number(by_rate[rate])} at {rate}{edge}"


def trace_job(options: argparse.Namespace, protocol: dict[str, Any], rate: float, seed: int) -> Job:
    """Timeout 10, t_comm 1, a new CPU value in every round; machines drawn by seed."""
    made = job("digits", {"timeout_s": 10.0} | protocol, rate, seed, 1.0)
    cpu = {"kind": "trace", "file": options.data, "mean_s": 1.0, "interval_s": 11.0}
    machines = np.random.default_rng(seed).choice(MACHINES, 9, replace=False).tolist()
    made["clock"]["compute"] = [cpu | {"machine": machine} for machine in machines[:8]]
    made["clock"]["server"]["compute"] = cpu | {"machine": machines[8]}
    return made


def traces(options: argparse.Namespace) -> dict[str, Any]:
    """adaptive-flex with A, flex with the safe rate A/10 (τ at an idle machine), and flex with any rate."""
    amounts = (0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0)
    found = {}
    for labels in ("server", "shared"):
        keys, jobs = [], []
        for amount in amounts:
            for kind, protocol, rate in (
                ("adaptive", {"name": "adaptive-flex", "labels": labels}, amount),
                ("fixed", {"name": "flex", "labels": labels}, amount / 10),
            ):
                for seed in range(options.seeds):
                    keys.append((kind, amount))
                    jobs.append(trace_job(options, protocol, rate, seed))
        times: dict[Any, list[float]] = defaultdict(list)
        for key, measured in zip(keys, run_all(jobs, options.workers), strict=True):
            times[key].append(measured[0])
        rows = []
        for amount in amounts:
            adaptive, fixed = times["adaptive", amount], times["fixed", amount]
            ratio = f"{mean(adaptive) / mean(fixed):.2f}" if inf not in (*adaptive, *fixed) else "–"
            rows.append([str(amount), number(adaptive), number(fixed), ratio])
        show(f"Google's traces, labels = {labels!r}", ["A", "adaptive-flex", "flex, rate A/10", "ratio"], rows)
        found[labels] = {f"{kind} {amount}": values for (kind, amount), values in times.items()}
    return found


def timeouts_of(options: argparse.Namespace, labels: str) -> dict[float, list[tuple[float, int]]]:
    jobs = {
        timeout: [
            job("digits", {"name": "flex", "labels": labels, "timeout_s": timeout}, DATA["digits"]["rate"], seed)
            for seed in range(options.seeds)
        ]
        for timeout in TIMEOUTS
    }
    measured = iter(run_all([one for group in jobs.values() for one in group], options.workers))
    return {timeout: [next(measured) for _ in group] for timeout, group in jobs.items()}


def timeouts(options: argparse.Namespace) -> dict[str, Any]:
    """Table IV's shape."""
    found: dict[str, Any] = {}
    for labels in ("server", "shared"):
        measured = timeouts_of(options, labels)
        rows = []
        for timeout, runs in measured.items():
            by_trip = {t: [at("flex", t, one) for one in runs] for t in ROUND_TRIPS}
            rows.append([f"{timeout:g}", *(number(by_trip[t]) for t in ROUND_TRIPS)])
            found[f"{labels} {timeout:g}"] = by_trip
        show(f"digits, labels = {labels!r}, by timeout", ["timeout", *(f"t_comm {t}" for t in ROUND_TRIPS)], rows)
    return found


def draw(found: dict[str, Any], path: Path) -> None:
    """Time to target against the timeout."""
    modes = ("server", "shared")
    figure = make_subplots(1, 2, subplot_titles=[f"labels = {labels!r}" for labels in modes])
    for column, labels in enumerate(modes, 1):
        for trip, colour in zip(ROUND_TRIPS, ("#1b9e77", "#d95f02", "#7570b3"), strict=True):
            points = [(timeout, mean(found[f"{labels} {timeout:g}"][trip])) for timeout in TIMEOUTS]
            x, y = zip(*((timeout, value) for timeout, value in points if value < inf), strict=True)
            line = plotly.Scatter(x=x, y=y, name=f"round trip {trip}", line_color=colour, showlegend=column == 1)
            figure.add_trace(line, 1, column)
    figure.update_xaxes(type="log", title="timeout (units)", tickvals=TIMEOUTS)
    figure.update_yaxes(type="log", title="time to 90 % (units)")
    figure.update_layout(width=900, height=380, template="plotly_white", margin={"t": 40})
    figure.write_html(path, include_plotlyjs=True, config={"displayModeBar": False})


def auto(options: argparse.Namespace) -> dict[str, Any]:
    """The rule against the best of the grid."""
    found, rows = {}, []
    for labels in ("server", "shared"):
        fixed = timeouts_of(options, labels)
        jobs = [
            job("digits", {"name": "flex", "labels": labels}, DATA["digits"]["rate"], seed, t_comm)
            for t_comm in ROUND_TRIPS
            for seed in range(options.seeds)
        ]
        automatic = iter(run_all(jobs, options.workers))
        for t_comm in ROUND_TRIPS:
            times = [next(automatic)[0] for _ in range(options.seeds)]
            grid = {timeout: [at("flex", t_comm, one) for one in runs] for timeout, runs in fixed.items()}
            best = min(grid, key=lambda timeout: mean(grid[timeout]))
            ratio = mean(times) / mean(grid[best])
            rows.append([labels, str(t_comm), number(times), f"{number(grid[best])} at {best:g}", f"{ratio:.2f}"])
            found[f"{labels} {t_comm}"] = {"auto": times, "best": best, "grid": {str(k): v for k, v in grid.items()}}
    show("timeout_s = 'auto'", ["labels", "t_comm", "auto", "best fixed", "ratio"], rows)
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("experiment", choices=("common", "tuned", "traces", "timeouts", "auto"))
    arguments.add_argument("--data", help="mfeat's folder (common), or the archive of traces (traces)")
    arguments.add_argument("--seeds", type=int, default=5)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--out", type=Path)
    options = arguments.parse_args()
    if options.experiment == "common":
        DATA["mfeat"]["data"]["dir"] = options.data
    found = globals()[options.experiment](options)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"{options.experiment}.json").write_text(json.dumps(found), encoding="utf-8")
        if options.experiment == "timeouts":
            draw(found, options.out / "flex-timeouts.html")


if __name__ == "__main__":
    main()
