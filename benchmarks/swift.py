"""What each mechanism of `swift` is worth, with one party ten times slower, against a `sync` tuned for each table.

    python benchmarks/swift.py --data DIR [--sets credit,a9a,mfeat] [--rows 10000] [--slow 1,2,3,4] [--seeds 3]
                               [--only swift,"zeros instead of means"] [--workers 2]

Development tables only, four parties, `mlp:64`, embeddings of 16, batches of 64, a linear server. A step of 64 rows
takes a party 20 ms, the slow one 200 ms, the server 1 ms; a message travels for 5 ms.

1. `centralised` (Adam, the best of three rates, mean over the seeds) says what can be reached. The target is 0.5 points
   below it. A run is there at the first of three evaluations in a row that reach it.
2. `sync` is tuned: 12 settings, each with and without averaged weights, all with one seed, the best three with all
   seeds. Which party is slow makes no difference to it.
3. Each variant runs until it is there, or for three times the time of tuned `sync`: such a run counts with that time.

Printed: time to the target over that of tuned `sync`, the geometric mean over tables and slow parties (of the means
over seeds), the worst cell, and how many runs did not get there. Each row differs from `swift` in what it names alone.
"""

import argparse
import multiprocessing
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import exp, inf, log
from statistics import mean
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table as Printed

import colonnade
from colonnade.config.schema import from_dict
from colonnade.data import Dataset, Partition
from colonnade.data.table import Column, Table
from colonnade.experiments.run import Run, prepare
from colonnade.protocol.errors import TrainingDiverged

PARTIES, FACTOR, STEP_S, SERVER_S, LATENCY_S, BATCH = 4, 10, 0.02, 0.001, 0.005, 64
SLACK, HOLD, LIMIT, POINTS, EVENTS = 0.005, 3, 3.0, 100, 200
CENTRAL = (0.001, 0.003, 0.01)
SYNC = [
    *product(("adam",), (0.001, 0.003, 0.01, 0.03), (1, 4), (False, True)),
    *product(("momentum",), (0.03, 0.1), (1,), (False, True)),
    *product(("sgd",), (0.1, 0.3), (1,), (False, True)),
]
ADAM: dict[str, Any] = {"optimiser": "adam", "learning_rate": 0.01}
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # [protocol] beside its name, [train]
    "swift": ({}, {}),
    "zeros instead of means": ({"table": "zeros"}, {}),
    "a warm table instead": ({"table": "warm"}, {}),
    "without average": ({"average": False}, {}),
    "one batch in flight": ({"in_flight": 1}, {}),
    "without smaller batches": ({"smaller_batches": False}, {}),
    "without weight decay": ({}, ADAM),
    "shared batches": ({"batches": "shared"}, {}),
    "vafl, Adam 0.01": ({"name": "vafl"}, ADAM),
    "vafl, zeros, Adam 0.01": ({"name": "vafl", "table": "zeros"}, ADAM),
}
CREDIT = {
    "person": ["LIMIT_BAL..AGE"],
    "delays": ["PAY_0..PAY_6"],
    "bills": ["BILL_AMT1..BILL_AMT6"],
    "payments": ["PAY_AMT1..PAY_AMT6"],
}
MFEAT = {
    "fourier": ["fou_0..fou_75"],
    "profiles": ["fac_0..fac_215"],
    "pixels": ["kar_0..kar_63", "pix_0..pix_239"],
    "moments": ["zer_0..zer_46", "mor_0..mor_5"],
}
DATA: dict[str, Partition] = {}  # filled before the workers are forked


