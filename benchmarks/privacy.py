"""What privacy costs: MNIST, logistic regression over seven parties, with the guarantee that really holds.

    python benchmarks/privacy.py paper --data DIR --out FOLDER [--final-seeds 3]
    python benchmarks/privacy.py useful --data DIR --out FOLDER [--seeds 2] [--final-seeds 3] [--workers 2] [--resume]
    python benchmarks/privacy.py plot --out FOLDER

Seven parties, one linear layer of ten outputs each, a server that adds them up; batch 600 (1 %), as in VAFL's App. G.2.

    paper    noise of deviation 0.1 (and none) for vafl, t-sync and sync: accuracy, and the real ε. Rates
             and epochs are the paper's: nothing is chosen, and so there are no validation rows
    useful   the accuracy left at ε = 10, 3, 1 (δ = 1e-5), with plain and with private local updates. Each has its
             own model and rates: those with the best accuracy on the validation rows (all of the grid with one seed,
             the best four with all). The table has the test rows, over fresh seeds. "clean" is the same weights read
             without noise, which no member of the federation could do
    plot     privacy.html: accuracy against ε, from useful.json

Noise is planned for what a record pays: with private steps, its row's uploads and the steps with it; with plain ones,
every row of every message, evaluation too. What is printed is what the ledgers say afterwards.
"""

import argparse
import json
from functools import partial
from itertools import product
from math import inf, sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import plotly.graph_objects as plotly
import torch
from chosen import DATA, choose, results
from journal import Job, Journal, Result, add_options, study
from rich.console import Console
from rich.table import Table

from colonnade.config.schema import from_dict
from colonnade.data import Partition, load, split
from colonnade.experiments.run import prepare
from colonnade.privacy.gaussian import mu_for
from colonnade.privacy.perturb import drawing

PARTIES, BATCH, DELTA = 7, 600, 1e-5
EPSILONS = (10.0, 3.0, 1.0)
PAPER_CLIP, PAPER_NOISE, PAPER_EPOCHS = 5.0, 0.1, 5
CLIP, GRADIENT_CLIP = 1.0, 1.0
MODELS = {
    "3, linear": {"party": "linear", "embedding": 3, "server": "linear", "aggregate": "concat"},
    "10, summed": {"party": "linear", "embedding": 10, "server": "none", "aggregate": "sum"},
}
SERVER_RATES, PARTY_RATES = (0.1, 0.3, 1.0), (2.5, 5.0, 10.0, 20.0)
SHARE = 0.5  # of μ², for a row's upload, the rest for its step: a test row's two uploads then cost as much
FRESH = 1000  # the first seed of the reported runs
Setting = tuple[str, float, float]  # model, rates of server and party
GRID: list[Setting] = [  # a server that adds up has no rate
    *product(["3, linear"], SERVER_RATES, PARTY_RATES),
    *product(["10, summed"], SERVER_RATES[:1], PARTY_RATES),
]
console = Console()


class Silence:
    """No noise: shows the accuracy of the weights themselves."""

    def normal(self, like: torch.Tensor) -> torch.Tensor:
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
    """Accuracy in the federation, accuracy of the weights without noise, and the ledgers' μ and ε."""
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
    accuracy = summary["validation_value"] if data.validation else summary["value"]
    return {
        "accuracy": accuracy, "clean": clean, "epsilon": spent.get("epsilon"), "mu": spent.get("mu"),
        "claim": claim, "status": summary["status"], "seconds": summary["wall_s"],
    }  # fmt: skip


def paper(data: Partition, seeds: int) -> list[dict[str, Any]]:
    """The paper's points, with a clip beside the noise."""
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
    """Settings for a row's one upload and one step; or for two uploads of an evaluated row."""
    mu = mu_for(epsilon, DELTA)
    return {
        "mechanism": "output", "clip": CLIP, "noise": 2 * CLIP / (mu * sqrt(SHARE)), "delta": DELTA,
        "local_updates": "dp-sgd",
        "dp_sgd": {"clip": GRADIENT_CLIP, "noise": 2 * GRADIENT_CLIP / (mu * sqrt(1 - SHARE))},
    }  # fmt: skip


