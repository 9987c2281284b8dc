"""How well zeroth-order parties learn, beside first-order ones and beside parties that never learn.

    python benchmarks/zeroth_accuracy.py [--widths 3,32] [--epochs 40] [--seeds 3] [--methods …] [--tune]
    python benchmarks/zeroth_accuracy.py --mnist DIR [--widths 4,128] [--epochs 2] …

Four parties `dense`, batches of 64, SGD, no delays. The server has one hidden layer: of 128 for MNIST (the paper's), as
wide as an embedding for digits, none at digits with embeddings narrower than 16. Printed: test accuracy in per cent
over the seeds (mean, lowest, highest), the rates of server and parties, and the CPU time of a run. The rates are those
of `RATES`; --tune tries all of `GRID` with seed 0 first and takes the best. `syn-zoo` makes a quarter of the others'
updates in as many epochs. One thread.
"""

import argparse
import itertools
import time
from statistics import mean

import torch

import colonnade

PARTIES, BATCH, WIDE = 4, 64, 16
Rates = tuple[float, float]  # of the server, of the parties
RATES: dict[tuple[str, int], dict[str, Rates]] = {
    ("digits", 3): {
        "vafl": (0.3, 0.3), "cascaded": (0.3, 0.1), "zoo": (0.02, 0.02), "syn-zoo": (0.02, 0.02), "frozen": (0.3, 0.3),
    },
    ("digits", 32): {
        "vafl": (0.1, 0.1), "cascaded": (0.1, 0.1), "zoo": (0.005, 0.005), "syn-zoo": (0.01, 0.01),
        "frozen": (0.3, 0.3),
    },
    ("mnist", 4): {
        "vafl": (0.1, 0.1), "cascaded": (0.1, 0.001), "zoo": (0.001, 0.001), "syn-zoo": (0.001, 0.001),
        "frozen": (0.1, 0.1),
    },
    ("mnist", 128): {
        "vafl": (0.1, 0.1), "cascaded": (0.1, 0.0003), "zoo": (0.0005, 0.0005), "syn-zoo": (0.0005, 0.0005),
        "frozen": (0.1, 0.1),
    },
}  # fmt: skip
GRID: dict[str, dict[str, tuple[list[float], list[float]]]] = {  # of the server, of the parties; none: the same
    "digits": {
        "vafl": ([0.03, 0.1, 0.3, 1.0], []),
        "cascaded": ([0.1, 0.3], [0.003, 0.01, 0.03, 0.1, 0.3]),
        "zoo": ([0.002, 0.005, 0.01, 0.02, 0.05], []),
        "syn-zoo": ([0.005, 0.01, 0.02, 0.05], []),
        "frozen": ([0.1, 0.3, 1.0], []),
    },
    "mnist": {
        "vafl": ([0.1, 0.3], []),
        "cascaded": ([0.1, 0.3], [0.0003, 0.001, 0.003]),
        "zoo": ([0.0005, 0.001, 0.003], []),
        "syn-zoo": ([0.0005, 0.001, 0.003], []),
        "frozen": ([0.1, 0.3], []),
    },
}


def server_of(source: str, width: int) -> str:
    """The server's model."""
    if source == "mnist":
        return "mlp:128"
    return f"mlp:{width}" if width >= WIDE else "linear"


def accuracy(
    data: colonnade.Partition, server: str, method: str, rates: Rates, width: int, epochs: float, seed: int
) -> float:
    """One run, in per cent; 0 where it diverges."""
    protocol = {"name": method} | ({"server_directions": 1} if "zoo" in method else {})  # the paper's form
    result = colonnade.train(
        data,
        protocol,
        party_model="dense",
        server_model=server,
        embedding=width,
        batch_size=BATCH,
        epochs=epochs,
        eval_every=f"{epochs} epochs",
        learning_rate={"server": rates[0], "party": rates[1]},
        seed=seed,
    )
    return 100 * result.summary["accuracy"] if result.summary["status"] == "finished" else 0.0


def best(data: colonnade.Partition, source: str, method: str, width: int, epochs: float) -> Rates:
    """Of the grid, with seed 0."""
    servers, parties = GRID[source][method]
    pairs = list(itertools.product(servers, parties)) if parties else [(rate, rate) for rate in servers]
    server = server_of(source, width)
    found = {pair: accuracy(data, server, method, pair, width, epochs, 0) for pair in pairs}
    print(
        "  " + ", ".join(f"{server:g}/{party:g}: {value:.1f}" for (server, party), value in found.items()), flush=True
    )
    return max(found, key=lambda pair: found[pair])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", metavar="DIR", help="the folder with its four files")
    parser.add_argument("--widths")
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", default="vafl,cascaded,zoo,syn-zoo,frozen")
    parser.add_argument("--tune", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    source = "mnist" if options.mnist else "digits"
    data = colonnade.split(colonnade.load(source, dir=options.mnist), parties=PARTIES)
    epochs = options.epochs or {"digits": 40.0, "mnist": 2.0}[source]
    for width in map(int, (options.widths or {"digits": "3,32", "mnist": "4,128"}[source]).split(",")):
        print(f"{source}, width {width}, {epochs:g} epochs, seeds 0 to {options.seeds - 1}", flush=True)
        for method in options.methods.split(","):
            tune = options.tune or (source, width) not in RATES
            rates = best(data, source, method, width, epochs) if tune else RATES[source, width][method]
            start = time.process_time()
            server, seeds = server_of(source, width), range(options.seeds)
            found = [accuracy(data, server, method, rates, width, epochs, seed) for seed in seeds]
            seconds = (time.process_time() - start) / options.seeds
            spread = f"{mean(found):.1f} ({min(found):.1f}–{max(found):.1f})"
            print(f"  {method:9} {spread:18} rates {rates[0]:g}, {rates[1]:g}   {seconds:.1f} s a run", flush=True)


if __name__ == "__main__":
    main()
