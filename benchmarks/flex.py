"""Flex-VFL's experiments: time to target against round trips, speeds, timeouts and CPU traces.

    python benchmarks/flex.py common|tuned|traces|timeouts [--source digits|mfeat] [--labels server|shared]
        [--method NAME] [--server-step 1.0] [--data DIR] [--seeds 3] [--workers 2] [--out DIR]

One unit of time is a second of the simulated clock. Parties take 5, 10, 15 and 20 local steps in a timeout of 20. A
server's step takes --server-step units; with 1 (the paper's) the server is as quick as the fastest party. t_comm (a
round trip) is 1, 10 or 50. digits: 8 parties, target 90 %; mfeat: 6 parties, one view each, target 95 %. The mean of
five evaluations counts. Plain SGD, batch 64. A round's cost does not change what it learns, so one run of a round-based
method serves all round trips; `vafl` runs for each. `labels` makes no difference to `p-bcd` and `vafl`: both run with
--labels server only.

    common     one common rate, all methods
    tuned      digits: every method with its own rate from a grid; a best value at its edge is said
    traces     Google's CPU traces (--data .../google-cluster-2011/GCD_VMs.tar.gz): adaptive against fixed rates
    timeouts   time to target against the timeout: a U, drawn in flex-timeouts.html; and timeout_s = "auto"
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

from colonnade.config.schema import from_dict
from colonnade.experiments.run import prepare
from colonnade.protocol.errors import TrainingDiverged

TIMEOUT, ROUND_TRIPS = 20.0, (1, 10, 50)
LOCAL, LABELS = ("flex", "adaptive-flex", "sync-min", "sync-max"), ("server", "shared")
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
    "flex": (0.02, 0.03, 0.05, 0.1, 0.2),
    "adaptive-flex": (0.3, 0.5, 0.8, 1.2, 2.0),  # A
    "sync-min": (0.05, 0.1, 0.2, 0.3, 0.5),
    "sync-max": (0.01, 0.03, 0.1),
    "p-bcd": (0.2, 0.5, 1.0, 2.0, 3.0),
    "vafl": (0.2, 0.5, 1.0, 2.0, 3.0),
}
TIMEOUTS = (4.0, 8.0, 12.0, 20.0, 28.0, 40.0, 60.0)
LIMIT_S = {1.0: 8_000.0, 10.0: 20_000.0, 50.0: 60_000.0}  # of the clock, by t_comm: who is not there by then is not
MACHINES = 1600  # in the archive
TUNED_LIMIT_S = {1.0: 2_500.0, 10.0: 4_000.0, 50.0: 16_000.0}  # the best rates need a third of that
SMOOTH = 5  # evaluations whose mean has to reach the target: single ones jump

Job = dict[str, Any]


def clock(steps: Iterable[float], t_comm: float, server_step: float) -> dict[str, Any]:
    """Fixed speeds, and a round trip of t_comm."""
    free = {"latency_s": 0.0, "bandwidth_mbps": inf}
    return {
        "compute": [{"mean_s": TIMEOUT / step} for step in steps],
        "network": free | {"latency_s": t_comm / 2},
        "server": {"compute": {"mean_s": server_step}, "network": free},
    }


def job(
    source: str,
    protocol: dict[str, Any],
    rate: float,
    seed: int,
    t_comm: float = 10.0,
    server_step: float = 1.0,
    **train: Any,
) -> Job:
    """One run as a config; `reach` below says what is read from it."""
    setting = DATA[source]
    protocol = protocol | ({} if protocol["name"] == "vafl" else {"average": False})
    protocol = protocol | ({"A": rate} if protocol["name"] == "adaptive-flex" else {})
    every = 20 if protocol["name"] == "vafl" else 5 if protocol["name"] == "p-bcd" else 1
    return {
        "data": setting["data"],
        "model": {"party": "mlp:32", "embedding": 8, "server": "linear"},
        "protocol": protocol,
        "clock": clock(setting["steps"], t_comm, server_step),
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


def at(t_comm: float, measured: tuple[float, int]) -> float:
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
    """All six methods; with shared labels those that this makes a difference to."""
    local = {"timeout_s": TIMEOUT, "labels": labels}
    rounds = {name: {"name": name} | local for name in LOCAL}
    rounds["sync-max"]["server_steps"] = "quickest"  # with a quick server it would be thousands of steps
    return rounds | (
        {"p-bcd": {"name": "p-bcd"}, "vafl": {"name": "vafl", "table": "zeros"}} if labels == "server" else {}
    )


def chosen(options: argparse.Namespace, labels: str) -> dict[str, dict[str, Any]]:
    return {name: protocol for name, protocol in contestants(labels).items() if name in options.method}


def times_of(
    options: argparse.Namespace, source: str, labels: str, rates: dict[str, float]
) -> dict[tuple[str, int], list[float]]:
    """(method, t_comm) → a time for every seed."""
    keys, jobs = [], []
    for name, protocol in chosen(options, labels).items():
        for t_comm in ROUND_TRIPS if name == "vafl" else (10,):
            for seed in range(options.seeds):
                keys.append((name, t_comm))
                jobs.append(job(source, protocol, rates[name], seed, t_comm, options.server_step))
    times: dict[tuple[str, int], list[float]] = defaultdict(list)
    for (name, t_comm), measured in zip(keys, run_all(jobs, options.workers), strict=True):
        for other in (t_comm,) if name == "vafl" else ROUND_TRIPS:
            times[name, other].append(measured[0] if name == "vafl" else at(other, measured))
    return times


def common(options: argparse.Namespace) -> dict[str, Any]:
    """One rate for everybody (adaptive-flex: A = 20 times that, the rate of a whole round of the fastest)."""
    found = {}
    for source in options.source:
        rate = DATA[source]["rate"]
        rates = dict.fromkeys(contestants("server"), rate) | {"adaptive-flex": 20 * rate}
        for labels in options.labels:
            times = times_of(options, source, labels, rates)
            rows = [[name, *(number(times[name, t]) for t in ROUND_TRIPS)] for name in chosen(options, labels)]
            title = f"{source}, labels = {labels!r}, rate {rate}, a server step of {options.server_step:g}"
            show(title, ["method", *(f"t_comm {t}" for t in ROUND_TRIPS)], rows)
            found[f"{source} {labels}"] = {f"{name} {t}": values for (name, t), values in times.items()}
    return found


def tuned(options: argparse.Namespace) -> dict[str, Any]:
    """digits: every method at the best of the grid."""
    keys, jobs = [], []
    for labels in options.labels:
        for name, protocol in chosen(options, labels).items():
            for t_comm in ROUND_TRIPS if name == "vafl" else (10,):
                limit_s = TUNED_LIMIT_S[float(t_comm)]
                for rate in RATES[name]:
                    for seed in range(options.seeds):
                        keys.append((labels, name, t_comm, rate))
                        jobs.append(job("digits", protocol, rate, seed, t_comm, options.server_step, seconds=limit_s))
    times: dict[Any, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (labels, name, t_comm, rate), measured in zip(keys, run_all(jobs, options.workers), strict=True):
        for other in (t_comm,) if name == "vafl" else ROUND_TRIPS:
            value = measured[0] if name == "vafl" else at(other, measured)
            times[labels, name, other][rate].append(value)
    rows = [
        [f"{name}, {labels!r}", *(best_of(times[labels, name, t]) for t in ROUND_TRIPS)]
        for labels in options.labels
        for name in chosen(options, labels)
    ]
    title = f"digits, every method at its best rate, a server step of {options.server_step:g}"
    show(title, ["method, labels", *(f"t_comm {t}" for t in ROUND_TRIPS)], rows)
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
    amounts = (0.5, 0.7, 1.0, 1.4)
    found = {}
    for labels in options.labels:
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


def timeouts(options: argparse.Namespace) -> dict[str, Any]:
    """Table IV's shape, and `timeout_s = "auto"`, which runs for each round trip."""
    found: dict[str, Any] = {}
    for labels in options.labels:
        keys: list[tuple[float | str, int]] = [(timeout, 10) for timeout in TIMEOUTS]
        keys += [("auto", t_comm) for t_comm in ROUND_TRIPS]
        jobs = [
            job(
                "digits", {"name": "flex", "labels": labels, "timeout_s": timeout}, DATA["digits"]["rate"], seed, t_comm
            )
            for timeout, t_comm in keys
            for seed in range(options.seeds)
        ]
        measured = iter(run_all(jobs, options.workers))
        times: dict[float | str, dict[int, list[float]]] = defaultdict(dict)
        for timeout, t_comm in keys:
            runs = [next(measured) for _ in range(options.seeds)]
            for other in (t_comm,) if timeout == "auto" else ROUND_TRIPS:
                times[timeout][other] = [one[0] if timeout == "auto" else at(other, one) for one in runs]
        rows = [[str(timeout), *(number(by_trip[t]) for t in ROUND_TRIPS)] for timeout, by_trip in times.items()]
        best = {t: min(mean(times[timeout][t]) for timeout in TIMEOUTS) for t in ROUND_TRIPS}
        rows.append(["auto / best", *(f"{mean(times['auto'][t]) / best[t]:.2f}" for t in ROUND_TRIPS)])
        show(f"digits, labels = {labels!r}, by timeout", ["timeout", *(f"t_comm {t}" for t in ROUND_TRIPS)], rows)
        found |= {f"{labels} {timeout}": by_trip for timeout, by_trip in times.items()}
    return found


