"""MNIST, seven linear parties, one of them slow: time to 88 % for every method at its own best rate.

    python benchmarks/race.py --data DIR --out FOLDER [--cases 7,4,poisson] [--methods "sync;vafl"] [--seeds 5]
                              [--final-seeds 24] [--end-seeds 5] [--workers 2] [--minutes 9] [--resume]

Softmax on the sum of the parties' outputs, batch 600. In cases 1 to 7 that party computes a step in Exp(2 s), the
others in Exp(0.2 s); party 7 holds the lowest rows of the image, 4 the middle ones. In case poisson, party m needs
Poisson(2m)/2M s, as in VAFL. A tenth of the training rows is held out to validate on.

1. Every method is tuned by itself, over optimisers and rates, by its time to 88 % of the validation rows: all settings
   with one seed, the best six with all seeds.
2. The chosen setting runs with fresh seeds, and the table has its mean time to 88 % of the test rows.
3. It runs again for 600 s with a decaying rate: the table has the mean accuracy on the test rows at the end.

`centralised` has the rate with the best accuracy on the validation rows after 20 epochs. FOLDER gets race.jsonl, a
line per run, and race.md. --resume continues it, or only rebuilds the tables if nothing is missing.
"""

import argparse
from functools import partial
from itertools import product
from statistics import mean, stdev
from typing import Any

from chosen import DATA, choose, error, job, judge, results, time_s
from journal import Journal, Result, add_options, study
from markdown import markdown

from colonnade.data import load, split

PARTIES, TARGET, BATCH = 7, 0.88, 600
RATES = {
    "sgd": (0.5, 1.0, 2.0, 4.0, 8.0),
    "momentum": (0.05, 0.1, 0.2, 0.4, 0.8, 1.6),
    "adam": (0.00625, 0.0125, 0.025, 0.05, 0.1, 0.2),
}
METHODS: dict[str, dict[str, Any]] = {
    "sync": {"name": "sync"},
    "vafl": {"name": "vafl", "table": "zeros"},
    "t-sync": {"name": "t-sync", "t": 3, "table": "zeros"},
    "vafl, extra rows": {"name": "vafl", "table": "zeros", "extra_rows": 0.25},
}
KEEP = 6  # settings tuned with all seeds
FRESH = 1000  # the first seed of the reported runs
END_S = 600.0
CENTRAL_RATES = (0.25, 0.5, 1.0, 2.0, 4.0)
Setting = tuple[str, float]  # optimiser, rate
GRID: list[Setting] = [(optimiser, rate) for optimiser, rates in RATES.items() for rate in rates]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with the MNIST IDX files")
    parser.add_argument("--cases", default="7,4,poisson", help="which party is slow, or poisson")
    parser.add_argument("--methods", default=";".join(METHODS), help="separated by semicolons")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of each setting while tuning")
    parser.add_argument("--final-seeds", type=int, default=24, help="fresh seeds for the time to the target")
    parser.add_argument("--end-seeds", type=int, default=5, help="fresh seeds for the accuracy at the end")
    add_options(parser)
    options = parser.parse_args()
    DATA["mnist"] = split(load("mnist", dir=options.data), parties=PARTIES)
    text = study(options, "race.jsonl", judge, partial(race, options))
    if text is not None:
        (options.out / "race.md").write_text(text, encoding="utf-8")
        print(text)


def race(options: argparse.Namespace, journal: Journal) -> str:
    """Tune, time and end every method in every case; return the tables."""
    names, methods = options.cases.split(","), options.methods.split(";")
    cases = {
        (name, label): {one: _run(name, label, *one, seconds=_limit_s(label)) for one in GRID}
        for name, label in product(names, methods)
    }
    best = choose(journal, cases, range(options.seeds), time_s, KEEP)
    timed = {case: _run(*case, *one, seconds=2 * _limit_s(case[1])) for case, one in best.items()}
    times = results(journal, "times", timed, range(FRESH, FRESH + options.final_seeds), "test")
    ended = {case: _end(*case, *one) for case, one in best.items()}
    ends = results(journal, "ends", ended, range(FRESH, FRESH + options.end_seeds), "test")
    parts = [_table(name, methods, best, times, ends) for name in names]
    return "\n\n".join([*parts, _central(options, journal)]) + "\n"


