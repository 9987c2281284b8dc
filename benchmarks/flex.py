"""Flex-VFL's experiments: time to target against round trips, speeds, timeouts and CPU traces.

    python benchmarks/flex.py common|tuned|traces|timeouts|random [--source digits|mfeat] [--labels server|shared]
        [--method NAME] [--server-step 1.0] [--data DIR] [--seeds 3] [--workers 2] [--out DIR]

One unit of time is a second of the simulated clock. Parties take 5, 10, 15 and 20 local steps in a timeout of 20. A
server's step takes --server-step units; with 1 (the paper's) the server is as quick as the fastest party. t_comm (a
round trip) is 1, 10 or 50. digits: 8 parties, target 90 %; mfeat: 6 parties, one view each, target 95 %. The mean of
five evaluations counts. Plain SGD, batch 64. A round's cost does not change what it learns, so one run of a round-based
method serves all round trips; `vafl` runs for each. `labels` makes no difference to `p-bcd` and `vafl`: both run with
--labels server only.

    common     one common rate, all methods
    tuned      digits: every method with its own rate from a grid; the table marks a best value at its edge
    traces     Google's CPU traces (--data .../google-cluster-2011/GCD_VMs.tar.gz): adaptive against fixed rates
    timeouts   time to target against the timeout: a U, drawn in flex-timeouts.html; and timeout_s = "auto"
    random     digits: adaptive-flex against flex with defaults, exponential step times, one party ten times slower

Every choice is made on validation rows: three tenths of the rows to train on, in `random` a tenth. `tuned` then runs
its choice once more, trained on these rows, too, and judged on the test rows. `common` chooses nothing: it is judged
on the test rows. `traces`, `timeouts` and `random` never see them.
"""

import argparse
import json
import multiprocessing
from collections import defaultdict
from collections.abc import Callable, Iterable
from math import exp, inf, log
from pathlib import Path
from statistics import mean, stdev
from typing import Any, TypeVar

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
LIMIT_S = {1.0: 8_000.0, 10.0: 20_000.0, 50.0: 60_000.0}  # of the clock, by t_comm: a later arrival counts as none
MACHINES = 1600  # in the archive
TUNED_LIMIT_S = {1.0: 2_500.0, 10.0: 4_000.0, 50.0: 16_000.0}  # on validation rows; too short for flex
VALIDATION = {"validation": 0.3, "test": 0.0}  # data.validation_fraction, by the rows that judge
RANDOM_S = 6.0  # of the clock
SMOOTH = 5  # the mean of this many evaluations must reach the target: single ones jump