def draw(found: dict[str, Any], modes: list[str], path: Path) -> None:
    """Time to target against the timeout."""
    figure = make_subplots(1, len(modes), subplot_titles=[f"labels = {labels!r}" for labels in modes])
    for column, labels in enumerate(modes, 1):
        for trip, colour in zip(ROUND_TRIPS, ("#1b9e77", "#d95f02", "#7570b3"), strict=True):
            points = [(timeout, mean(found[f"{labels} {timeout}"][trip])) for timeout in TIMEOUTS]
            x, y = zip(*((timeout, value) for timeout, value in points if value < inf), strict=True)
            line = plotly.Scatter(x=x, y=y, name=f"round trip {trip}", line_color=colour, showlegend=column == 1)
            figure.add_trace(line, 1, column)
    figure.update_xaxes(type="log", title="timeout (units)", tickvals=TIMEOUTS)
    figure.update_yaxes(type="log", title="time to 90 % (units)")
    figure.update_layout(width=900, height=380, template="plotly_white", margin={"t": 40})
    figure.write_html(path, include_plotlyjs=True, config={"displayModeBar": False})


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("experiment", choices=("common", "tuned", "traces", "timeouts"))
    arguments.add_argument("--source", action="append", choices=tuple(DATA), help="of common; both, if left out")
    arguments.add_argument(
        "--method", action="append", choices=tuple(RATES), help="of common and tuned; all, if left out"
    )
    arguments.add_argument("--labels", action="append", choices=LABELS, help="both, if left out")
    arguments.add_argument(
        "--server-step", type=float, default=1.0, help="of common and tuned: units of a server's step"
    )
    arguments.add_argument("--data", help="mfeat's folder (common), or the archive of traces (traces)")
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--out", type=Path)
    options = arguments.parse_args()
    options.source, options.labels = options.source or list(DATA), options.labels or list(LABELS)
    options.method = options.method or list(RATES)
    if options.experiment == "common":
        DATA["mfeat"]["data"]["dir"] = options.data
    found = globals()[options.experiment](options)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"{options.experiment}.json").write_text(json.dumps(found), encoding="utf-8")
        if options.experiment == "timeouts":
            draw(found, options.labels, options.out / "flex-timeouts.html")


if __name__ == "__main__":
    main()
