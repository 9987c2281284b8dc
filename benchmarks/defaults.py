"""How each method's defaults are found: a grid per method, on validation rows of the development tables alone.

    python benchmarks/defaults.py --data DIR --out FOLDER [--methods vafl,fedvs] [--sets credit,a9a,mfeat,digits]
                                  [--slow 4] [--rows 4000] [--seeds 2] [--seconds 60] [--workers 2] [--resume]

Each setting runs for the same seconds of the clock with four parties, the last ten times slower. Its score on a
table is the mean of the metric over the clock, which is high if the metric rises early and stays high. Its regret there
is its distance from the best setting's score, divided by what the best gains over a model that knows only the labels'
frequencies. The chosen setting has the least mean regret over the tables that the method can do. A setting that
diverges, or ends with a warning, in any run is excluded. Beside the choice: the score of the code's own defaults, and
where the two differ.
"""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from math import inf
from statistics import mean
from typing import Any

from journal import Journal, add_options, lines, study
from markdown import markdown
from tables import DEVELOPMENT, PATTERNS, partition, trivial
from trial import DATA, trial

from colonnade.algorithms import METHODS, find_method
from colonnade.config.schema import apply_overrides
from colonnade.models.metrics import METRICS

Point = dict[str, Any]  # dotted key → value
Grid = dict[str, list[Any]]  # dotted key → values
OWN: Point = {}  # no setting: the defaults of the code

ADAM: Grid = {
    "train.optimiser": ["adam"],
    "train.learning_rate": [0.003, 0.01, 0.03],
    "train.batch_size": [32, 64, 128],
}
SGD: Grid = {"train.optimiser": ["sgd", "momentum"], "train.learning_rate": [0.03, 0.1, 0.3]}
BOTH = [ADAM, SGD]
TABLE: Grid = {"protocol.table": ["warm", "zeros"]}
DECAYS = [{"server": "adam", "party": {"name": "AdamW", "weight_decay": decay}} for decay in (0.01, 0.1, 0.3)]
SWIFT = [ADAM, {"train.optimiser": DECAYS, "train.learning_rate": [0.003, 0.01, 0.03], "train.batch_size": [32, 64]}]
STALE = [ADAM | TABLE, SGD | TABLE]
ROLES: Grid = {
    "train.optimiser": ["adam"],
    "train.learning_rate.server": [0.003, 0.01, 0.03],
    "train.learning_rate.party": [0.0003, 0.001, 0.003, 0.01],
}
ZEROTH = [ROLES]
POLYNOMIAL: Grid = {"model.aggregate": ["mean"], "model.party": ["polynomial:1", "polynomial:2"]}
CODED = [ADAM | POLYNOMIAL]
LINEAR: Grid = {
    "train.learning_rate": [0.01, 0.03, 0.1, 0.3],
    "train.batch_size": [64, 256],
    "data.scale": ["standard", "minmax"],
}
GRIDS: dict[str, list[Grid]] = {  # a method's settings are those of all its grids
    **dict.fromkeys(("centralised", "sync", "flex", "adaptive-flex", "p-bcd", "sync-min", "sync-max"), BOTH),
    **dict.fromkeys(("vafl", "t-sync"), STALE),
    "swift": SWIFT,
    **dict.fromkeys(("cascaded", "zoo", "syn-zoo", "frozen"), ZEROTH),
    **dict.fromkeys(("fedvs", "wait", "ignore", "wait-dp"), CODED),
}


def grids_of(method: str) -> list[Grid]:
    """The linear methods share one grid; a method without a grid here is tried with Adam's rates."""
    if method in GRIDS:
        return GRIDS[method]
    return [LINEAR] if find_method(method).capabilities.sparse else [ADAM]


def points_of(method: str) -> list[Point]:
    """All settings of a method, its own defaults first."""
    grids = grids_of(method)
    return [OWN, *(dict(zip(grid, values, strict=True)) for grid in grids for values in product(*grid.values()))]


def main() -> None:
    options = _options()
    name = "defaults.jsonl"
    if not options.report:
        load(options)
        study(options, name, trial, partial(search, options))
    text = report([job | result for job, result in lines(options.out / name)])
    (options.out / "defaults.md").write_text(text, encoding="utf-8")
    print(text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="", help="the folder of all data")
    parser.add_argument("--sets", type=_words, default=[*DEVELOPMENT])
    parser.add_argument("--methods", type=_words, default=[*METHODS])
    parser.add_argument("--slow", choices=PATTERNS, default="4", help="the pattern of slow parties")
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of the clock for each run")
    parser.add_argument("--wall", type=float, default=120.0, help="give up a run after this many seconds")
    add_options(parser)
    parser.add_argument("--report", action="store_true", help="only report the results in the folder")
    options = parser.parse_args()
    if strange := set(options.sets) - set(DEVELOPMENT):
        parser.error(f"--sets {','.join(strange)}: defaults are found on {', '.join(DEVELOPMENT)} alone")
    return options


