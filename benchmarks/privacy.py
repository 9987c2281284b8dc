"""What privacy costs: MNIST, logistic regression over seven parties, with the guarantee that is true of it.

    python benchmarks/privacy.py paper|useful|plot --data DIR [--seeds 1] [--out DIR]

Seven parties, one linear layer of ten outputs each, a server that adds them up; batch 600 (1 %), as in VAFL's App. G.2.

    paper    noise of deviation 0.1 (and none) for vafl, t-sync and sync: accuracy, and the ε that it really is
    useful   what accuracy is left at ε = 10, 3, 1 (δ = 1e-5), with plain and with private local updates; three outputs
             a party and a linear layer at the server, which do better here; "clean" is the same weights read without
             noise, which nobody in the federation could do
    plot     privacy.html: accuracy against ε, from useful.json

Noise is planned for what a record pays: with private steps, its row's uploads and the steps with it; with plain ones,
every row of every message, evaluation too. What is printed is what the ledgers say afterwards.
"""

import argparse
import json
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import plotly.graph_objects as plotly
import torch
from rich.console import Console
from rich.table import Table

from colonnade.config.resolve import load_partition
from colonnade.config.schema import from_dict
from colonnade.data import Partition
from colonnade.experiments.run import prepare
from colonnade.privacy.gaussian import mu_for
from colonnade.privacy.perturb import drawing

PARTIES, ROWS, TEST_ROWS, BATCH, DELTA = 7, 60_000, 10_000, 600, 1e-5
EPSILONS = (10.0, 3.0, 1.0)
PAPER_CLIP, PAPER_NOISE, PAPER_EPOCHS = 5.0, 0.1, 5
# The best of seventeen tries at ε = 10, four at 3 and four at 1, seed 0 (other widths, clips, shares, rates). One epoch
# less a batch of `sync`, so that every row is uploaded once in training, and two evaluations. Half of μ² is for a row's
# upload, half for its step; a test row's two uploads then cost as much.
USEFUL_UPDATES = ROWS // BATCH - 1
CLIP, GRADIENT_CLIP, SHARE = 1.0, 1.0, 0.5
USEFUL_MODEL = {"party": "linear", "embedding": 3, "server": "linear", "aggregate": "concat"}
USEFUL_RATES = {"server": 0.3, "party": 5.0}
RATES_AT_3 = {"server": 0.1, "party": 5.0}
console = Console()


class Silence:
    """No noise: to see what the weights themselves are worth."""

    def normal(self, like: torch.Tensor) -> torch.Tensor:
        """Zeros."""
        return torch.zeros_like(like)

    uniform = normal


def tables(method: str, privacy: dict[str, Any], seed: int, **train: Any) -> dict[str, Any]:
    """The setting of App. G.2."""
    return {
        "data": {"source": "mnist", "parties": PARTIES},
        "model": {"party": "linear", "embedding": 10, "server": "none", "aggregate": "sum"},
        "protocol": {"name": method},
        "train": {"batch_size": BATCH, "learning_rate": 1.0, "seed": seed} | train,
        "privacy": privacy,
    }


def measure(config: dict[str, Any], data: Partition) -> dict[str, Any]:
    """Accuracy as the federation sees it, that of the weights without noise, and what the ledgers say."""
    run = prepare(from_dict(config), data)
    summary = run.execute()
    roles: list[Any] = [node.role for node in run.simulator.nodes]
    with drawing(Silence()):
        blocks = zip(roles[1:], data.test, strict=True)
        h = np.concatenate([party.network.read(block) for party, block in blocks], axis=1)
    top = roles[0].network
    clean = float((top.objective.predict(top.output(h)).argmax(1) == data.y_test).mean())
    spent = summary["privacy"] or {}
    claim = spent.get("claim_of_theorem_6", {}).get("epsilon")
    return {
        "accuracy": summary["value"], "clean": clean, "epsilon": spent.get("epsilon"), "mu": spent.get("mu"),
        "claim": claim, "status": summary["status"], "seconds": summary["wall_s"],
    }  # fmt: skip


def paper(data: Partition, seeds: int) -> list[dict[str, Any]]:
    """Point by point as in the paper, with a clip beside the noise."""
    found = []
    for method in ("vafl", "t-sync", "sync"):
        for name, privacy in (
            ("none", {}),
            ("0.1", {"mechanism": "neurons", "clip": PAPER_CLIP, "noise": PAPER_NOISE}),
        ):
            for seed in range(seeds):
                config = tables(method, privacy, seed, epochs=PAPER_EPOCHS, eval_every="1 epoch")
                found.append({"method": method, "noise": name, **measure(config, data)})
                console.print(found[-1])
    return found