def plain(epsilon: float, releases: int) -> dict[str, Any]:
    """Settings that count every row of every message."""
    noise = 2 * CLIP * sqrt(releases) / mu_for(epsilon, DELTA)
    return {"mechanism": "output", "clip": CLIP, "noise": noise, "delta": DELTA}


def useful(options: argparse.Namespace, journal: Journal) -> list[dict[str, Any]]:
    """Accuracy against ε, with plain and with private local updates, each with its own settings."""
    modes = [("none", 0.0), ("clipped only", 0.0), *product(("dp-sgd", "plain"), EPSILONS)]
    cases = {case: {one: _useful(*case, one) for one in GRID} for case in modes}
    best = choose(journal, cases, range(options.seeds), _cost)
    final = {case: cases[case][one] for case, one in best.items()}
    found = results(journal, "test rows", final, range(FRESH, FRESH + options.final_seeds), "test")
    return [
        {"wanted": epsilon, "mode": mode, "setting": words(best[mode, epsilon]), "noise": _noise(final[mode, epsilon])}
        | run
        for mode, epsilon in modes
        for run in found[mode, epsilon]
    ]


def _cost(run: Result) -> float:
    return 1 - run["accuracy"] if run["status"] == "finished" else inf


def words(setting: Setting) -> str:
    model, server, party = setting
    return f"{model}; {server:g}, {party:g}"


def _useful(mode: str, epsilon: float, setting: Setting) -> Job:
    """One epoch of `sync` less a batch, so that training uploads every row once, and two evaluations."""
    model, server, party = setting
    data = DATA["mnist"]
    rows, tested = len(data.y_train), len(data.y_test) - data.validation
    privacy = {
        "none": {},
        "clipped only": {"mechanism": "output", "clip": CLIP, "noise": 1e-6},
        "dp-sgd": private(epsilon or 1.0),
        "plain": plain(epsilon or 1.0, rows + 2 * tested),
    }[mode]
    updates = rows // BATCH - 1
    train = {"updates": updates, "eval_every": updates, "learning_rate": {"server": server, "party": party}}
    config = tables("sync", privacy, 0, **train) | {"model": MODELS[model]}
    return {"on": "validation", "tables": config}


def _noise(job: Job) -> float | None:
    return job["tables"]["privacy"].get("noise")


def measured(job: Job) -> Result:
    """Do a job of `useful`."""
    data = DATA["mnist"]
    return measure(job["tables"], data if job["on"] == "validation" else data.without_validation())


def show(rows: list[dict[str, Any]], keys: tuple[str, ...]) -> None:
    """Print the means over seeds."""
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
    """Draw accuracy against ε."""
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("paper", "useful", "plot"))
    parser.add_argument("--data", default="../shared/data/mnist", help="folder with the MNIST IDX files")
    parser.add_argument("--seeds", type=int, default=2, help="seeds of each setting while tuning")
    parser.add_argument("--final-seeds", type=int, default=3, help="fresh seeds for the table")
    add_options(parser)
    options = parser.parse_args()
    if options.what == "plot":
        plot(json.loads((options.out / "useful.json").read_text()), options.out / "privacy.html")
        return
    fraction = 0.1 if options.what == "useful" else 0
    DATA["mnist"] = split(load("mnist", dir=options.data), parties=PARTIES, validation_fraction=fraction)
    if options.what == "useful":
        rows = study(options, "useful.jsonl", measured, partial(useful, options))
    else:
        options.out.mkdir(parents=True, exist_ok=True)
        rows = paper(DATA["mnist"], options.final_seeds)
    if rows is not None:
        (options.out / f"{options.what}.json").write_text(json.dumps(rows, indent=1))
        show(rows, ("method", "noise") if options.what == "paper" else ("mode", "wanted", "noise", "setting"))


if __name__ == "__main__":
    main()
