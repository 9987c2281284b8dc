"""One party ten times slower: how much longer does each method need, and how much of that is inherent?

    python benchmarks/straggler.py --out FOLDER [--seeds 3] [--final-seeds 8] [--workers 2] [--minutes 9] [--resume]

Digits, four parties, fixed speeds (20 ms a step); then the last party needs 200 ms. The last row is the control
(late_block.py): one joint model whose slow block takes only every tenth step, with nothing stale anywhere. Every method
must lose what it loses: those columns simply learn later.

Every cell has its own rate of plain SGD, the one with the least time to 95 % of the validation rows (all rates with one
seed, the best two with all seeds). The table has the time to 95 % of the test rows, mean over fresh seeds, and the
ratio of the two columns. FOLDER gets straggler.jsonl, a line per run, and straggler.md.
"""

import argparse
from functools import partial
from itertools import product
from statistics import mean
from typing import Any

from chosen import DATA, choose, job, judge, results, time_s
from journal import Journal, Result, add_options, study
from markdown import markdown

import colonnade

PARTIES, TARGET, FACTOR, STEP_S, BATCH = 4, 0.95, 10, 0.02, 64
RATES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
KEEP = 2  # rates tried with all seeds
FRESH = 1000  # the first seed of the reported runs
LIMIT_S, SLOW_SYNC_S = 30.0, 160.0
CONTROL = "control: nothing stale, that block stepped every tenth step"
METHODS: dict[str, dict[str, Any]] = {
    "`sync`": {"name": "sync"},
    "`t-sync`, t = 2": {"name": "t-sync", "t": 2},
    "`vafl`": {"name": "vafl"},
    "`vafl`, zero table": {"name": "vafl", "table": "zeros"},
    "`swift`, with SGD": {"name": "swift"},
    CONTROL: {"name": "sync"},
}
Case = tuple[str, int]  # method, how much slower the last party is


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each rate while tuning")
    parser.add_argument("--final-seeds", type=int, default=8, help="fresh seeds for the table")
    add_options(parser)
    options = parser.parse_args()
    DATA["digits"] = colonnade.split(colonnade.load("digits"), parties=PARTIES)
    text = study(options, "straggler.jsonl", judge, partial(compare, options))
    if text is not None:
        (options.out / "straggler.md").write_text(text, encoding="utf-8")
        print(text)


def compare(options: argparse.Namespace, journal: Journal) -> str:
    cases = {case: {rate: _run(case, rate) for rate in RATES} for case in product(METHODS, (1, FACTOR))}
    best = choose(journal, cases, range(options.seeds), time_s, KEEP)
    final = {case: cases[case][rate] for case, rate in best.items()}
    times = results(journal, "times", final, range(FRESH, FRESH + options.final_seeds), "test")
    rows = [_row(label, times[label, 1], times[label, FACTOR], best) for label in METHODS]
    columns = ["", "equal speeds", f"one {FACTOR}× slower", "ratio", "rates"]
    return markdown(columns, rows) + "\n"


def _run(case: Case, rate: float) -> dict[str, Any]:
    label, factor = case
    speeds = [STEP_S] * (PARTIES - 1) + [STEP_S * factor]
    seconds = SLOW_SYNC_S if label == "`sync`" and factor > 1 else LIMIT_S
    limits = {"updates": int(seconds / STEP_S), "eval_every": 5} if label == CONTROL else {"seconds": seconds}
    tables = {
        "model": {"party": "mlp:64", "server": "mlp:64", "embedding": 16},
        "protocol": METHODS[label],
        "clock": {
            "compute": [{"kind": "fixed", "mean_s": speed} for speed in speeds],
            "network": {"latency_s": 0.0001, "bandwidth_mbps": 1000.0},
            "server": {"compute": {"mean_s": 0.0001}},  # so that the straggler's factor applies to the whole step
        },
        "train": {
            "batch_size": BATCH, "optimiser": "sgd", "learning_rate": rate, "patience": 0, "target": TARGET,
            "eval_every": "0.1 s",
        }
        | limits,
    }  # fmt: skip
    late = {"slow": [PARTIES - 1], "every": factor, "step_s": STEP_S} if label == CONTROL else None
    return job("digits", tables, stop=True, late=late)


def _row(label: str, calm: list[Result], hurt: list[Result], best: dict[Case, float]) -> list[str]:
    before, after = ([one["time_s"] for one in runs if one["time_s"] is not None] for runs in (calm, hurt))
    ratio = f"{mean(after) / mean(before):.1f}" if before and after else "–"
    rates = [
        f"{rate:g}{' (edge)' if rate in (RATES[0], RATES[-1]) else ''}"
        for rate in (best[label, 1], best[label, FACTOR])
    ]
    return [label, _seconds(before, len(calm)), _seconds(after, len(hurt)), ratio, ", ".join(rates)]


def _seconds(times: list[float], of: int) -> str:
    missed = f" ({of - len(times)} of {of} missed)" if len(times) < of else ""
    return (f"{mean(times):.2f} s" if times else "–") + missed


if __name__ == "__main__":
    main()