def search(options: argparse.Namespace, journal: Journal) -> None:
    """Every method's settings; the results are in the journal."""
    for method in options.methods:
        journal.results(method, jobs(options, method))


def _words(text: str) -> list[str]:
    return text.split(",")


def load(options: argparse.Namespace) -> None:
    """All tables in all scales of the grids and of the methods' own choice."""
    points = [point for method in options.methods for point in points_of(method)]
    scales = {None, *(find_method(name).defaults.scale for name in options.methods)}
    scales |= {point["data.scale"] for point in points if "data.scale" in point}
    for name, scale in product(options.sets, scales):
        DATA[name, scale] = partition(name, options.data, options.rows, scale)


def jobs(options: argparse.Namespace, method: str) -> list[dict[str, Any]]:
    """Every setting on every table, with every seed."""
    train = {"seconds": options.seconds, "eval_every": f"{options.seconds / 100} s", "patience": 0}
    return [
        {
            "method": method, "point": point, "table": table, "rows": options.rows, "pattern": options.slow,
            "seed": seed, "tables": apply_overrides({"protocol": {"name": method}}, point), "train": train,
            "target": None, "hold": 1, "control": False, "wall_s": options.wall,
            "trivial": trivial(DATA[table, None], DEVELOPMENT[table].metric),
        }
        for seed, point, table in product(range(options.seeds), points_of(method), options.sets)
    ]  # fmt: skip


def report(records: Sequence[Mapping[str, Any]]) -> str:
    """One table per method, best setting first, and the choice."""
    parts = []
    for method in dict.fromkeys(one["method"] for one in records):
        parts.append(_report(method, [one for one in records if one["method"] == method]))
    return "\n\n".join(parts) + "\n"


def _report(method: str, records: Sequence[Mapping[str, Any]]) -> str:
    taken = {one["table"] for one in records if one["status"] != "refused"}
    tables = [name for name in DEVELOPMENT if name in taken]
    found: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for one in records:
        found.setdefault(words(one["point"]), {}).setdefault(one["table"], []).append(one)
    best = {table: max((_gain(runs.get(table, ())) for runs in found.values()), default=-inf) for table in tables}
    regrets = {
        point: {table: _regret(_gain(runs.get(table, ())), best[table]) for table in tables}
        for point, runs in found.items()
    }
    order = sorted(regrets, key=lambda point: mean(regrets[point].values()))
    rows = []
    for point in order:
        shown = [
            f"{value:.3f}" if value < inf else _flaw(found[point].get(table, ()))
            for table, value in regrets[point].items()
        ]
        ends = [_end(found[point].get(table, ())) for table in tables]
        rows.append([point, f"{mean(regrets[point].values()):.3f}", *shown, *ends])
    names = ["setting", "mean regret", *tables, *(f"{table}, end" for table in tables)]
    table = markdown(names, rows)
    chosen, own = order[0], words(OWN)
    if mean(regrets[chosen].values()) == inf:
        verdict = "No setting is without a flaw on all tables."
    elif chosen == own:
        verdict = "The code's defaults are the best of these."
    else:
        cost = mean(regrets[own].values()) if own in regrets else inf
        verdict = f"Chosen: {chosen}. The code's defaults have a mean regret of {cost:.3f}."
    return f"## {method}\n\n{table}\n\n{verdict}"


def words(point: Point) -> str:
    """The setting as text."""
    named = (
        f"{key.removeprefix('train.').removeprefix('protocol.').removeprefix('model.')} {value}"
        for key, value in point.items()
    )
    return ", ".join(named) or "(the code's defaults)"


def _gain(runs: Sequence[Mapping[str, Any]]) -> float:
    """The mean over the clock minus the score of the labels' frequencies alone; more is better; −∞ if a run failed."""
    if not runs or any(_failed(one) for one in runs):
        return -inf
    sign = 1 if METRICS[DEVELOPMENT[runs[0]["table"]].metric].higher_is_better else -1
    return mean(sign * (one["mean"] - one["trivial"]) for one in runs)


def _failed(one: Mapping[str, Any]) -> bool:
    return one["status"] != "finished" or one["mean"] is None or bool(one["warnings"])


def _regret(gain: float, best: float) -> float:
    return inf if gain == -inf else (best - gain) / max(abs(best), 1e-9)


def _flaw(runs: Sequence[Mapping[str, Any]]) -> str:
    return next((one["status"] if one["status"] != "finished" else "warned" for one in runs if _failed(one)), "–")


def _end(runs: Sequence[Mapping[str, Any]]) -> str:
    values = [one["value"] for one in runs if one.get("value") is not None]
    return f"{mean(values):.4g}" if values else "–"


if __name__ == "__main__":
    main()
