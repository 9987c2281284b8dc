"""How well a model does without some of its parties, with and without party dropout in the training.

    python benchmarks/away.py --data UCI [--out docs/away.png] [--seeds 3] [--dropout 0.3]

UCI credit card, the bank, shop and insurer of examples/three_folders.py, `vafl` with the settings written there. After
the training, the test rows use a replacement for every party that is away: the learned vector with
party dropout, the mean of its training embeddings without. For comparison the same networks trained centrally, on all
columns and on the bank's alone. All in the simulator; nothing was tuned, and the first dropout tried is the one shown.
So no row is held out to validate on.
"""

import argparse
import itertools
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch
from aggregation import save
from rich.console import Console
from rich.table import Table
from sklearn.metrics import roc_auc_score

import colonnade
from colonnade.report.style import PALETTE

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from three_folders import PARTIES

NAMES = tuple(PARTIES)
SETTINGS: dict[str, Any] = {
    "party_model": "mlp:32",
    "server_model": "mlp:32",
    "embedding": 16,
    "batch_size": 256,
    "optimiser": "adam",
    "learning_rate": 0.001,
    "epochs": 10,
    "eval_every": "5 epochs",
    "metric": "auc",
}
SETS = [here for count in (1, 2, 3) for here in itertools.combinations(range(3), count)]


def read(folder: Path) -> Any:
    path = folder / "UCI_Credit_Card.csv.gz"
    return colonnade.load(
        str(path), label="default.payment.next.month", id="ID", categorical=["SEX", "EDUCATION", "MARRIAGE"]
    )


def federated(data: Any, seed: int, dropout: float) -> dict[tuple[int, ...], float]:
    """AUC by the set of present parties. Every seed has its own test rows; all models of one seed share them."""
    part = colonnade.split(data, how=PARTIES, split_seed=seed, validation_fraction=0)
    result = colonnade.train(part, "vafl", seed=seed, party_dropout=dropout, **SETTINGS)
    roles: list[Any] = [node.role for node in result._run.simulator.nodes]
    top, networks = roles[0].network, [role.network for role in roles[1:]]
    h = [network.read(block) for network, block in zip(networks, part.test, strict=True)]
    if dropout:
        edges = np.cumsum([0, *(block.shape[1] for block in h)])
        vector = top.reader.fallback.numpy()
        away = [vector[edges[n] : edges[n + 1]] for n in range(len(h))]
    else:
        away = [network.read(block).mean(0) for network, block in zip(networks, part.train, strict=True)]

    def auc(here: tuple[int, ...]) -> float:
        blocks = [h[n] if n in here else np.broadcast_to(away[n], h[n].shape) for n in range(len(h))]
        output = top.output(np.concatenate(blocks, 1).astype(np.float32))
        return float(roc_auc_score(part.y_test, top.objective.predict(output)[:, 1]))

    return {here: auc(here) for here in SETS}


def central(data: Any, seed: int, names: tuple[str, ...]) -> float:
    """AUC of one model over these parties' columns."""
    part = colonnade.split(data, how={name: PARTIES[name] for name in names}, split_seed=seed, validation_fraction=0)
    return float(colonnade.train(part, "centralised", seed=seed, **SETTINGS).summary["value"])


def words(values: list[float]) -> str:
    return f"{mean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")


def figure(found: dict[float, list[dict[tuple[int, ...], float]]], alone: float, everything: float) -> go.Figure:
    """A point per set of parties and seed, a line through the means by their number."""
    picture = go.Figure()
    for colour, (dropout, runs) in zip(PALETTE, found.items(), strict=False):
        name = f"party dropout {dropout:g}" if dropout else "no party dropout"
        points = [(len(here), value, "+".join(NAMES[n] for n in here)) for run in runs for here, value in run.items()]
        counts, values, texts = zip(*points, strict=True)
        shift = 0.04 if dropout else -0.04
        picture.add_scatter(
            x=[count + shift for count in counts], y=values, text=texts, mode="markers", showlegend=False,
            marker={"color": colour, "size": 7, "opacity": 0.6},
        )  # fmt: skip
        line = [mean(value for count, value, _ in points if count == wanted) for wanted in (1, 2, 3)]
        picture.add_scatter(x=[1, 2, 3], y=line, name=name, mode="lines", line={"color": colour, "width": 2})
    for value, text in ((alone, "the bank's columns alone, trained centrally"), (everything, "all columns, centrally")):
        picture.add_hline(y=value, line_dash="dot", annotation_text=text, annotation_position="bottom right")
    picture.update_layout(
        title="UCI credit card, vafl: AUC by the number of present parties (points: sets of parties)",
        xaxis={"title": "present parties", "tickvals": [1, 2, 3]}, yaxis_title="AUC on test rows",
        template="plotly_white", height=580, margin={"l": 60, "r": 20, "t": 60, "b": 50}, legend={"x": 0.02, "y": 0.98},
    )  # fmt: skip
    return picture


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", required=True, type=Path, help="folder with UCI_Credit_Card.csv.gz")
    arguments.add_argument("--out", type=Path, default=Path("away.html"), help="a .png or .html")
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--dropout", type=float, default=0.3)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    console, data = Console(width=110), read(options.data)
    seeds = range(options.seeds)
    alone, everything = ([central(data, seed, names) for seed in seeds] for names in (("bank",), NAMES))
    console.print("centralised, the bank's columns:", words(alone), " all columns:", words(everything))
    found = {p: [federated(data, seed, p) for seed in seeds] for p in (0.0, options.dropout)}
    table = Table("present parties", *(f"party dropout {p:g}" for p in found), title=f"AUC, {options.seeds} seeds")
    for here in SETS:
        names = ", ".join(NAMES[n] for n in here)
        table.add_row(names, *(words([run[here] for run in runs]) for runs in found.values()))
    console.print(table)
    for p, runs in found.items():  # the shop is number 1
        gains = [run[(0, 1, 2)] - bank for run, bank in zip(runs, alone, strict=True)]
        lost = [(run[(0, 1, 2)] - run[(0, 2)]) / gain for run, gain in zip(runs, gains, strict=True)]
        shares = ", ".join(f"{share:.0%}" for share in lost)
        console.print(f"party dropout {p:g}: of the gain over the bank alone, the shop's absence loses {shares}")
    save(figure(found, mean(alone), mean(everything)), options.out)


if __name__ == "__main__":
    main()