Job = dict[str, Any]
T = TypeVar("T")


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
    judged_on: str = "validation",
    **train: Any,
) -> Job:
    """One run as a config; `reach` below reads its result."""
    setting = DATA[source]
    protocol = protocol | ({} if protocol["name"] == "vafl" else {"average": False})
    protocol = protocol | ({"A": rate} if protocol["name"] == "adaptive-flex" else {})
    every = 20 if protocol["name"] == "vafl" else 5 if protocol["name"] == "p-bcd" else 1
    return {
        "data": setting["data"] | {"validation_fraction": VALIDATION[judged_on]},
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


def crossing(rows: list[dict[str, Any]], target: float, smooth: int = SMOOTH) -> dict[str, Any] | None:
    """The first evaluation at which the mean of the last ones is at the target."""
    values = [row["value"] or 0.0 for row in rows]
    for last in range(smooth, len(rows) + 1):
        if mean(values[last - smooth : last]) >= target:
            return rows[last - 1]
    return None


def run_all(read: Callable[[Job], T], jobs: list[Job], workers: int) -> list[T]:
    """The values read from all jobs, in the order given."""
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return list(track(pool.imap(read, jobs), total=len(jobs), description="runs"))


def at(t_comm: float, measured: tuple[float, int]) -> float:
    """The time of a round-based run if its round trip had been t_comm; it ran with 10."""
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
    """The mean, or how many runs never reached the target."""
    missing = sum(value == inf for value in values)
    return f"{mean(values):,.0f}" if not missing else f"– ({missing} of {len(values)})"


def contestants(labels: str) -> dict[str, dict[str, Any]]:
    """All six methods; with shared labels only those that differ then."""
    local = {"timeout_s": TIMEOUT, "labels": labels}
    rounds = {name: {"name": name} | local for name in LOCAL}
    rounds["sync-max"]["server_steps"] = "quickest"  # with a quick server there would be thousands of steps
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
                jobs.append(job(source, protocol, rates[name], seed, t_comm, options.server_step, "test"))
    times: dict[tuple[str, int], list[float]] = defaultdict(list)
    for (name, t_comm), measured in zip(keys, run_all(reach, jobs, options.workers), strict=True):
        for other in (t_comm,) if name == "vafl" else ROUND_TRIPS:
            times[name, other].append(measured[0] if name == "vafl" else at(other, measured))
    return times


def common(options: argparse.Namespace) -> dict[str, Any]:
    """One rate for all methods (adaptive-flex: A = 20 times that, the rate of a whole round of the fastest)."""
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


Cell = tuple[str, str, int]  # labels, method, t_comm
Times = dict[Cell, dict[float, list[float]]]  # by rate, one for every seed


def tuned(options: argparse.Namespace) -> dict[str, Any]:
    """digits: every method at the best rate of its grid."""
    cells = [
        (labels, name, t_comm)
        for labels in options.labels
        for name in chosen(options, labels)
        for t_comm in (ROUND_TRIPS if name == "vafl" else (10,))
    ]
    grid = times_at(options, [(cell, rate) for cell in cells for rate in RATES[cell[1]]], "validation")
    best = {cell: best_rate(by_rate) for cell, by_rate in grid.items()}
    runs = {(cell if cell[1] == "vafl" else (*cell[:2], 10), rate): None for cell, rate in best.items() if rate}
    measured = times_at(options, list(runs), "test")
    rows = [
        [f"{name}, {labels!r}", *(cell_of(grid, best, measured, (labels, name, t)) for t in ROUND_TRIPS)]
        for labels in options.labels
        for name in chosen(options, labels)
    ]
    title = f"digits, each method at the rate that validation rows chose, a server step of {options.server_step:g}"
    show(title, ["method, labels", *(f"t_comm {t}: test rows (validation)" for t in ROUND_TRIPS)], rows)
    return {
        judged_on: {" ".join(map(str, cell)): {str(rate): v for rate, v in by.items()} for cell, by in times.items()}
        for judged_on, times in (("validation", grid), ("test", measured))
    }


def times_at(options: argparse.Namespace, settings: list[tuple[Cell, float]], judged_on: str) -> Times:
    """One time per seed; a round-based method runs once for all round trips."""
    keys, jobs = [], []
    for (labels, name, t_comm), rate in settings:
        protocol, limit_s = contestants(labels)[name], TUNED_LIMIT_S[float(t_comm)]
        for seed in range(options.seeds):
            keys.append((labels, name, t_comm, rate))
            jobs.append(job("digits", protocol, rate, seed, t_comm, options.server_step, judged_on, seconds=limit_s))
    times: Times = defaultdict(lambda: defaultdict(list))
    for (labels, name, t_comm, rate), measured in zip(keys, run_all(reach, jobs, options.workers), strict=True):
        for other in (t_comm,) if name == "vafl" else ROUND_TRIPS:
            times[labels, name, other][rate].append(measured[0] if name == "vafl" else at(other, measured))
    return times


def best_rate(by_rate: dict[float, list[float]]) -> float | None:
    """The setting with the best mean; None if none reaches the target with every seed."""
    rate = min(by_rate, key=lambda rate: mean(by_rate[rate]))
    return rate if mean(by_rate[rate]) < inf else None


def cell_of(grid: Times, best: dict[Cell, float | None], measured: Times, cell: Cell) -> str:
    """Times on test and validation rows, the rate, and whether that is the grid's edge."""
    rate, by_rate = best[cell], grid[cell]
    if rate is None:
        return "–"
    edge = " (edge!)" if rate in (min(by_rate), max(by_rate)) else ""
    return f"{number(measured[cell][rate])} ({number(by_rate[rate])}) at {rate}{edge}"


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
        for key, measured in zip(keys, run_all(reach, jobs, options.workers), strict=True):
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
        measured = iter(run_all(reach, jobs, options.workers))
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


def random_job(name: str, seed: int) -> Job:
    """Defaults, with party (seed mod 4) + 1 as the slow one."""
    step_s = [0.1 if party == seed % 4 else 0.01 for party in range(4)]
    return {
        "data": {"source": "digits", "parties": 4},
        "protocol": {"name": name},
        "clock": {
            "compute": [{"kind": "exponential", "mean_s": mean_s} for mean_s in step_s],
            "network": {"latency_s": 0.005},
        },
        "train": {"seconds": RANDOM_S, "eval_every": "0.2 s", "seed": seed, "patience": 0},
    }


def curve(tables: Job) -> list[dict[str, Any]]:
    """All evaluations of a run on validation rows."""
    torch.set_num_threads(1)
    run = prepare(from_dict(tables))
    run.execute()
    return [row for row in run.rows if row["rows"] == "validation"]


def random(options: argparse.Namespace) -> dict[str, Any]:
    """Paired by seed: the ratio of the times to 95 %, and the difference of the mean log loss from 1 s on."""
    names = ("flex", "adaptive-flex")
    jobs = [random_job(name, seed) for name in names for seed in range(options.seeds)]
    curves = run_all(curve, jobs, options.workers)
    times, losses, ends = {}, {}, {}
    for name, of_name in zip(names, (curves[: options.seeds], curves[options.seeds :]), strict=True):
        found = [crossing(rows, 0.95, 3) for rows in of_name]
        times[name] = [row["clock_s"] if row else RANDOM_S for row in found]
        losses[name] = [mean(log(row["loss"]) for row in rows if row["clock_s"] >= 1) for rows in of_name]
        ends[name] = mean(mean(row["value"] for row in rows[-5:]) for rows in of_name)
    rows = []
    for name in names:
        ratio, error = paired([log(a / b) for a, b in zip(times[name], times["flex"], strict=True)])
        more, of_more = paired([a - b for a, b in zip(losses[name], losses["flex"], strict=True)])
        cells = (f"{mean(times[name]):.2f}", f"{exp(ratio):.2f} ± {error:.2f}", f"{more:+.3f} ± {of_more:.3f}")
        rows.append([name, *cells, f"{ends[name]:.1%}"])
    show("digits, exponential step times", ["method", "s to 95 %", "to flex", "log loss, less flex's", "end"], rows)
    return {"times": times, "losses": losses}


def paired(differences: list[float]) -> tuple[float, float]:
    """Their mean, and its standard error."""
    return mean(differences), stdev(differences) / len(differences) ** 0.5


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
    arguments.add_argument("experiment", choices=("common", "tuned", "traces", "timeouts", "random"))
    arguments.add_argument("--source", action="append", choices=tuple(DATA), help="for common; default: both")
    arguments.add_argument("--method", action="append", choices=tuple(RATES), help="for common and tuned; default: all")
    arguments.add_argument("--labels", action="append", choices=LABELS, help="default: both")
    arguments.add_argument(
        "--server-step", type=float, default=1.0, help="for common and tuned: units of a server's step"
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
