"""Which aggregate of the embeddings suffers from stragglers, and how much? FedVS asks this in Fig. 1.

    python benchmarks/aggregation.py --data DIR --out FOLDER [--picture docs/aggregation.png] [--seconds 30] [--seeds 2]
                                     [--final-seeds 5] [--workers 2] [--minutes 9] [--resume]

Fashion-MNIST, ten parties with a tenth of the pixels each, `vafl`; six of them (60 %) compute ten times slower.
Printed: accuracy on the test rows after a fixed time on the virtual clock, without and with stragglers, for concat,
mean, sum and max, over fresh seeds. The scale of a party's gradient depends on the aggregate, so each has its own rate
of Adam, one without and one with stragglers: the one with the best accuracy on the validation rows at that time (all of
RATES with one seed, the best two with all seeds). The table marks a best rate at the grid's edge. FOLDER gets
aggregation.jsonl, a line per run, and aggregation.md.

FedVS has 16 parties, adds an exponential delay to 60 % of them, and compares waiting and ignoring too; `sum` is ours.
"""

import argparse
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import plotly.graph_objects as go
from chosen import DATA, choose, error, job, judge, results
from journal import Journal, Result, add_options, study
from markdown import markdown

import colonnade
from colonnade.models import AGGREGATES
from colonnade.report.figures import PALETTE

PARTIES, SLOW, FACTOR, STEP_S = 10, 6, 10, 0.02
RATES = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032)
KEEP = 2  # rates tried with all seeds
FRESH = 1000  # the first seed of the reported runs
POINTS = 20  # of a curve
Case = tuple[str, int]  # aggregate, how many parties are slow


def compare(options: argparse.Namespace, journal: Journal) -> dict[Case, tuple[float, list[Result]]]:
    """The chosen rate of every case, and its runs on the test rows."""
    cases = {
        case: {rate: _run(*case, rate, options.seconds) for rate in RATES} for case in product(AGGREGATES, (0, SLOW))
    }
    best = choose(journal, cases, range(options.seeds), error, KEEP)
    final = {case: cases[case][rate] for case, rate in best.items()}
    found = results(journal, "test rows", final, range(FRESH, FRESH + options.final_seeds), "test")
    return {case: (best[case], found[case]) for case in cases}


def _run(aggregate: str, slow: int, rate: float, seconds: float) -> dict[str, Any]:
    """The last `slow` parties are slow."""
    speeds = [STEP_S] * (PARTIES - slow) + [STEP_S * FACTOR] * slow
    tables = {
        "model": {"party": "dense", "server": "mlp:64", "embedding": 32, "aggregate": aggregate},
        "protocol": {"name": "vafl", "table": "zeros"},
        "clock": {"compute": [{"kind": "exponential", "mean_s": speed} for speed in speeds]},
        "train": {
            "batch_size": 128, "optimiser": "adam", "learning_rate": rate, "patience": 0,
            "seconds": seconds, "eval_every": f"{seconds / POINTS} s",
        },
    }  # fmt: skip
    return job("fashion-mnist", tables)


def table(found: Mapping[Case, tuple[float, list[Result]]]) -> str:
    """A row for each aggregate."""
    rows = []
    for aggregate in AGGREGATES:
        (calm_rate, calm), (hurt_rate, hurt) = found[aggregate, 0], found[aggregate, SLOW]
        ends = [[100 * (one["value"] or 0.0) for one in runs] for runs in (calm, hurt)]
        shown = [f"{mean(values):.1f} ({min(values):.1f}–{max(values):.1f}) %" for values in ends]
        rates = [f"{rate:g}{' (edge)' if rate in (RATES[0], RATES[-1]) else ''}" for rate in (calm_rate, hurt_rate)]
        rows.append([aggregate, *shown, f"{mean(ends[0]) - mean(ends[1]):.1f}", ", ".join(rates)])
    columns = ["aggregate", "no straggler", f"{SLOW} of {PARTIES} {FACTOR}× slower", "lost (points)", "rates"]
    return markdown(columns, rows) + "\n"


def figure(found: Mapping[Case, tuple[float, list[Result]]]) -> go.Figure:
    """One curve per aggregate with stragglers, one dotted curve without."""
    picture = go.Figure()
    for colour, aggregate in zip(PALETTE, AGGREGATES, strict=False):
        for slow, dash in ((SLOW, "solid"), (0, "dot")):
            line = {"color": colour, "width": 2, "dash": dash}
            clock, accuracy = _mean_over_seeds([one["curve"] for one in found[aggregate, slow][1]])
            picture.add_scatter(x=clock, y=accuracy, name=aggregate, showlegend=slow > 0, mode="lines", line=line)
    picture.update_layout(
        title=f"Fashion-MNIST, vafl: {SLOW} of {PARTIES} parties {FACTOR}× slower (dotted: none is)",
        xaxis_title="clock (s)", yaxis_title="accuracy", template="plotly_white", yaxis_range=[0.5, 0.9],
        height=580, margin={"l": 60, "r": 20, "t": 60, "b": 50},
    )  # fmt: skip
    return picture


def _mean_over_seeds(curves: Sequence[Sequence[tuple[float, float]]]) -> list[list[float]]:
    """The clock and the value, point by point."""
    points = list(zip(*curves, strict=False))
    return [[mean(one[place] for one in point) for point in points] for place in (0, 1)]


def save(picture: go.Figure, out: Path) -> None:
    """HTML, or a PNG made by a headless Chromium."""
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with the Fashion-MNIST IDX files")
    parser.add_argument("--picture", type=Path, help="a .png or .html")
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds of the virtual clock")
    parser.add_argument("--seeds", type=int, default=2, help="seeds of each rate while tuning")
    parser.add_argument("--final-seeds", type=int, default=5, help="fresh seeds for the table")
    add_options(parser)
    options = parser.parse_args()
    DATA["fashion-mnist"] = colonnade.split(colonnade.load("fashion-mnist", dir=options.data), parties=PARTIES)
    found = study(options, "aggregation.jsonl", judge, partial(compare, options))
    if found is None:
        return
    text = table(found)
    (options.out / "aggregation.md").write_text(text, encoding="utf-8")
    print(text)
    if options.picture is not None:
        save(figure(found), options.picture)


if __name__ == "__main__":
    main()
