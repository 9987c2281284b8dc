"""One party ten times slower: how much longer does each method need, and how much of that is inherent?

    python benchmarks/straggler.py [--seeds 5]

Digits, four parties, fixed speeds (20 ms a step); then the last party needs 200 ms. Printed: time to 95 % with
equal speeds, with the straggler, and their ratio, mean over seeds. The last row is the control (late_block.py):
one joint model whose slow block is stepped only every tenth step, with nothing stale anywhere. What it loses, every
method must lose: those columns simply learn later.
"""

import argparse
from statistics import mean
from typing import Any

import torch
from late_block import late_block
from rich.console import Console
from rich.table import Table

import colonnade
from colonnade.data import Partition

PARTIES, TARGET, FACTOR, STEP_S, RATE, BATCH = 4, 0.95, 10, 0.02, 0.3, 64
METHODS: dict[str, dict[str, Any]] = {
    "sync": {"name": "sync"},
    "t-sync (t = 2)": {"name": "t-sync", "t": 2},
    "vafl": {"name": "vafl"},
    "vafl, zero table": {"name": "vafl", "table": "zeros"},
}


def time_to_target(data: Partition, protocol: dict[str, Any], slow: float, seed: int) -> float | None:
    """The clock when the target is first reached."""
    speeds = [STEP_S] * (PARTIES - 1) + [STEP_S * slow]
    clock = {
        "compute": [{"kind": "fixed", "mean_s": seconds} for seconds in speeds],
        "network": {"latency_s": 0.0001, "bandwidth_mbps": 1000.0},
        "server": {"compute": {"mean_s": 0.0001}},  # so that the straggler's factor is the whole step's
    }
    shape: dict[str, Any] = {"party_model": "mlp:64", "server_model": "mlp:64", "embedding": 16}
    result = colonnade.train(
        data, protocol, **shape, clock=clock, batch_size=BATCH, learning_rate=RATE, seconds=40.0 * max(1.0, slow / 2.5),
        eval_every="0.1 s", target=TARGET, seed=seed,
    )  # fmt: skip
    return result.summary["time_to_target_s"]


def joint_control(data: Partition, every: int, seed: int) -> float | None:
    """The clock at the target of a joint model whose last block learns in every `every`-th step only."""
    limits = {"updates": 20_000, "eval_every": 5, "target": TARGET, "seed": seed}
    tables = {
        "protocol": {"name": "sync"},
        "model": {"party": "mlp:64", "server": "mlp:64", "embedding": 16},
        "train": {"batch_size": BATCH, "learning_rate": RATE, **limits},
    }
    run = late_block(data, tables, [PARTIES - 1], every, STEP_S)
    while run.simulator.advance(50) and run.summary()["time_to_target_s"] is None:
        pass
    return run.summary()["time_to_target_s"]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, default=5)
    seeds = range(arguments.parse_args().seeds)
    torch.set_num_threads(1)
    data = colonnade.split(colonnade.load("digits"), parties=PARTIES, validation_fraction=0)
    table = Table(
        "method", "equal speeds (s)", f"one {FACTOR}× slower (s)", "ratio", title=f"digits, time to {TARGET:.0%}"
    )
    for label, protocol in METHODS.items():
        calm, hurt = ([time_to_target(data, protocol, slow, s) for s in seeds] for slow in (1.0, FACTOR))
        table.add_row(label, *_cells(calm, hurt))
    calm, hurt = ([joint_control(data, every, s) for s in seeds] for every in (1, FACTOR))
    table.add_row("control: fresh, late block", *_cells(calm, hurt))
    Console(width=110).print(table)


def _cells(calm: list[float | None], hurt: list[float | None]) -> tuple[str, str, str]:
    if None in calm or None in hurt:
        return (f"{calm.count(None)} not reached", f"{hurt.count(None)} not reached", "–")
    before, after = mean(t for t in calm if t), mean(t for t in hurt if t)
    return f"{before:.2f}", f"{after:.2f}", f"{after / before:.2f}"


if __name__ == "__main__":
    main()