def partition(name: str, folder: str, rows: int) -> Partition:
    """At most so many rows of a table, a fifth of them to test on."""
    if name == "credit":
        categorical = ["SEX", "EDUCATION", "MARRIAGE", *(f"PAY_{i}" for i in (0, 2, 3, 4, 5, 6))]
        columns: dict[str, Any] = {"label": "default.payment.next.month", "id": "ID", "categorical": categorical}
        dataset = colonnade.load("UCI_Credit_Card.csv.gz", dir=f"{folder}/uci-credit-card", **columns)
        return colonnade.split(cut(dataset, rows), how=CREDIT)
    how: Any = MFEAT if name == "mfeat" else "even"
    return colonnade.split(cut(colonnade.load(name, dir=folder), rows), how=how)


def cut(dataset: Dataset, rows: int) -> Dataset:
    """The same rows in every run; of a given test set at most a fifth of them."""
    total, given = len(dataset.y), dataset.test_rows
    if total <= rows:
        return dataset
    draw, tested = np.random.default_rng(0), min(given, rows // 5)
    chosen = draw.permutation(total - given)[: rows - tested]
    chosen = np.concatenate([chosen, total - given + draw.permutation(given)[:tested]])
    ids = None if dataset.ids is None else dataset.ids.gather(chosen)
    if isinstance(dataset.x, Table):
        columns = [dataset.x.column(place) for place in range(dataset.x.shape[1])]
        x: Any = Table([Column(column.values[chosen], column.categories) for column in columns])
    else:
        x = dataset.x[chosen]
    return replace(dataset, x=x, y=dataset.y[chosen], test_rows=tested, ids=ids)


def clock_of(slow: int, batch: int) -> dict[str, Any]:
    """A time per row, so that no method gains by calling more rows a batch."""
    steps = [STEP_S * (FACTOR if party == slow else 1) * batch / BATCH for party in range(1, PARTIES + 1)]
    return {
        "compute": [{"kind": "fixed", "mean_s": seconds} for seconds in steps],
        "server": {"compute": {"kind": "fixed", "mean_s": SERVER_S * batch / BATCH}},
        "network": {"latency_s": LATENCY_S},
    }


def arrival(run: Run, target: float) -> float | None:
    """When the first of several evaluations in a row reached the target."""
    values = [row["value"] >= target for row in run.rows]
    held = (at for at in range(len(values) - HOLD + 1) if all(values[at : at + HOLD]))
    first = next(held, None)
    return None if first is None else run.rows[first]["clock_s"]


def train(
    table: str, protocol: dict[str, Any], settings: dict[str, Any], slow: int, target: float = inf
) -> tuple[float | None, float]:
    """The clock at the target, and the metric at the end of a run; a run that is there stops."""
    tables = {
        "model": {"party": "mlp:64", "embedding": 16, "server": "linear", "aggregate": "concat"},
        "protocol": protocol,
        "clock": clock_of(slow, settings.get("batch_size", BATCH)),
        "train": {"batch_size": BATCH} | settings,
    }
    run = prepare(from_dict(tables), DATA[table])
    try:
        while run.simulator.advance(EVENTS):
            if arrival(run, target) is not None:
                break
    except TrainingDiverged:
        return None, 0.0
    return arrival(run, target), run.rows[-1]["value"]


def reached(seeds: int, table_rate: tuple[str, float]) -> float:
    """Where `centralised` ends with this rate, mean over seeds."""
    table, rate = table_rate
    settings = {"optimiser": "adam", "learning_rate": rate, "epochs": 30}
    return mean(train(table, {"name": "centralised"}, settings | {"seed": seed}, 0)[1] for seed in range(seeds))


def sync_time(targets: dict[str, float], job: tuple[str, tuple[str, float, int, bool], int]) -> float:
    """Time to the target of one setting and seed; infinite if it does not get there."""
    table, (optimiser, rate, batches, average), seed = job
    settings = {"optimiser": optimiser, "learning_rate": rate, "batch_size": batches * BATCH, "seed": seed}
    per_epoch = max(1, len(DATA[table].y_train) // (batches * BATCH))
    settings |= {"epochs": 40, "eval_every": f"{max(1, per_epoch // 10) / per_epoch} epochs"}
    time, _ = train(table, {"name": "sync", "average": average}, settings, PARTIES, targets[table])
    return inf if time is None else time


def cell_time(targets: dict[str, float], tuned: dict[str, float], job: tuple[str, str, int, int]) -> float | None:
    """Time to the target of one variant."""
    variant, table, slow, seed = job
    protocol, settings = VARIANTS[variant]
    bounds = {"seconds": LIMIT * tuned[table], "eval_every": f"{tuned[table] / POINTS} s", "seed": seed}
    return train(table, {"name": "swift"} | protocol, settings | bounds, slow, targets[table])[0]


def main() -> None:
    options = _options()
    DATA.update({name: partition(name, options.data, options.rows) for name in options.sets})
    torch.set_num_threads(1)
    console = Console(width=120)
    with multiprocessing.get_context("fork").Pool(options.workers) as pool:
        rates = [(table, rate) for table in options.sets for rate in CENTRAL]
        ends = dict(zip(rates, pool.map(partial(reached, options.seeds), rates, 1), strict=True))
        best = {table: max(value for (name, _), value in ends.items() if name == table) for table in options.sets}
        targets = {table: value - SLACK for table, value in best.items()}
        tuned = tune(pool, options, targets)
        for table in options.sets:
            console.print(f"{table}: centralised {best[table]:.4f}, tuned sync {tuned[table]:.1f} s")
        jobs = list(product(options.only, options.sets, options.slow, range(options.seeds)))
        times = dict(zip(jobs, pool.map(partial(cell_time, targets, tuned), jobs, 1), strict=True))
    console.print(printed(options, tuned, times))


def tune(pool: Any, options: argparse.Namespace, targets: dict[str, float]) -> dict[str, float]:
    """The time of the best setting of `sync`, by table."""
    one_run, tuned = partial(sync_time, targets), {}
    jobs = [(table, setting, 0) for table in options.sets for setting in SYNC]
    first = dict(zip(jobs, pool.map(one_run, jobs, 1), strict=True))
    short = [
        (table, setting)
        for table in options.sets
        for setting in sorted(SYNC, key=lambda setting: first[table, setting, 0])[:3]
    ]
    rest = [(table, setting, seed) for table, setting in short for seed in range(1, options.seeds)]
    times = first | dict(zip(rest, pool.map(one_run, rest, 1), strict=True))
    for table in options.sets:
        means = {
            setting: mean(times[table, setting, seed] for seed in range(options.seeds))
            for name, setting in short
            if name == table
        }
        setting = min(means, key=lambda setting: means[setting])
        tuned[table] = means[setting]
        print(f"{table}: sync with {setting}: {means[setting]:.1f} s", flush=True)
    return tuned


def printed(options: argparse.Namespace, tuned: dict[str, float], times: dict[Any, float | None]) -> Printed:
    """A row for each variant."""
    table = Printed("variant", *options.sets, "mean", "worst", "not there")
    for variant in options.only:
        cells = {
            (name, slow): mean(
                (times[variant, name, slow, seed] or LIMIT * tuned[name]) / tuned[name] for seed in range(options.seeds)
            )
            for name, slow in product(options.sets, options.slow)
        }
        by_set = [_mean([cells[name, slow] for slow in options.slow]) for name in options.sets]
        late = sum(time is None for job, time in times.items() if job[0] == variant)
        numbers = (*by_set, _mean([*cells.values()]), max(cells.values()))
        table.add_row(variant, *(f"{number:.2f}" for number in numbers), str(late))
    return table


def _mean(ratios: Sequence[float]) -> float:
    """Geometric."""
    return exp(mean(map(log, ratios)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the folder of all data")
    parser.add_argument("--sets", type=_words, default=["credit", "a9a", "mfeat"])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--slow", type=lambda text: [*map(int, _words(text))], default=[1, 2, 3, 4])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", type=_words, default=[*VARIANTS], help="variants")
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args()


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


if __name__ == "__main__":
    main()
