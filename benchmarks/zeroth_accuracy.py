"""How well zeroth-order parties learn, beside first-order ones and beside parties that never learn.

    python benchmarks/zeroth_accuracy.py --out FOLDER [--widths 3,32] [--epochs 40] [--methods …] [--seeds 2]
                                         [--final-seeds 3] [--workers 2] [--minutes 9] [--resume]
    python benchmarks/zeroth_accuracy.py --mnist DIR --out FOLDER [--widths 4,128] [--epochs 2] …

Four parties `dense`, batches of 64, SGD, no delays. The server has one hidden layer: of 128 for MNIST (the paper's), as
wide as an embedding for digits, none at digits with embeddings narrower than 16. Each method has the rates of server
and parties with the best accuracy on the validation rows at the end (all of GRID with one seed, the best three with all
seeds). The table has the accuracy on the test rows in per cent over fresh seeds: mean, lowest, highest. `syn-zoo`
makes a quarter of the others' updates in as many epochs. FOLDER gets zeroth.jsonl, a line per run, and zeroth.md.
"""

import argparse
from functools import partial
from itertools import product
from statistics import mean
from typing import Any

from chosen import DATA, choose, error, job, judge, results
from journal import Journal, add_options, study
from markdown import markdown

import colonnade

PARTIES, BATCH, WIDE = 4, 64, 16
KEEP = 3  # settings tried with all seeds
FRESH = 1000  # the first seed of the reported runs
Rates = tuple[float, float]  # of the server, of the parties
GRID: dict[str, dict[str, tuple[list[float], list[float]]]] = {  # of the server, of the parties; none: the same
    "digits": {
        "vafl": ([0.03, 0.1, 0.3, 1.0, 3.0], []),
        "cascaded": ([0.03, 0.1, 0.3, 1.0], [0.003, 0.01, 0.03, 0.1, 0.3, 1.0]),
        "zoo": ([0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2], []),
        "syn-zoo": ([0.005, 0.01, 0.02, 0.05, 0.1, 0.2], []),
        "frozen": ([0.1, 0.3, 1.0, 3.0], []),
    },
    "mnist": {
        "vafl": ([0.1, 0.3, 1.0], []),
        "cascaded": ([0.1, 0.3, 1.0], [0.0001, 0.0003, 0.001, 0.003]),
        "zoo": ([0.0005, 0.001, 0.003], []),
        "syn-zoo": ([0.0005, 0.001, 0.003], []),
        "frozen": ([0.1, 0.3, 1.0], []),
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", metavar="DIR", help="folder with the four MNIST files")
    parser.add_argument("--widths")
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--methods", default="vafl,cascaded,zoo,syn-zoo,frozen")
    parser.add_argument("--seeds", type=int, default=2, help="seeds of each setting while tuning")
    parser.add_argument("--final-seeds", type=int, default=3, help="fresh seeds for the table")
    add_options(parser)
    options = parser.parse_args()
    source = "mnist" if options.mnist else "digits"
    DATA[source] = colonnade.split(colonnade.load(source, dir=options.mnist), parties=PARTIES)
    text = study(options, "zeroth.jsonl", judge, partial(compare, options, source))
    if text is not None:
        (options.out / "zeroth.md").write_text(text, encoding="utf-8")
        print(text)


def compare(options: argparse.Namespace, source: str, journal: Journal) -> str:
    """One table per width."""
    epochs = options.epochs or {"digits": 40.0, "mnist": 2.0}[source]
    widths = [int(width) for width in (options.widths or {"digits": "3,32", "mnist": "4,128"}[source]).split(",")]
    methods = options.methods.split(",")
    cases = {
        (width, method): {rates: _run(source, width, method, rates, epochs) for rates in pairs(source, method)}
        for width, method in product(widths, methods)
    }
    best = choose(journal, cases, range(options.seeds), error, KEEP)
    final = {case: cases[case][rates] for case, rates in best.items()}
    found = results(journal, "test rows", final, range(FRESH, FRESH + options.final_seeds), "test")
    tables = []
    for width in widths:
        rows = []
        for method in methods:
            values = [100 * (one["value"] or 0.0) for one in found[width, method]]
            rates = best[width, method]
            server, party = (f"{rate:g}{' (edge)' if edge else ''}" for rate, edge in edges(source, method, rates))
            spread = f"{min(values):.1f}–{max(values):.1f}"
            rows.append([f"`{method}`", f"{mean(values):.1f}", spread, f"{server}, {party}"])
        columns = [
            f"width {width}, server `{server_of(source, width)}`",
            "mean",
            "lowest–highest",
            "rates (server, party)",
        ]
        tables.append(markdown(columns, rows))
    return "\n\n".join(tables) + "\n"


def pairs(source: str, method: str) -> list[Rates]:
    """The settings of a method."""
    servers, parties = GRID[source][method]
    return list(product(servers, parties)) if parties else [(rate, rate) for rate in servers]


def edges(source: str, method: str, rates: Rates) -> list[tuple[float, bool]]:
    """Each rate, and whether it is at an edge of its grid."""
    servers, parties = GRID[source][method]
    grids = (servers, parties or servers)
    return [(rate, rate in (grid[0], grid[-1])) for rate, grid in zip(rates, grids, strict=True)]


def server_of(source: str, width: int) -> str:
    """The server's model."""
    if source == "mnist":
        return "mlp:128"
    return f"mlp:{width}" if width >= WIDE else "linear"


def _run(source: str, width: int, method: str, rates: Rates, epochs: float) -> dict[str, Any]:
    protocol = {"name": method} | ({"server_directions": 1} if "zoo" in method else {})  # the paper's form
    train = {
        "batch_size": BATCH, "optimiser": "sgd", "learning_rate": {"server": rates[0], "party": rates[1]},
        "epochs": epochs, "eval_every": f"{epochs} epochs", "patience": 0,
    }  # fmt: skip
    model = {"party": "dense", "server": server_of(source, width), "embedding": width}
    return job(source, {"model": model, "protocol": protocol, "train": train})


if __name__ == "__main__":
    main()
