"""Which aggregate of the embeddings suffers from stragglers, and how much? FedVS (fedvs.txt) asks so in Fig. 1.

    python benchmarks/aggregation.py --data DIR [--out docs/aggregation.png] [--seconds 30] [--seeds 1]

Fashion-MNIST, ten parties with a tenth of the pixels each, `vafl`; six of them (60 %) compute ten times slower.
Printed: accuracy after a fixed time on the virtual clock, without and with stragglers, for concat, mean, sum and
max. The scale of a party's gradient depends on the aggregate, so each has its own best rate out of RATES, found
upwards by the test accuracy without stragglers in the first seed; the table says where that is the grid's edge.
FedVS has 16 parties, adds an exponential delay to 60 % of them, and compares waiting and ignoring too; `sum` is ours.
"""

import argparse
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import plotly.graph_objects as go
import torch
from rich.console import Console
from rich.table import Table

import colonnade
from colonnade.data import Partition
from colonnade.models import AGGREGATES
from colonnade.report.figures import PALETTE

PARTIES, SLOW, FACTOR, STEP_S = 10, 6, 10, 0.02
RATES = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032)
Rows = list[dict[str, Any]]


def train(data: Partition, aggregate: str, slow: int, rate: float, seconds: float, seed: int) -> Rows:
    """The evaluations of one run in which the last `slow` parties are slow."""
    speeds = [STEP_S] * (PARTIES - slow) + [STEP_S * FACTOR] * slow
    result = colonnade.train(
        data, {"name": "vafl", "table": "zeros"}, "dense", "mlp:64", embedding=32, aggregate=aggregate,
        clock={"compute": [{"kind": "exponential", "mean_s": speed} for speed in speeds]},
        batch_size=128, optimiser="adam", learning_rate=rate, seed=seed,
        seconds=seconds, eval_every=f"{seconds / 20} s",
    )  # fmt: skip
    return result.metrics.to_dicts()


def tune(data: Partition, aggregate: str, seconds: float) -> tuple[float, Rows]:
    """The first rate of the grid after which a higher one is worse, and its rows."""
    best = RATES[0], train(data, aggregate, 0, RATES[0], seconds, 0)
    for rate in RATES[1:]:
        rows = train(data, aggregate, 0, rate, seconds, 0)
        if rows[-1]["accuracy"] < best[1][-1]["accuracy"]:
            break
        best = rate, rows
    return best


def study(data: Partition, aggregate: str, seconds: float, seeds: int) -> dict[str, Any]:
    """An aggregate at its best rate: the rows of every seed without (calm) and with stragglers (hurt)."""
    rate, first = tune(data, aggregate, seconds)
    calm = [first, *(train(data, aggregate, 0, rate, seconds, seed) for seed in range(1, seeds))]
    hurt = [train(data, aggregate, SLOW, rate, seconds, seed) for seed in range(seeds)]
    return {"rate": rate, "edge": rate in (RATES[0], RATES[-1]), "calm": calm, "hurt": hurt}


def figure(found: Mapping[str, Mapping[str, Any]]) -> go.Figure:
    """A curve per aggregate with stragglers, a dotted one without."""
    picture = go.Figure()
    for colour, (aggregate, result) in zip(PALETTE, found.items(), strict=False):
        for kind, dash in (("hurt", "solid"), ("calm", "dot")):
            line = {"color": colour, "width": 2, "dash": dash}
            clock, accuracy = (_mean_over_seeds(result[kind], key) for key in ("clock_s", "accuracy"))
            shown = kind == "hurt"
            picture.add_scatter(x=clock, y=accuracy, name=aggregate, showlegend=shown, mode="lines", line=line)
    picture.update_layout(
        title=f"Fashion-MNIST, vafl: {SLOW} of {PARTIES} parties {FACTOR}× slower (dotted: none is)",
        xaxis_title="clock (s)", yaxis_title="accuracy", template="plotly_white", yaxis_range=[0.5, 0.9],
        height=580, margin={"l": 60, "r": 20, "t": 60, "b": 50},
    )  # fmt: skip
    return picture


def _mean_over_seeds(runs: Sequence[Rows], key: str) -> list[float]:
    return [mean(values) for values in zip(*([row[key] for row in rows] for rows in runs), strict=False)]


def save(picture: go.Figure, out: Path) -> None:
    """HTML, or a PNG by way of a headless Chromium."""
    if out.suffix != ".png":
        picture.write_html(out)
        return
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("a PNG needs Chromium; give --out a name that ends in .html")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        picture.write_html(page, config={"displayModeBar": False})
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"]
        flags += [f"--user-data-dir={folder}/profile", "--window-size=1000,600", "--virtual-time-budget=5000"]
        command = [browser, *flags, f"--screenshot={out.resolve()}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", required=True, help="folder with the Fashion-MNIST IDX files")
    arguments.add_argument("--out", type=Path, default=Path("aggregation.html"), help="a .png or .html")
    arguments.add_argument("--seconds", type=float, default=30.0, help="of the virtual clock")
    arguments.add_argument("--seeds", type=int, default=1)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    data = colonnade.split(colonnade.load("fashion-mnist", dir=options.data), parties=PARTIES)
    columns = ("aggregate", "no straggler", f"{SLOW} of {PARTIES} {FACTOR}× slower", "lost (points)", "rate (adam)")
    table = Table(*columns, title=f"Fashion-MNIST, vafl, accuracy after {options.seconds:g} s")
    console, found = Console(width=110), {}
    for aggregate in AGGREGATES:
        result = found[aggregate] = study(data, aggregate, options.seconds, options.seeds)
        calm, hurt = (mean(rows[-1]["accuracy"] for rows in result[kind]) for kind in ("calm", "hurt"))
        edge = " (grid's edge)" if result["edge"] else ""
        cells = (f"{calm:.4f}", f"{hurt:.4f}", f"{100 * (calm - hurt):.2f}", f"{result['rate']:g}{edge}")
        table.add_row(aggregate, *cells)
        console.print(aggregate, *cells)
    console.print(table)
    save(figure(found), options.out)


if __name__ == "__main__":
    main()
