"""How the settings of `colonnade demo` are found: a small grid per method, judged on the demo's validation rows.

    python benchmarks/demo.py --out FOLDER [--methods vafl,fedvs] [--seeds 3] [--workers 2] [--minutes 30] [--resume]

Each setting runs under the demo's own clock. Its score is the mean of the validation accuracy over the clock, which is
high if the accuracy rises early and stays high. A setting other than the method's defaults is chosen only if its mean
score over the seeds is better by more than half a point (MARGIN): less is not worth a line in the demo. A setting that
diverges or ends with a warning with any seed is excluded. `--report` prints the table of a finished study.
"""

import argparse
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any

from journal import Journal, OutOfTime, lines

from colonnade.algorithms import find_method
from colonnade.config.schema import from_dict
from colonnade.experiments.compare import contestants
from colonnade.experiments.demo import DEMO, DEMO_METHODS
from colonnade.experiments.ranking import ORACLE
from colonnade.experiments.run import prepare

Point = dict[str, Any]  # dotted key → value
OWN: Point = {}  # the method's defaults
MARGIN = 0.005  # of accuracy
NOTHING_KNOWN = 0.5  # the accuracy of an evaluation without a value: no sum was decoded yet


def rates(optimiser: Any, *values: Any) -> list[Point]:
    """The rates with this optimiser: a rate alone would mean SGD."""
    return [{"train.optimiser": optimiser, "train.learning_rate": value} for value in values]


DECAYED = {"server": "adam", "party": {"name": "AdamW", "weight_decay": 0.1}}
AVERAGED: Point = {"protocol.average": True}
SWIFT = rates(DECAYED, 0.003, 0.03)
ADAM = rates("adam", 0.003, 0.03)
FAST_AVERAGED = [AVERAGED | point for point in rates("adam", 0.03)]
STALE = [*ADAM, {"protocol.table": "zeros"}, AVERAGED, *FAST_AVERAGED]
FLEX = [*rates(DECAYED, 0.003, 0.03), *rates("adam", 0.01)]
CODED = [*ADAM, *rates("adam", 0.1), {"model.party": "polynomial:2"}]
ROLES = rates(
    "adam", *({"server": server, "party": party} for server in (0.01, 0.03) for party in (0.001, 0.003, 0.01))
)
NOISY = [*rates("adam", 0.005, 0.01, 0.02, 0.05), {"model.embedding": 8}, {"model.embedding": 4}]
LINEAR: list[Point] = [{"protocol.l2": 1e-2}, {"protocol.l2": 1e-4}, {"train.batch_size": 32}]
AHEAD: list[Point] = [{"protocol.ahead": 0}]
GRIDS: dict[str, list[Point]] = {
    "swift": SWIFT,
    "vafl": STALE,
    "t-sync": [*STALE, {"protocol.t": 3}],
    "sync": [*ADAM, AVERAGED, *FAST_AVERAGED],
    **dict.fromkeys(("flex", "adaptive-flex"), FLEX),
    **dict.fromkeys(("fedvs", "wait", "ignore"), CODED),
    "wait-dp": NOISY,
    "cascaded": ROLES,
    **dict.fromkeys(("asysqn-sgd", "asysqn-svrg", "asysqn-saga"), LINEAR + AHEAD),
    "synsqn-svrg": LINEAR,
}


def main() -> None:
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "demo.jsonl"
    if not options.report:
        with Journal(path, trial, options.workers, resume=options.resume, minutes=options.minutes) as journal:
            try:
                for method in options.methods:
                    journal.results(method, jobs(method, options.seeds))
            except OutOfTime:
                print("out of time: --resume continues")
    text = report([job | result for job, result in lines(path)])
    (options.out / "demo.md").write_text(text, encoding="utf-8")
    print(text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    federated = [name for name in DEMO_METHODS if name != ORACLE]
    parser.add_argument("--methods", type=lambda text: text.split(","), default=federated)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, help="stop after this many minutes; --resume continues")
    for flag in ("--resume", "--report"):
        parser.add_argument(flag, action="store_true")
    return parser.parse_args()


def jobs(method: str, seeds: int) -> list[dict[str, Any]]:
    """Every setting with every seed."""
    points = [OWN, *GRIDS[method]]
    return [{"method": method, "point": point, "seed": seed} for seed in range(seeds) for point in points]


def trial(job: dict[str, Any]) -> dict[str, Any]:
    """One run of the demo's race with this setting."""
    base = {key: value for key, value in DEMO.items() if key != "methods"}
    tables = base | {"methods": {job["method"]: job["point"] | {"train.seed": job["seed"]}}}
    (one,) = contestants(tables, [job["method"]])
    run = prepare(from_dict(one.tables))
    summary = run.execute()
    return {
        "score": score([(row["clock_s"], row["value"]) for row in run.rows]),
        "end": summary["validation_value"],
        "time_s": summary["time_to_target_s"],
        "flaws": [*summary["warnings"], *([] if summary["status"] == "finished" else [summary["status"]])],
        "wall_s": round(summary["wall_s"], 1),
    }


def score(curve: Sequence[tuple[float, float | None]]) -> float:
    """The mean of the accuracy over the clock."""
    known = [(clock_s, NOTHING_KNOWN if value is None else value) for clock_s, value in curve]
    area = sum((after - before) * value for (before, value), (after, _) in pairwise(known))
    return area / (known[-1][0] - known[0][0])


def report(records: Sequence[Mapping[str, Any]]) -> str:
    """One table per method, the best setting first, and the choice."""
    return "\n\n".join(
        _report(method, [one for one in records if one["method"] == method])
        for method in dict.fromkeys(one["method"] for one in records)
    )


def _report(method: str, records: Sequence[Mapping[str, Any]]) -> str:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for one in records:
        groups.setdefault(words(one["point"]), []).append(one)
    scores = {
        point: -inf if any(one["flaws"] for one in runs) else _mean(runs, "score") for point, runs in groups.items()
    }
    order = sorted(groups, key=lambda point: -scores[point])
    rows = [
        f"| {point} | {scores[point]:.4f} | {_mean(groups[point], 'end'):.4f} | {_time(groups[point])} "
        f"| {'; '.join(sorted({flaw for one in groups[point] for flaw in one['flaws']}))} |"
        for point in order
    ]
    own, best = words(OWN), order[0]
    better = scores[best] - scores.get(own, -inf) > MARGIN
    verdict = f"Chosen: {best}." if better else "The defaults stay."
    head = "| setting | mean accuracy over the clock | at the end | s to target | flaws |\n|---|---|---|---|---|"
    return f"## {method}\n\n{find_method(method).summary}\n\n{head}\n" + "\n".join(rows) + f"\n\n{verdict}"


def _mean(runs: Sequence[Mapping[str, Any]], key: str) -> float:
    return mean(one[key] for one in runs)


def _time(runs: Sequence[Mapping[str, Any]]) -> str:
    times = [one["time_s"] for one in runs if one["time_s"] is not None]
    return f"{mean(times):.2f} ({len(times)} of {len(runs)})" if times else "–"


def words(point: Point) -> str:
    """The setting as text."""
    return ", ".join(f"{key} = {value}" for key, value in point.items()) or "(defaults)"


if __name__ == "__main__":
    main()
