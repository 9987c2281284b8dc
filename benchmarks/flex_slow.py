"""The Flex family with nothing but its names: one of four parties is ten times slower.

    python benchmarks/flex_slow.py --data DIR [--source NAME] [--method NAME] [--seeds 2] [--set KEY=VALUE]

DIR holds the folders uci-credit-card, a9a and mfeat. Development data: 5,000 rows of credit card and a9a (judged on
3,000 others; a9a's are rows of its training part), mfeat and digits. Party `mlp:64`, width 16, server `linear`. A step
takes 10 ms, the slow party's 100 ms; a round trip takes 10 ms. Printed: seconds until the mean of three evaluations is
at the target, the centralised metric less half a point, for each slow party; "–" where it is not reached. `sync`
waits for the slow party, whichever it is; it has Adam's rates 0.003, 0.01 and 0.03, with and without an average of the
weights. --set gives further keys of [protocol], as JSON values.
"""

import argparse
import json
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

import colonnade
from colonnade.api import prepare
from colonnade.data import Partition

TRAINED, JUDGED, SMOOTH = 5000, 3000, 3
ROWS: dict[str, Any] = {"split_seed": 7, "validation_fraction": 0.0}
TARGETS = {"credit": ("auc", 0.7729), "a9a": ("accuracy", 0.8349), "mfeat": ("accuracy", 0.98),
           "digits": ("accuracy", 0.9597)}  # fmt: skip
LIMIT_S = {"credit": 22.0, "a9a": 8.0, "mfeat": 10.0, "digits": 12.0}
CREDIT = {
    "person": ["LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE"],
    "delays": [f"PAY_{month}" for month in (0, 2, 3, 4, 5, 6)],
    "bills": [f"BILL_AMT{month}" for month in range(1, 7)],
    "paid": [f"PAY_AMT{month}" for month in range(1, 7)],
}


def some(data: Partition, trained: int, judged: int) -> Partition:
    """Rows drawn once and for all."""
    draw = np.random.default_rng(1)
    train, test = (np.sort(draw.permutation(len(y))[:n]) for y, n in ((data.y_train, trained), (data.y_test, judged)))
    return replace(
        data,
        train=tuple(block[train] for block in data.train),
        test=tuple(block[test] for block in data.test),
        y_train=data.y_train[train],
        y_test=data.y_test[test],
    )


def development(name: str, folder: Path) -> Partition:
    if name == "credit":
        path = folder / "uci-credit-card" / "UCI_Credit_Card.csv.gz"
        kinds = ["SEX", "EDUCATION", "MARRIAGE"]
        table = colonnade.load(str(path), label="default.payment.next.month", id="ID", categorical=kinds)
        return some(colonnade.split(table, how=CREDIT, **ROWS), TRAINED, JUDGED)
    if name == "a9a":
        table = colonnade.load("a9a", dir=str(folder / "a9a"))
        held = some(colonnade.split(table, parties=4, **ROWS), TRAINED + JUDGED, JUDGED)
        return replace(
            held,
            train=tuple(block[:TRAINED] for block in held.train),
            test=tuple(block[TRAINED:] for block in held.train),
            y_train=held.y_train[:TRAINED],
            y_test=held.y_train[TRAINED:],
        )
    table = colonnade.load(name, **({"dir": str(folder / "mfeat")} if name == "mfeat" else {}))
    return colonnade.split(table, parties=4, **ROWS)


def seconds_to_target(
    name: str, data: Partition, protocol: dict[str, Any], slow: int, seed: int, limit_s: float, **train: Any
) -> float:
    """The clock when the mean of three evaluations is there."""
    metric, target = TARGETS[name]
    clock = {"compute": [{"mean_s": 0.1 if party == slow else 0.01} for party in range(4)]}
    run = prepare(
        data, protocol, "mlp:64", "linear", embedding=16, clock=clock, metric=metric, seed=seed, seconds=limit_s,
        eval_every="0.2 s", **train,
    )  # fmt: skip
    while run.simulator.advance(2000) and crossing(run.rows, target) == inf:
        pass
    return crossing(run.rows, target)


def crossing(rows: list[dict[str, Any]], target: float) -> float:
    values = [row["value"] or 0.0 for row in rows]
    there = (last for last in range(SMOOTH, len(rows) + 1) if mean(values[last - SMOOTH : last]) >= target)
    return next((rows[last - 1]["clock_s"] for last in there), inf)


def show(label: str, times: list[float]) -> None:
    print(f"{label:28}", *(f"{time:6.1f}" if time < inf else "     –" for time in times), flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", type=Path, default=Path())
    arguments.add_argument("--source", action="append", choices=tuple(TARGETS))
    arguments.add_argument("--method", action="append")
    arguments.add_argument("--seeds", type=int, default=2)
    arguments.add_argument("--set", action="append", default=[])
    options = arguments.parse_args()
    more = {key: json.loads(value) for key, _, value in (text.partition("=") for text in options.set)}
    torch.set_num_threads(1)
    for source in options.source or TARGETS:
        data, limit_s, seeds = development(source, options.data), LIMIT_S[source], range(options.seeds)
        for method in options.method or ("flex", "adaptive-flex"):
            if method == "sync":
                for average in (False, True):
                    for rate in (0.003, 0.01, 0.03):
                        protocol, adam = {"name": "sync", "average": average}, {"optimiser": "adam"}
                        times = [
                            seconds_to_target(source, data, protocol, 3, s, 2 * limit_s, learning_rate=rate, **adam)
                            for s in seeds
                        ]
                        show(f"{source} sync {average} {rate}", times)
                continue
            for slow in range(4):
                protocol = {"name": method} | more
                times = [seconds_to_target(source, data, protocol, slow, s, limit_s) for s in seeds]
                show(f"{source} {method}, slow: {data.parties[slow]}", times)


if __name__ == "__main__":
    main()