def _limit_s(label: str) -> float:
    return 80.0 if label == "sync" else 40.0


def _clock(case: str) -> list[dict[str, Any]]:
    """Each party's seconds per step."""
    numbers = range(1, PARTIES + 1)
    if case == "poisson":
        return [{"kind": "poisson", "mean_s": m / PARTIES, "unit_s": 1 / (2 * PARTIES)} for m in numbers]
    return [{"kind": "exponential", "mean_s": 2.0 if m == int(case) else 0.2} for m in numbers]


def _run(case: str, label: str, optimiser: str, rate: float, seconds: float) -> dict[str, Any]:
    train = {"seconds": seconds, "eval_every": "0.5 s", "target": TARGET}
    return job("mnist", _tables(METHODS[label], _clock(case), optimiser, rate, train), stop=True)


def _end(case: str, label: str, optimiser: str, rate: float) -> dict[str, Any]:
    decay = {"step_rule": "inverse", "step_offset": 300.0 if label == "sync" else 2000.0}
    train = {"seconds": END_S, "eval_every": f"{END_S} s", **decay}
    return job("mnist", _tables(METHODS[label], _clock(case), optimiser, rate, train))


def _tables(
    protocol: dict[str, Any], clock: list[dict[str, Any]], optimiser: str, rate: float, train: dict[str, Any]
) -> dict[str, Any]:
    return {
        "model": {"party": "linear", "embedding": 10, "server": "none", "aggregate": "sum"},
        "protocol": protocol,
        "clock": {"compute": clock},
        "train": {"batch_size": BATCH, "optimiser": optimiser, "learning_rate": rate, "patience": 0} | train,
    }


def _central(options: argparse.Namespace, journal: Journal) -> str:
    train = {"epochs": 20.0, "eval_every": "20 epochs"}
    jobs = {
        rate: job("mnist", _tables({"name": "centralised"}, _clock("7"), "sgd", rate, train)) for rate in CENTRAL_RATES
    }
    rate = choose(journal, {"centralised": jobs}, range(options.seeds), error)["centralised"]
    ends = results(journal, "centralised", {"it": jobs[rate]}, range(FRESH, FRESH + options.end_seeds), "test")["it"]
    edge = ", at the edge" if rate in (CENTRAL_RATES[0], CENTRAL_RATES[-1]) else ""
    return f"`centralised`, 20 epochs: {_accuracy(ends)} (sgd {rate:g}{edge})"


def _table(
    name: str,
    methods: list[str],
    best: dict[tuple[str, str], Setting],
    times: dict[tuple[str, str], list[Result]],
    ends: dict[tuple[str, str], list[Result]],
) -> str:
    rows, reference = [], None
    for label in methods:
        optimiser, rate = best[name, label]
        there = [one["time_s"] for one in times[name, label] if one["time_s"] is not None]
        mean_s = mean(there) if there else None
        reference = mean_s if label == "sync" else reference
        edge = ", at the edge" if rate in (RATES[optimiser][0], RATES[optimiser][-1]) else ""
        ratio = f"{mean_s / reference:.2f}" if mean_s and reference else "–"
        shown = _time(there, len(times[name, label]))
        rows.append([f"`{label}`", shown, ratio, f"{optimiser} {rate:g}{edge}", _accuracy(ends[name, label])])
    columns = ["method", f"time to {TARGET:.0%}", "of `sync`", "setting", f"accuracy after {END_S:g} s"]
    return f"### Case {name}\n\n{markdown(columns, rows)}"


def _time(times: list[float], of: int) -> str:
    """The mean and its standard error, of the runs that reached the target."""
    if not times:
        return f"none of {of}"
    error = f" ± {stdev(times) / len(times) ** 0.5:.1f}" if len(times) > 1 else ""
    missed = f" ({of - len(times)} of {of} missed)" if len(times) < of else ""
    return f"{mean(times):.1f}{error} s{missed}"


def _accuracy(runs: list[Result]) -> str:
    values = [100 * one["value"] for one in runs]
    return f"{mean(values):.2f} ({min(values):.2f}–{max(values):.2f}) %"


if __name__ == "__main__":
    main()
