"""Split learning on Fashion-MNIST with real processes over mutual TLS, against one process with plain torch.

Two parties hold 392 columns each: party 392-128-64, server 128-96-10, Adam 1e-3, batch 256, 234 steps of `sync`,
one torch thread per process. The federation's time runs from its first evaluation (update 0) to its last one, which
includes embedding and judging 16,000 validation and test rows once. The torch loop has the same layers and judges none.

    python benchmarks/splitnn.py --dir ../shared/data [--steps 234] [--rounds 3] [--against FOLDER]

`--against` also runs the federation of another checkout in turns with this one, and prints the ratio of the two.
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from colonnade.config.resolve import load_partition
from colonnade.config.schema import from_dict
from colonnade.deployment.up import prepare_up

BATCH = 256


def config(folder, steps):
    return from_dict(
        {
            "data": {"source": "fashion-mnist", "dir": folder, "parties": 2},
            "model": {"party": "mlp:128", "embedding": 64, "server": "mlp:96"},
            "protocol": {"name": "sync"},
            "train": {
                "batch_size": BATCH,
                "optimiser": "adam",
                "learning_rate": 1e-3,
                "updates": steps,
                "eval_every": 10 * steps,
                "checkpoint_every": 10 * steps,
            },
        }
    )


def federation(settings, data):
    """Rows per second, and the summary."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "run"
        summary = asyncio.run(prepare_up(settings, out, data).run())
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    seconds = rows[-1]["clock_s"] - rows[0]["clock_s"]
    return rows[-1]["update"] * BATCH / seconds, summary


def federation_of(checkout, options):
    """Rows per second of the federation of a checkout, in a process of its own."""
    path = os.pathsep.join([str(checkout / "src"), os.environ.get("PYTHONPATH", "")])
    settings = os.environ | {"PYTHONPATH": path}
    command = [sys.executable, __file__, "--dir", options.dir, "--steps", str(options.steps), "--rounds", "1"]
    printed = subprocess.run(command, env=settings, stdout=subprocess.PIPE, text=True, check=True).stdout
    return float(re.search(r"processes +(\d+)/s", printed)[1])


def compare(options):
    """Both checkouts in turns."""
    here, ratios = Path(__file__).resolve().parents[1], []
    for _ in range(options.rounds):
        now, then = federation_of(here, options), federation_of(options.against, options)
        ratios.append(now / then)
        print(f"here {now:8.0f}/s  there {then:8.0f}/s  ratio {now / then:.3f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.3f} ({min(ratios):.3f}–{max(ratios):.3f})")


def torch_loop(data, steps):
    """The same networks in one process, one graph, one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    parties = [nn.Sequential(nn.Linear(392, 128), nn.ReLU(), nn.Linear(128, 64)) for _ in data.train]
    server = nn.Sequential(nn.Linear(128, 96), nn.ReLU(), nn.Linear(96, 10))
    optimisers = [torch.optim.Adam(part.parameters(), lr=1e-3) for part in (*parties, server)]
    x, y = [torch.from_numpy(block) for block in data.train], torch.from_numpy(data.y_train)
    order = torch.randperm(len(y))
    start = time.perf_counter()
    for step in range(steps):
        rows = order[step * BATCH % (len(y) - BATCH) :][:BATCH]
        h = torch.cat([part(block[rows]) for part, block in zip(parties, x, strict=True)], 1)
        loss = nn.functional.cross_entropy(server(h), y[rows])
        for optimiser in optimisers:
            optimiser.zero_grad()
        loss.backward()
        for optimiser in optimisers:
            optimiser.step()
    return steps * BATCH / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", required=True, help="folder with fashion-mnist")
    parser.add_argument("--steps", type=int, default=234)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout to compare with")
    options = parser.parse_args()
    if options.against is not None:
        return compare(options)
    settings = config(options.dir, options.steps)
    data = load_partition(settings)
    torch_loop(data, 20)  # the first use of an optimiser spends seconds on imports
    ours, plain = [], []
    for _ in range(options.rounds):
        rate, summary = federation(settings, data)
        ours.append(rate)
        plain.append(torch_loop(data, options.steps))
        print(f"processes {rate:8.0f}/s  torch {plain[-1]:8.0f}/s  accuracy {summary['accuracy']:.4f}", flush=True)
        print("  utilisation", {role: round(share, 2) for role, share in summary["utilisation"].items()}, flush=True)
    ratio = statistics.median(ours) / statistics.median(plain)
    print(f"median: processes {statistics.median(ours):.0f}, torch {statistics.median(plain):.0f}, ratio {ratio:.2f}")
    return None


if __name__ == "__main__":
    main()
