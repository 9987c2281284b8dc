"""Methods with only their name as a setting, on tables they were not tuned for, against a `sync` tuned for each table.

    python benchmarks/transfer.py --data DIR --out FOLDER [--sets credit,wine] [--methods swift,vafl] [--slow 1,2,3,4]
                                  [--rows 10000] [--seeds 3] [--timed 10] [--workers 2] [--resume] [--minutes 9]
                                  [--report]
                                  [--page docs/what-to-expect.md]
    python benchmarks/transfer.py --data DIR --out FOLDER --sets credit,a9a,mfeat,digits --methods ablation [--slow …]
    python benchmarks/transfer.py --learns --data DIR --out FOLDER [--methods …] [--workers 2]

Four parties; `--slow` names patterns of tables.py: 1 to 4 (that party is ten times slower), two, none, far (equal
speeds, a round trip as long as ten steps). For each table:

1. `centralised`, the best of three rates, stopped early, gives the reachable level: the best one that it holds for
   three evaluations in a row. The target is 0.5 points below it, or one validation row if that is more (of rmse: 0.5 %
   of the labels' deviation above it). A run is there if it reaches the target and stays for two more evaluations.
2. `sync` is tuned: 12 settings, each with and without averaged weights, by the time to the target; the best four again
   with all seeds. Its steps do not depend on the clock, so that one tuning serves all patterns: a setting's updates
   times the time of its step say which setting is the best under which pattern. Its time is then taken with other
   seeds, `--timed` of them, as that of every method: the time of the seeds that chose it would be too good.
3. Every method runs with only its name as a setting until it reaches the target, or twice as long as tuned `sync`
   needed: such a run counts with that time and is marked. Under pattern 4 each runs once more, as long as its own
   defaults say, for the metric at the end; not with --no-ends.
4. The control (late_block.py) is a joint model with nothing stale, whose slow block takes every tenth step. It has
   the settings of the tuned `sync`, or the optimisers and averages of `swift`, whichever is faster.

All curves, targets and choices are of validation rows; the metric at the end is of test rows. Curves have 100 points up
to the time of tuned `sync`, but at most four in one of its steps; then a run must stay at the target for two of these
steps. FOLDER gets results.jsonl (a line per run: --resume continues it, also with other sets, methods or patterns;
--report only reads it), table.md and ratios.html (ratios.png if Chromium is installed). `--learns` is the test "every
method × every table with defaults learns": each runs once, with its own limit, and is held against a model that knows
the labels' frequencies alone.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from itertools import product
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from journal import Journal, add_options, lines, study
from tables import PATTERNS, SOURCES, partition, trivial
from transfer_report import CONTROL, TUNED, draw, fill, learned, oracle_of, report
from trial import DATA, trial
from variants import ABLATION, tables_of

from colonnade.algorithms import METHODS, find_method
from colonnade.config.settle import batch_size_of

ORACLE = "centralised"
SWIFT = find_method("swift").defaults
CENTRAL_RATES, CENTRAL = (0.001, 0.003, 0.01), {"epochs": 40.0, "eval_every": "0.5 epochs", "patience": 10}
POINTS, LIMIT = 100, 2.0  # points of a curve up to the time of tuned sync; limit in multiples of that time
TUNE_EPOCHS, TUNE_UPDATES = 40, 1500  # at least, for a setting of sync
SHORTLIST = 4
END = "4"  # the pattern under which runs go to the end
HOLD, LOOKS = 3, 4  # evaluations, or steps of sync if these are longer; evaluations in a step of sync at most
Job = dict[str, Any]
Record = dict[str, Any]  # a job and its result in one


class Setting(NamedTuple):
    """One setting of `sync`."""

    optimiser: str
    rate: float
    batches: int  # times the usual batch size
    average: bool

    def tables(self, batch: int) -> dict[str, Any]:
        """The setting as config tables."""
        train = {"optimiser": self.optimiser, "learning_rate": self.rate, "batch_size": self.batches * batch}
        return {"protocol": {"name": "sync", "average": self.average}, "train": train}

    def __str__(self) -> str:
        averaged = ", averaged" if self.average else ""
        return f"{self.optimiser} {self.rate:g}, {self.batches}× batch{averaged}"


POINTS_OF_SYNC = [
    *product(("adam",), (0.001, 0.003, 0.01, 0.03), (1, 4)),
    *product(("momentum",), (0.03, 0.1), (1,)),
    *product(("sgd",), (0.1, 0.3), (1,)),
]
GRID = [Setting(*point, average) for point in POINTS_OF_SYNC for average in (False, True)]


def main() -> None:
    options = _options()
    name = "learns.jsonl" if options.learns else "results.jsonl"
    if not options.report:
        load(options)
        study(options, name, trial, partial(learn if options.learns else race, options))
    records = [job | result for job, result in lines(options.out / name)]
    text = learned(records) if options.learns else report(records)
    (options.out / ("learns.md" if options.learns else "table.md")).write_text(text, encoding="utf-8")
    print(text)
    if not options.learns:
        draw(records, options.out / "ratios")
    if options.page is not None:
        fill(options.page, records)
        draw(records, options.page)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="", help="the folder of all data")
    parser.add_argument("--sets", type=_words, default=[*SOURCES])
    parser.add_argument("--methods", type=_methods, default=[name for name in METHODS if name != ORACLE])
    parser.add_argument("--slow", type=_words, default=[*PATTERNS])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=3, help="seeds for the targets, for tuning sync, and for the ends")
    parser.add_argument("--timed", type=int, default=10, help="other seeds, for timing sync and the methods")
    parser.add_argument("--wall", type=float, default=300.0, help="give up a run after this many seconds")
    parser.add_argument("--page", type=Path, help="put the tables between the marks of this page")
    add_options(parser)
    for flag in ("--report", "--learns", "--no-ends"):
        parser.add_argument(flag, action="store_true")
    return parser.parse_args()


def _words(text: str) -> list[str]:
    return text.split(",")


def _methods(text: str) -> list[str]:
    """Names of methods and of variants.py; `ablation` are all that the page of `swift` compares."""
    return [name for word in _words(text) for name in (ABLATION if word == "ablation" else (word,))]


def load(options: argparse.Namespace) -> None:
    """All tables in all scales that the methods want; workers share them."""
    names = {tables_of(name)["protocol"]["name"] for name in options.methods}
    scales = {None, *(find_method(name).defaults.scale for name in names)}
    for name, scale in product(options.sets, scales):
        DATA[name, scale] = partition(name, options.data, options.rows, scale)


# The stages


def race(options: argparse.Namespace, journal: Journal) -> None:
    """Targets, then the tuned `sync`, then every cell; the journal has the results."""
    aims = targets(options, journal)
    tuned = tune(options, journal, aims)
    sets = [table for table in options.sets if table in tuned]
    under = dict.fromkeys((CONTROL, *options.methods), options.slow)
    under[TUNED] = list(dict.fromkeys(map(_first_alike, options.slow)))
    seeds = range(options.seeds, options.seeds + options.timed)
    cells = [
        cell
        for method in (TUNED, CONTROL, *options.methods)
        for pattern, seed, table in product(under[method], seeds, sets)
        for cell in _cells(options, method, table, pattern, seed, aims[table], tuned[table][pattern])
    ]
    journal.results("cells", cells)
    if options.no_ends:
        return
    ends = []
    for method, seed, table in product(options.methods, range(options.seeds), sets):
        ends.append(_job(options, "end", table, END, seed, tables_of(method), {}) | {"method": method})
    journal.results("ends", ends)


def _first_alike(pattern: str) -> str:
    """The first pattern with `sync` steps of the same length: it does not matter which party is slow."""
    return next(name for name, other in PATTERNS.items() if other.step_s(1) == PATTERNS[pattern].step_s(1))


def targets(options: argparse.Namespace, journal: Journal) -> dict[str, float]:
    """The targets by table."""
    jobs = [
        _job(options, "centralised", table, "none", seed, tables, CENTRAL)
        | {"method": ORACLE, "setting": f"adam {rate:g}"}
        for table, rate, seed in product(options.sets, CENTRAL_RATES, range(options.seeds))
        for tables in [_settings(ORACLE, "adam", rate, _batch(table))]
    ]
    found = [job | result for job, result in zip(jobs, journal.results("centralised", jobs), strict=True)]
    return {table: target_of(table, [one for one in found if one["table"] == table]) for table in options.sets}


def target_of(table: str, records: Sequence[Record]) -> float:
    """The level of the best rate less the slack; for accuracy at least one row: of 43 rows one is 2.3 points."""
    best, source, data = oracle_of(table, records).curve, SOURCES[table], DATA[table, None]
    if source.metric == "rmse":
        return best + source.slack * float(data.y_train.std())
    row = 1 / data.validation if source.metric == "accuracy" else 0.0
    return best - max(source.slack, row)


class Tuned(NamedTuple):
    """The best setting under a pattern, and about how long it takes."""

    setting: Setting
    time_s: float


def tune(options: argparse.Namespace, journal: Journal, aims: dict[str, float]) -> dict[str, dict[str, Tuned]]:
    """The tuned settings by table and pattern, without tables that no setting of `sync` can do."""
    first = _updates(options, journal, aims, dict.fromkeys(options.sets, GRID), range(1))
    short = {table: _shortlist(table, first) for table in options.sets}
    rest = _updates(options, journal, aims, short, range(1, options.seeds))
    tuned: dict[str, dict[str, Tuned]] = {}
    for table, settings in short.items():
        batch = _batch(table)
        for pattern in PATTERNS if settings else ():
            times = {}
            for setting in settings:
                updates = [*first[table, setting], *rest.get((table, setting), [])]
                times[setting] = mean(updates) * PATTERNS[pattern].step_s(setting.batches * batch)
            best = min(times, key=lambda setting: times[setting])
            if times[best] < inf:
                tuned.setdefault(table, {})[pattern] = Tuned(best, times[best])
    return tuned


def _shortlist(table: str, updates: dict[tuple[str, Setting], list[float]]) -> list[Setting]:
    """The best few settings under each pattern."""
    batch, chosen = _batch(table), {}
    for pattern in PATTERNS.values():
        step = {setting: pattern.step_s(setting.batches * batch) for setting in GRID}
        times = {setting: updates[table, setting][0] * step[setting] for setting in GRID}
        chosen |= dict.fromkeys(sorted((one for one in GRID if times[one] < inf), key=times.__getitem__)[:SHORTLIST])
    return list(chosen)


def _updates(
    options: argparse.Namespace,
    journal: Journal,
    aims: dict[str, float],
    settings: dict[str, list[Setting]],
    seeds: range,
) -> dict[tuple[str, Setting], list[float]]:
    """How many updates each setting needs to the target, by seed; infinite if it does not get there."""
    keys, jobs = [], []
    for table, chosen in settings.items():
        rows, batch = len(DATA[table, None].y_train), _batch(table)
        for setting, seed in product(chosen, seeds):
            steps = max(1, rows // (setting.batches * batch))  # in an epoch
            train = {"updates": max(TUNE_UPDATES, TUNE_EPOCHS * steps), "eval_every": max(1, steps // 10)}
            keys.append((table, setting))
            jobs.append(
                _job(options, "tune", table, "none", seed, setting.tables(batch), train, aims[table])
                | {"method": TUNED, "setting": str(setting)}
            )
    found: dict[tuple[str, Setting], list[float]] = {}
    for key, result in zip(keys, journal.results("tuning sync", jobs), strict=True):
        found.setdefault(key, []).append(inf if result.get("time_s") is None else result["updates_to_target"])
    return found


def _cells(
    options: argparse.Namespace,
    method: str,
    table: str,
    pattern: str,
    seed: int,
    target: float,
    tuned: Tuned,
) -> list[Job]:
    """The runs of a method in a cell: one, or two for the control."""
    batch, (setting, time_s) = _batch(table), tuned
    limit = LIMIT * time_s
    step_s = PATTERNS[pattern].step_s(setting.batches * batch)
    every_s = max(time_s / POINTS, step_s / LOOKS)
    hold = 1 + round((HOLD - 1) * max(step_s / every_s, 1))
    train = {"seconds": limit, "eval_every": f"{every_s} s", "patience": 0}  # which counts evaluations: here many
    made = [tables_of(method)]
    if method in (TUNED, CONTROL):
        made = [setting.tables(batch)]
    if method == CONTROL:
        made.append({"protocol": {"name": "sync", "average": True}, "train": {"optimiser": SWIFT.optimiser}})
    return [
        _job(options, "cell", table, pattern, seed, tables, train, target)
        | {"method": method, "limit_s": limit, "hold": hold, "control": method == CONTROL, "setting": str(setting)}
        for tables in made
    ]


def _job(
    options: argparse.Namespace,
    stage: str,
    table: str,
    pattern: str,
    seed: int,
    tables: dict[str, Any],
    train: dict[str, Any],
    target: float | None = None,
) -> Job:
    return {
        "stage": stage, "table": table, "rows": options.rows, "pattern": pattern, "seed": seed, "tables": tables,
        "train": train, "target": target, "hold": HOLD, "control": False, "wall_s": options.wall,
    }  # fmt: skip


def _batch(table: str) -> int:
    """The default size of `sync`."""
    return batch_size_of(len(DATA[table, None].y_train), find_method("sync").defaults.batch_size)


def _settings(method: str, optimiser: str, rate: float, batch: int) -> dict[str, Any]:
    train = {"optimiser": optimiser, "learning_rate": rate, "batch_size": batch}
    return {"protocol": {"name": method}, "train": train}


# Does it learn at all?


def learn(options: argparse.Namespace, journal: Journal) -> None:
    """Every method on every table, with its defaults alone and the last party slow."""
    journal.results(
        "learns",
        [
            _job(options, "learns", table, "4", 0, {"protocol": {"name": method}}, {})
            | {"method": method, "trivial": trivial(DATA[table, None], SOURCES[table].metric)}
            for method, table in product(options.methods, options.sets)
        ],
    )


if __name__ == "__main__":
    main()
