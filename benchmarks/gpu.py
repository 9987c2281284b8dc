"""Split ResNet-18 on a GPU against the same network trained jointly: images per second, as a ratio of one run.

    python benchmarks/gpu.py [--device cuda] [--batch 128] [--updates 100] [--rounds 5] [--rows 8192]
        [--methods sync,vafl] [--precision bf16] [--profile FILE]

Two parties hold the halves of made-up 32 × 32 colour images and the first convolution of ResNet-18, the server the
rest. `sync`, or each method of `--methods`, trains it in the simulator, everything on the device; the other side is
one plain torch loop over the same three modules: as many rows, SGD with momentum, no evaluation. They take turns; the
ratio of the medians counts. An update of `vafl` or `cascaded` takes the embeddings of one party, and all others from
the server's table.
Colonnade records a network's passes as CUDA graphs, so a second loop does the same. `--precision bf16` computes the
passes of all sides in mixed precision.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import colonnade
from colonnade.config.schema import from_dict
from colonnade.data import Partition
from colonnade.experiments.run import one_thread, prepare
from colonnade.models import party_module, server_module
from colonnade.models.precision import FULL, MIXED, PRECISIONS, Mixed

HALF = (3, 32, 16)
STEM, TOP, WIDTH = "resnet18-stem:3x32x16", "resnet18:64x32x32", 64 * 32 * 16
CLASSES, WARM_UP = 10, 20


def images(rows: int) -> Partition:
    """Noise with a class in it; the columns of the left halves come first."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, CLASSES, rows)
    x = draw.random((rows, 2 * int(np.prod(HALF))), np.float32) + y[:, None].astype(np.float32) / CLASSES
    return colonnade.split(colonnade.from_arrays(x, y), parties=2, scale="none", test_fraction=0.1)


def split_steps(data: Partition, device: str, batch: int, method: str, precision: str) -> Callable[[int], None]:
    """Run a federation for this many further updates."""
    tables: dict[str, Any] = {
        "protocol": {"name": method},
        "model": {"party": STEM, "embedding": WIDTH, "server": TOP, "device": device, "precision": precision},
        "train": {
            "batch_size": batch, "updates": 10**6, "eval_every": 10**6, "learning_rate": 0.01, "optimiser": "momentum",
        },
    }  # fmt: skip
    run = prepare(from_dict(tables), data)

    def step(updates: int) -> None:
        progress = run.simulator.principal.role.progress  # type: ignore[attr-defined]
        until = progress.k + updates
        with one_thread():
            while progress.k < until:
                run.simulator.advance(1)

    return step


def joint_steps(
    data: Partition, device: str, batch: int, precision: str, recorded: bool = False
) -> Callable[[int], None]:
    """The same network in one graph: layer by layer, or with recorded passes as in Colonnade."""
    stems: list[torch.nn.Module] = [
        party_module(STEM, (x.shape[1],), WIDTH, seed, "party").to(device) for seed, x in enumerate(data.train)
    ]
    top: torch.nn.Module = server_module(TOP, 2 * WIDTH, CLASSES, 2).to(device)
    if precision == MIXED:
        *stems, top = map(Mixed, (*stems, top))
    modules = torch.nn.ModuleList([*stems, top]).train()
    optimiser = torch.optim.SGD(modules.parameters(), lr=0.01, momentum=0.9)
    halves = [torch.from_numpy(x).to(device) for x in data.train]
    targets = torch.from_numpy(data.y_train).to(device)

    if recorded:
        rows = torch.arange(batch, device=device)
        samples = [(x[rows],) for x in halves]
        samples.append((torch.zeros(batch, 2 * WIDTH, device=device, requires_grad=True),))
        *stems, top = torch.cuda.make_graphed_callables((*stems, top), tuple(samples))

    def step(updates: int) -> None:
        for _ in range(updates):
            rows = torch.from_numpy(np.random.permutation(len(targets))[:batch]).to(device, non_blocking=True)
            h = torch.cat([stem(x[rows]) for stem, x in zip(stems, halves, strict=True)], 1)
            loss = functional.cross_entropy(top(h), targets[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    return step


def timed(step: Callable[[int], None], updates: int, device: str) -> float:
    """Seconds for this many updates, to the end of the last."""
    wait = torch.cuda.synchronize if device != "cpu" else lambda: None
    wait()
    start = time.perf_counter()
    step(updates)
    wait()
    return time.perf_counter() - start


def _name(device: str) -> str:
    return f"{torch.cuda.get_device_name(device) if device != 'cpu' else 'a CPU'}, torch {torch.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--methods", default="sync")
    parser.add_argument("--precision", choices=PRECISIONS, default=FULL)
    parser.add_argument("--profile", help="write a trace of torch's profiler here")
    options = parser.parse_args()
    data, device, batch, precision = images(options.rows), options.device, options.batch, options.precision
    print(f"{precision}, batches of {batch}, {options.rounds} rounds of {options.updates} updates on {_name(device)}")
    steps = {"joint": joint_steps(data, device, batch, precision)}
    if device != "cpu":
        steps["joint, recorded"] = joint_steps(data, device, batch, precision, recorded=True)
    steps |= {name: split_steps(data, device, batch, name, precision) for name in options.methods.split(",")}
    for step in steps.values():
        timed(step, min(WARM_UP, options.updates), device)
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.rounds):
        for name, step in steps.items():
            taken[name].append(timed(step, options.updates, device))
    baselines = {name: statistics.median(taken[name]) for name in steps if name.startswith("joint")}
    for name, seconds in taken.items():
        middle = statistics.median(seconds)
        rate, ms = options.updates * options.batch / middle, 1000 * middle / options.updates
        spread = f"{1000 * min(seconds) / options.updates:.2f}–{1000 * max(seconds) / options.updates:.2f}"
        ratios = ", ".join(f"{seconds / middle:.2f} of {baseline}" for baseline, seconds in baselines.items())
        print(f"{name}: {rate:,.0f} images/s, {ms:.2f} ms per update ({spread}): {ratios}")
    if options.profile:
        with torch.profiler.profile() as profile:
            timed(steps[options.methods.split(",")[0]], 5, device)
        profile.export_chrome_trace(options.profile)
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=25))


if __name__ == "__main__":
    main()
