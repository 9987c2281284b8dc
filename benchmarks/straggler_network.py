"""Real processes: the effect of one party that sleeps 200 ms per step on the three others (`vafl` over mutual TLS).

The control is a federation of those three alone, with the same columns each. Rates are uploads per second of the
three together, over the same number of seconds, once all of them are at work; the two federations take turns.

    python benchmarks/straggler_network.py [--seconds 10] [--rounds 3]
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import tempfile
import time
from pathlib import Path

from torch import nn

from colonnade.config.schema import from_dict
from colonnade.data import load, split
from colonnade.deployment.up import prepare_up

SLEEP_S = 0.2
QUICK = ("a", "b", "c")


class Sleeper(nn.Module):
    """A party's network that sleeps in every forward pass."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, outputs))

    def forward(self, x):
        if self.training:
            time.sleep(SLEEP_S)
        return self.layers(x)


def rate(names, seconds):
    """Uploads per second of the three quick parties."""
    columns = load("digits").columns
    data = split(load("digits"), how={name: columns[16 * i : 16 * i + 16] for i, name in enumerate(names)})
    settings = from_dict(
        {
            "model": {
                "party": ["mlp:64" if name in QUICK else "straggler_network:Sleeper" for name in names],
                "embedding": 32,
            },
            "protocol": {"name": "vafl"},
            "train": {"epochs": 1e6, "eval_every": "1000000 epochs", "checkpoint_every": "1000000 epochs"},
        }
    )
    seen = []

    class Enough(Exception):
        pass

    def look(status):
        uploads = [party["bytes_up"] for party in status["parties"] if party["name"] in QUICK]
        at_work = all(party["steps_per_s"] > 0 for party in status["parties"])
        if at_work:
            seen.append((status["clock_s"], sum(uploads), status["updates"]))
        if seen and status["clock_s"] - seen[0][0] > seconds:
            raise Enough

    with tempfile.TemporaryDirectory() as scratch:
        federation = prepare_up(settings, Path(scratch) / "run", data)
        with contextlib.suppress(Enough):
            asyncio.run(federation.run(look))
    (start, before, _), (end, after, _) = seen[len(seen) // 4], seen[-1]
    return (after - before) / (end - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    alone, beside = [], []
    for _ in range(options.rounds):
        alone.append(rate(QUICK, options.seconds))
        beside.append(rate((*QUICK, "sleeper"), options.seconds))
        print(f"three alone {alone[-1] / 1e6:6.3f} MB/s up, beside a sleeper {beside[-1] / 1e6:6.3f} MB/s", flush=True)
    print(f"ratio {statistics.median(beside) / statistics.median(alone):.2f}")


if __name__ == "__main__":
    main()
