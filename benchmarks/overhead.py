"""What the simulator adds to training: `sync` against a hand-written split loop in plain torch.

    python benchmarks/overhead.py [--steps 600] [--rounds 5]

Four parties `dense` 128 (196 columns each) and a server of 128 → 10, SGD, one thread. The hand-written loop
has the same roles, one optimiser each, detached embeddings and no framework. Both run in the same process,
alternating; the ratio is that of the medians. The joint model (one graph, one optimiser) is printed beside.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from torch import nn

import colonnade
from colonnade.data import from_arrays, split

PARTIES, COLUMNS, WIDTH, CLASSES = 4, 196, 128, 10


def party() -> nn.Module:
    return nn.Sequential(nn.Linear(COLUMNS, WIDTH), nn.ReLU())


def server() -> nn.Module:
    return nn.Sequential(nn.Linear(PARTIES * WIDTH, 128), nn.ReLU(), nn.Linear(128, CLASSES))


def split_loop(blocks: list[torch.Tensor], y: torch.Tensor, batch: int, steps: int) -> float:
    """Split learning as written by hand."""
    parties, top = [party() for _ in range(PARTIES)], server()
    optimisers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (*parties, top)]
    loss_of = nn.CrossEntropyLoss()
    order = torch.randperm(len(y))
    start = time.perf_counter()
    for step in range(steps):
        at = step * batch % (len(y) - batch)
        rows = order[at : at + batch]
        h = [module(block[rows]) for module, block in zip(parties, blocks, strict=True)]
        cut = [value.detach().requires_grad_() for value in h]
        loss = loss_of(top(torch.cat(cut, 1)), y[rows])
        for optimiser in optimisers:
            optimiser.zero_grad()
        loss.backward()
        for value, leaf in zip(h, cut, strict=True):
            value.backward(leaf.grad)
        for optimiser in optimisers:
            optimiser.step()
    return time.perf_counter() - start


def joint_loop(blocks: list[torch.Tensor], y: torch.Tensor, batch: int, steps: int) -> float:
    """One graph, one optimiser."""
    modules = nn.ModuleList([party() for _ in range(PARTIES)] + [server()])
    optimiser = torch.optim.SGD(modules.parameters(), lr=0.1)
    loss_of = nn.CrossEntropyLoss()
    order = torch.randperm(len(y))
    start = time.perf_counter()
    for step in range(steps):
        at = step * batch % (len(y) - batch)
        rows = order[at : at + batch]
        h = [module(block[rows]) for module, block in zip(modules[:-1], blocks, strict=True)]
        loss = loss_of(modules[-1](torch.cat(h, 1)), y[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return time.perf_counter() - start


def simulated(data: colonnade.Partition, batch: int, steps: int) -> float:
    """`sync` in the simulator, default trace; set-up and evaluation do not count."""
    run = colonnade.prepare(
        data,
        protocol="sync",
        party_model="dense",
        embedding=WIDTH,
        server_model="mlp:128",
        batch_size=batch,
        optimiser="sgd",
        learning_rate=0.1,
        updates=steps,
        eval_every=steps,
    )
    start = time.perf_counter()
    run.simulator.run()
    return time.perf_counter() - start


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=600)
    arguments.add_argument("--rounds", type=int, default=5)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    x = generator.standard_normal((20_000, PARTIES * COLUMNS), dtype=np.float32)
    y = generator.integers(0, CLASSES, len(x))
    dataset = from_arrays(x, y, x_test=x[:64], y_test=y[:64])
    data = split(dataset, parties=PARTIES, scale="none", validation_fraction=0)  # so that evaluation takes no time
    blocks, labels = [torch.from_numpy(block) for block in data.train], torch.from_numpy(data.y_train)
    contestants: dict[str, Callable[[int], float]] = {
        "split loop": lambda batch: split_loop(blocks, labels, batch, options.steps),
        "joint model": lambda batch: joint_loop(blocks, labels, batch, options.steps),
        "simulator": lambda batch: simulated(data, batch, options.steps),
    }
    for batch in (64, 256):
        times: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(options.rounds):
            for name, run in contestants.items():
                times[name].append(run(batch))
        step_us = {name: median(values) / options.steps * 1e6 for name, values in times.items()}
        print(f"batch {batch}: " + ", ".join(f"{name} {us:.0f} µs/step" for name, us in step_us.items()))
        print(f"  simulator / split loop  {step_us['simulator'] / step_us['split loop']:.2f}   (at most 1.30)")
        print(f"  simulator / joint model {step_us['simulator'] / step_us['joint model']:.2f}")


if __name__ == "__main__":
    main()