def private(epsilon: float) -> dict[str, Any]:
    """A row's one upload and one step; or, of a test row, two uploads."""
    mu = mu_for(epsilon, DELTA)
    return {
        "mechanism": "output", "clip": CLIP, "noise": 2 * CLIP / (mu * sqrt(SHARE)), "delta": DELTA,
        "local_updates": "dp-sgd",
        "dp_sgd": {"clip": GRADIENT_CLIP, "noise": 2 * GRADIENT_CLIP / (mu * sqrt(1 - SHARE))},
    }  # fmt: skip


def plain(epsilon: float) -> dict[str, Any]:
    """Every row of every message."""
    noise = 2 * CLIP * sqrt(ROWS + 2 * TEST_ROWS) / mu_for(epsilon, DELTA)
    return {"mechanism": "output", "clip": CLIP, "noise": noise, "delta": DELTA}


def useful(data: Partition, seeds: int) -> list[dict[str, Any]]:
    """Accuracy against ε, with the mode that is best and the one that is not."""
    wanted = [("none", 0.0, {})]
    wanted += [("clipped only", 0.0, {"mechanism": "output", "clip": CLIP, "noise": 1e-6})]
    for epsilon in EPSILONS:
        wanted += [("dp-sgd", epsilon, private(epsilon)), ("plain", epsilon, plain(epsilon))]
    found = []
    for mode, epsilon, privacy in wanted:
        for seed in range(seeds):
            rates = RATES_AT_3 if epsilon == 3.0 else USEFUL_RATES
            limits = {"updates": USEFUL_UPDATES, "eval_every": USEFUL_UPDATES, "learning_rate": rates}
            config = tables("sync", privacy, seed, **limits) | {"model": USEFUL_MODEL}
            found.append({"wanted": epsilon, "mode": mode, "noise": privacy.get("noise")} | measure(config, data))
            console.print(found[-1])
    return found


def show(rows: list[dict[str, Any]], keys: tuple[str, ...]) -> None:
    """Means over seeds."""
    table = Table(*keys, "accuracy %", "clean %", "ε", "Thm 6 claims")
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    for group, members in groups.items():
        cells = [_percent([row[key] for row in members]) for key in ("accuracy", "clean")]
        numbers = [f"{members[0][key]:.4g}" if members[0][key] is not None else "–" for key in ("epsilon", "claim")]
        table.add_row(*map(str, group), *cells, *numbers)
    console.print(table)


def _percent(values: list[float]) -> str:
    spread = f" ± {100 * stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.2f}{spread}"


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Accuracy against ε."""
    figure = plotly.Figure()
    for mode, key, dash in (("dp-sgd", "accuracy", "solid"), ("dp-sgd", "clean", "dot"), ("plain", "accuracy", "dash")):
        own = [row for row in rows if row["mode"] == mode]
        wanted = sorted({row["wanted"] for row in own})
        heights = [mean(row[key] for row in own if row["wanted"] == epsilon) for epsilon in wanted]
        label = {"clean": f"{mode}, weights without noise"}.get(key, f"{mode}, as the federation sees it")
        figure.add_trace(plotly.Scatter(x=wanted, y=heights, mode="lines+markers", name=label, line={"dash": dash}))
    figure.add_hline(y=0.1135, line_dash="dot", line_color="#888888", annotation_text="the most frequent class")
    figure.update_xaxes(type="log", title="ε (δ = 1e-5), one record of one party", tickvals=wanted)
    figure.update_yaxes(title="accuracy", range=[0, 1])
    margin = {"l": 60, "r": 30, "t": 50, "b": 60}
    figure.update_layout(
        template="plotly_white", width=860, height=420, legend={"orientation": "h", "y": 1.12}, margin=margin
    )
    figure.write_html(path, config={"displayModeBar": False})


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("paper", "useful", "plot"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data/mnist"))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path())
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = options.out / f"{options.what}.json"
    if options.what == "plot":
        plot(json.loads((options.out / "useful.json").read_text()), options.out / "privacy.html")
        return
    data = load_partition(
        from_dict({"data": {"source": "mnist", "parties": PARTIES, "validation_fraction": 0, "dir": str(options.data)}})
    )
    rows = paper(data, options.seeds) if options.what == "paper" else useful(data, options.seeds)
    path.write_text(json.dumps(rows, indent=1))
    show(rows, ("method", "noise") if options.what == "paper" else ("mode", "wanted"))


if __name__ == "__main__":
    main()
