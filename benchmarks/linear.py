"""AsySQN: precision, rounds, utilisation, speed-up, bytes, wall time and memory.

    python benchmarks/linear.py precision --data a9a --dir DATA [--rate 0.2 --batch 256 …]
    python benchmarks/linear.py rounds --dir DATA [--batch 1024]
    python benchmarks/linear.py utilisation
    python benchmarks/linear.py straggler --data a9a --dir DATA [--estimators svrg]
    python benchmarks/linear.py speedup
    python benchmarks/linear.py bytes
    python benchmarks/linear.py wall --data a9a --dir DATA [--rounds 5] [--profile]
    python benchmarks/linear.py memory [--rows 200000 --columns 1000000]

`--data` is a9a, credit (UCI credit card, one-hot), mnist (digits ≥ 5 against the rest) or synthetic (no files needed).
The optimum is scikit-learn's on the joined columns. Times are the simulator's virtual clock unless called wall time.

Rates and other settings are chosen by the objective on the training rows: no choice needs rows that are held out, and
there are no validation rows. Only `straggler` has a target of accuracy. Its target and its curves are of validation
rows, its accuracy at the end is of test rows.
"""

import argparse
import cProfile
import pstats
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import plotly.graph_objects as plotly
from rich.console import Console
from rich.table import Table
from scipy import sparse
from sklearn.linear_model import LogisticRegression

import colonnade
from colonnade.algorithms.asysqn.losses import LOSSES, penalty
from colonnade.data import Partition, load, split
from colonnade.data.task import classification
from colonnade.experiments.run import Run, one_thread
from colonnade.protocol.errors import TrainingDiverged

Q, L2 = 8, 1e-4
COUNTS = (1, 2, 4, 8)  # of parties
STEP_S = 0.2  # of a first-order step on a mean party's batch, with eight parties
LOGISTIC = LOSSES["logistic"]
USUAL = {"memory": 10, "ahead": 1, "batch": 1024, "rate": 0.1}
PRECISE = {"memory": 5, "ahead": 0, "batch": 512, "rate": 0.3}  # settings that reach the targets below
QUICK = {"memory": 5, "ahead": 0, "batch": 1024, "rate": 0.3, "share": True, "extrapolate": True, "snapshot_every": 0.5}
TARGETS = {"a9a": 1e-6, "credit": 1e-4, "mnist": 1e-4}
console = Console(width=140)


# Data and their optimum


@cache
def data_of(name: str, folder: str | None, parties: int = Q, validation: float = 0) -> Partition:
    """A binary task over `parties`; `validation` is the fraction of the training rows to validate on."""
    if name == "synthetic":
        rows = np.random.default_rng(0)
        x = rows.standard_normal((20_000, 128))
        y = (x @ rows.standard_normal(128) + 4 * rows.standard_normal(20_000) > 0).astype(np.int64)
        return split(
            colonnade.from_arrays(x / np.sqrt(128), y), parties=parties, scale="none", validation_fraction=validation
        )
    if name == "credit":
        categorical = ["SEX", "EDUCATION", "MARRIAGE", *(f"PAY_{i}" for i in (0, 2, 3, 4, 5, 6))]
        table = load(
            "UCI_Credit_Card.csv.gz", dir=folder, label="default.payment.next.month", id="ID", categorical=categorical
        )
        return split(table, parties=parties, validation_fraction=validation)
    dataset = load(name, dir=folder)
    if name == "mnist":
        high = (dataset.y >= 5).astype(np.int64)
        dataset = replace(dataset, y=high, task=classification(("below 5", "5 and more")), scale="none")
    return split(dataset, parties=parties, validation_fraction=validation)


def joined(blocks: tuple[Any, ...]) -> np.ndarray:
    """All columns."""
    return np.hstack(blocks).astype(np.float64)


@cache
def optimum(data: Partition) -> tuple[float, float]:
    """The objective and the test accuracy of scikit-learn."""
    x, y = joined(data.train), np.where(data.y_train > 0, 1.0, -1.0)
    model = LogisticRegression(
        C=1 / (len(y) * L2), fit_intercept=False, tol=1e-12, max_iter=1000, solver="newton-cholesky"
    ).fit(x, y)
    w = model.coef_[0]
    value = float(np.mean(LOGISTIC.value(x @ w, y))) + penalty(w, L2)
    return value, float(np.mean((joined(data.test) @ w > 0) == data.y_test))


def suboptimality(run: Run) -> float:
    """(f(w) − f*)/f* of the parties' weights as they are now."""
    data = run.federation.data
    parties: list[Any] = [node.role for node in run.simulator.nodes[1:]]
    theta = sum(party.margins(block) for party, block in zip(parties, data.train, strict=True))
    y = np.where(data.y_train > 0, 1.0, -1.0)
    value = float(np.mean(LOGISTIC.value(theta, y))) + sum(penalty(party.estimator.w, L2) for party in parties)
    best = optimum(data)[0]
    return (value - best) / best


def clock(parties: int, slowest: float) -> dict[str, Any]:
    """All parties at full speed except the last; a quick network. Each of q parties has 1/q of the columns."""
    speeds = [1.0] * (parties - 1) + [slowest]
    compute = [{"kind": "fixed", "mean_s": STEP_S * Q / parties / speed} for speed in speeds]
    return {"compute": compute, "network": {"latency_s": 0.0005, "bandwidth_mbps": 10_000.0}}


def make(data: Partition, protocol: dict[str, Any], slowest: float = 1.0, **train: Any) -> Run:
    """A run with few evaluations."""
    settings = {"batch_size": 1024, "learning_rate": 0.1, "eval_every": "100000 epochs"} | train
    protocol = {"l2": L2, "intercept": False, **protocol}  # the tables of docs/results/asysqn.md have no intercept
    return colonnade.prepare(data, protocol, clock=clock(len(data.parties), slowest), **settings)


def advance_to(run: Run, target: float, every: int, most: int, say: bool = False) -> int | None:
    """Updates until the objective is within `target` of the optimum, checked every `every` updates."""
    looked, said = 0, every
    with one_thread(), suppress(TrainingDiverged):
        while run.simulator.advance(50):
            k = run.simulator.principal.role.k  # type: ignore[attr-defined]
            if k >= looked + every:
                looked = k
                found = suboptimality(run)
                if say and k >= said:
                    console.print(f"  {k} updates, {epochs_of(run):.0f} epochs: {found:.2e}, {run.wall_s:.0f} s")
                    said = int(1.25 * k)
                if found <= target:
                    return k
                if k >= most or not found < 100:
                    return None
    return None


# The points to show


def precision(arguments: argparse.Namespace) -> None:
    """Point 2: updates until the objective is as near to scikit-learn's as wanted, one party at 40 % speed."""
    data = data_of(arguments.data, arguments.dir)
    best, accuracy = optimum(data)
    console.print(f"{arguments.data}: f* = {best:.8f}")
    table = Table("method", "settings", "updates", "epochs", "suboptimality", "accuracy", "scikit-learn's", "wall s")
    for method in arguments.methods.split(","):
        settings = settings_of(arguments, method)
        run = make(data, settings["protocol"] | {"name": method}, 0.4, epochs=1e6, **settings["train"])
        target = arguments.target or TARGETS.get(arguments.data, 1e-4)
        updates = advance_to(run, target, 1000, arguments.most or 400_000, arguments.verbose)
        found = suboptimality(run)
        table.add_row(
            method, _words(settings), f"{updates or 'not'}", f"{epochs_of(run):.0f}", f"{found:.2e}",
            f"{accuracy_of(run):.4f}", f"{accuracy:.4f}", f"{run.wall_s:.0f}",
        )  # fmt: skip
    console.print(table)


def settings_of(
    arguments: argparse.Namespace, method: str, usual: dict[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """The settings that reached the target, unless the command line gives others."""
    usual = usual or (PRECISE if arguments.data in TARGETS else {})
    given = {"memory": arguments.memory, "ahead": arguments.ahead, "batch": arguments.batch, "rate": arguments.rate}
    chosen = USUAL | usual | {key: value for key, value in given.items() if value is not None}
    train = {"batch_size": chosen["batch"], "learning_rate": chosen["rate"]}
    protocol = {key: value for key, value in chosen.items() if key not in ("batch", "rate")}
    if "sqn" not in method:
        del protocol["memory"]
    if method.startswith("syn"):
        del protocol["ahead"]
    return {"protocol": protocol, "train": train}


def _words(settings: dict[str, dict[str, Any]]) -> str:
    return ", ".join(f"{key} {value}" for part in settings.values() for key, value in part.items())


def epochs_of(run: Run) -> float:
    """The run's epochs so far."""
    return float(run.simulator.principal.role.progress.epochs)  # type: ignore[attr-defined]


def accuracy_of(run: Run) -> float:
    """Accuracy on the test rows with the parties' current weights."""
    data = run.federation.data
    parties: list[Any] = [node.role for node in run.simulator.nodes[1:]]
    theta = sum(party.margins(block) for party, block in zip(parties, data.test, strict=True))
    return float(np.mean((np.asarray(theta) > 0) == data.y_test))


def rounds(arguments: argparse.Namespace) -> None:
    """Point 3: updates to a precision against the first-order twin at its best rate."""
    data = data_of(arguments.data, arguments.dir)
    batch = arguments.batch or 1024
    table = Table(
        "estimator", "target", "batch", "first-order: rate → updates", "quasi-Newton: rate → updates", "ratio"
    )
    targets = {"sgd": 5e-3, "svrg": 1e-3, "saga": 1e-3}
    for estimator in arguments.estimators.split(","):
        target, found = targets[estimator], []
        for name, start in ((f"af{estimator}", 1.0), (f"asysqn-{estimator}", 0.2)):
            found.append(_best_rate(data, name, start, target, arguments))
        (_, first, tried), (_, second, tried_too) = found
        ratio = f"{first / second:.2f}" if first and second else "-"
        table.add_row(estimator, f"{target:g}", str(batch), _shown(tried), _shown(tried_too), ratio)
        console.print(f"{estimator}: {_shown(tried)} | {_shown(tried_too)}")
    console.print(table)


def _best_rate(
    data: Partition, name: str, start: float, target: float, arguments: argparse.Namespace
) -> tuple[float, int | None, dict[float, int | None]]:
    """Double and halve the rate until the best one has a worse neighbour on both sides."""
    tried: dict[float, int | None] = {}

    def attempt(rate: float) -> float:
        if rate not in tried:
            protocol = settings_of(arguments, name)["protocol"] | {"name": name, "masking": "off"}  # fewer messages
            run = make(data, protocol, batch_size=arguments.batch or 1024, learning_rate=rate, epochs=1e6)
            most = arguments.most or 40_000
            least = min([k for k in tried.values() if k], default=most)
            tried[rate] = advance_to(run, target, 5 * Q, min(most, int(1.25 * least)))
            console.print(f"  {name} {rate:g}: {tried[rate] or 'not'}")
        return tried[rate] or float("inf")

    rate = start
    attempt(rate)
    for _ in range(10):
        around = [rate / 2, rate, rate * 2]
        best = min(around, key=lambda candidate: (attempt(candidate), candidate != rate))
        if best == rate and tried[rate] is not None:
            break
        rate = best if tried[best] is not None else rate / 2
    return rate, tried[rate], tried


def _shown(tried: dict[float, int | None]) -> str:
    return ", ".join(f"{rate:g} → {k or 'not'}" for rate, k in sorted(tried.items()))


def utilisation(arguments: argparse.Namespace) -> None:
    """Point 4, first half: time for the same number of epochs against the synchronous twin."""
    data = data_of(arguments.data, arguments.dir)
    table = Table("speed s", "synchronous s", "asynchronous s", "ratio", "(7+s)/(8s)", "of it")
    for speed in (0.3, 0.4, 0.5, 0.6):
        times = []
        for name in ("synsqn-sgd", "asysqn-sgd"):
            run = make(data, {"name": name}, speed, epochs=arguments.epochs or 3.0, learning_rate=0.01)
            times.append(run.execute()["clock_s"])
        ideal, ratio = (7 + speed) / (8 * speed), times[0] / times[1]
        row = (speed, times[0], times[1], ratio, ideal, ratio / ideal)
        table.add_row(*(f"{value:.3g}" for value in row))
    console.print(table)


def straggler(arguments: argparse.Namespace) -> None:
    """Defaults, four parties, each in turn ten times slower: time to half a point below scikit-learn's accuracy."""
    data = data_of(arguments.data, arguments.dir, 4, 0.1)
    best = LogisticRegression(max_iter=1000).fit(joined(data.train), data.y_train)  # C = 1: the same λ = 1/n
    x, held = joined(data.test), data.validation
    target = best.score(x[:held], data.y_test[:held]) - 0.005
    tested = best.score(x[held:], data.y_test[held:])
    console.print(f"{arguments.data}: target {target:.4f}, scikit-learn has {tested:.4f} of the test rows")
    table = Table("estimator", "slow party", "synchronous s", "asynchronous s", "ratio", "test accuracies at the end")
    for estimator in arguments.estimators.split(","):
        for slow in range(4):
            runs = [_race(data, f"{kind}-{estimator}", slow, target) for kind in ("synsqn", "asysqn")]
            (first, _), (second, _) = runs
            ratio = f"{second / first:.2f}" if first and second else "-"
            ends = ", ".join(f"{accuracy:.4f}" for _, accuracy in runs)
            row = (estimator, data.parties[slow], _seconds(first), _seconds(second), ratio, ends)
            table.add_row(*row)
            console.print(*row)
    console.print(table)


def _race(data: Partition, name: str, slow: int, target: float) -> tuple[float | None, float]:
    """Virtual time to the target on the validation rows, and the accuracy on the test rows at the end."""
    compute = [{"kind": "fixed", "mean_s": 0.2 if party == slow else 0.02} for party in range(4)]
    times = {"compute": compute, "network": {"latency_s": 0.005, "bandwidth_mbps": 1000.0}}
    summary = colonnade.prepare(data, name, clock=times, target=target, epochs=3.0, eval_every="0.1 epochs").execute()
    return summary["time_to_target_s"], float(summary["accuracy"] or 0.0)


def _seconds(time_s: float | None) -> str:
    return "not" if time_s is None else f"{time_s:.1f}"


def speedup(arguments: argparse.Namespace) -> None:
    """Point 4, second half: virtual time to a precision over the number of parties, as many columns in all."""
    table = Table("method", "parties", "updates of each", "virtual s", "speed-up", "ideal")
    found: dict[str, list[float]] = {}
    for name, rate in (("asysqn-svrg", arguments.rate or 0.1), ("afsvrg", 50.0)):
        times = []
        for parties in COUNTS:
            data = data_of(arguments.data, arguments.dir, parties)
            masking = "on" if parties > 2 else "off"
            run = make(data, {"name": name, "masking": masking}, epochs=1e6, learning_rate=rate)
            updates = advance_to(run, arguments.target or 1e-4, parties, 200_000) or 0
            times.append(run.clock_s)
            row = (f"{updates / parties:.0f}", f"{run.clock_s:.1f}", f"{times[0] / run.clock_s:.2f}")
            table.add_row(name, str(parties), *row, str(parties))
        found[name] = [times[0] / clock for clock in times]
    console.print(table)
    draw(found, arguments.out)


def draw(found: dict[str, list[float]], path: str) -> None:
    """Draw the speed-up against the ideal."""
    figure = plotly.Figure()
    figure.add_scatter(x=COUNTS, y=COUNTS, name="ideal", line={"color": "#999", "dash": "dot"})
    for (name, ratios), colour in zip(found.items(), ("#1b9e77", "#d95f02"), strict=True):
        figure.add_scatter(x=COUNTS, y=ratios, name=name, line_color=colour)
    figure.update_xaxes(title="parties", tickvals=COUNTS, type="log")
    figure.update_yaxes(title="speed-up", tickvals=COUNTS, type="log")
    figure.update_layout(width=620, height=400, template="plotly_white", margin={"t": 20})
    figure.write_html(path, include_plotlyjs=True, config={"displayModeBar": False})


def sizes(arguments: argparse.Namespace) -> None:
    """Point 5: bytes of a step with scalars on the wire, and with d_ℓ-vectors."""
    table = Table("d_ℓ", "bytes of a step, masked", "in the clear", "b vectors of d_ℓ from all parties", "ratio")
    rows, batch = np.random.default_rng(0), arguments.batch or 1024
    for width in (10, 100, 1000, 10_000):
        x = sparse.random(2048, Q * width, density=min(1.0, 20 / width), format="csr", random_state=1)
        data = split(colonnade.from_arrays(x, rows.integers(0, 2, 2048)), parties=Q)
        spent = []
        for masking in ("on", "off"):
            run = make(data, {"name": "asysqn-sgd", "masking": masking}, updates=64, batch_size=batch)
            summary = run.execute()
            spent.append((summary["bytes_up"] + summary["bytes_down"]) / summary["updates"])
        vectors = (Q - 1) * 8 * batch * width  # w_ℓ ∘ x_{i,ℓ} of every row, unmasked
        row = (width, *spent, vectors, vectors / spent[0])
        table.add_row(*(f"{value:,.0f}" if value >= 10 else f"{value:.2f}" for value in row))
    console.print(f"batch {batch}, {Q} parties", table)


def wall(arguments: argparse.Namespace) -> None:
    """Point 6, first half: ratios of processor time, in turns: to 1e-4 against scikit-learn, and of a block step."""
    data, target = data_of(arguments.data, arguments.dir), arguments.target or 1e-4
    settings, solvers = settings_of(arguments, "asysqn-svrg", QUICK), _tolerances(data, target)
    to_target = settings["protocol"] | {"name": "asysqn-svrg"}
    run = make(data, to_target, epochs=1e6, **settings["train"])
    updates = advance_to(run, target, 5 * Q, arguments.most or 40_000)
    console.print(f"asysqn-svrg with {_words(settings)}: {updates} updates to {suboptimality(run):.1e}")
    found: dict[str, list[float]] = {}
    for _ in range(arguments.rounds):
        own = _timed(data, to_target, updates or 1, arguments.profile, **settings["train"])
        for solver, tolerance in solvers.items():
            found.setdefault(f"asysqn-svrg to {target:g} / scikit-learn's {solver}", []).append(
                own / _scikit_learn(solver, data, tolerance)[0]
            )
        for estimator in arguments.estimators.split(","):
            one = _timed(data, {"name": f"asysqn-{estimator}", "share": True}, arguments.updates * Q)
            other = _timed(data, {"name": f"synsqn-{estimator}"}, arguments.updates)
            found.setdefault(f"a block step of asysqn-{estimator} / synsqn-{estimator}", []).append(one / other)
    table = Table("processor time", "median", "least", "most")
    for name, ratios in found.items():
        table.add_row(name, *(f"{value:.2f}" for value in (np.median(ratios), min(ratios), max(ratios))))
    console.print(table)


def _timed(data: Partition, protocol: dict[str, Any], updates: int, profiled: bool = False, **train: Any) -> float:
    """The processor's time of so many updates."""
    run = make(data, protocol, updates=updates, **({"batch_size": PRECISE["batch"]} | train))
    profile = cProfile.Profile()
    began = time.process_time()
    if profiled:
        profile.enable()
    run.execute()
    profile.disable()
    seconds = time.process_time() - began
    if profiled:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    return seconds


def _tolerances(data: Partition, target: float) -> dict[str, float]:
    """For each solver of scikit-learn, the largest power of ten that reaches the target."""
    found = {}
    for solver in ("saga", "lbfgs"):
        tried = (float(tolerance) for tolerance in 10.0 ** -np.arange(1, 9))
        found[solver] = next(one for one in tried if _scikit_learn(solver, data, one)[1] <= target)
    return found


def _scikit_learn(solver: str, data: Partition, tolerance: float) -> tuple[float, float]:
    """The processor's time, and the suboptimality."""
    x, y = joined(data.train), np.where(data.y_train > 0, 1.0, -1.0)
    model = LogisticRegression(C=1 / (len(y) * L2), fit_intercept=False, tol=tolerance, max_iter=10_000, solver=solver)
    began = time.process_time()
    w = model.fit(x, y).coef_[0]
    seconds, best = time.process_time() - began, optimum(data)[0]
    return seconds, (float(np.mean(LOGISTIC.value(x @ w, y))) + penalty(w, L2) - best) / best


def memory(arguments: argparse.Namespace) -> None:
    """Point 6, second half: a table too large for dense memory."""
    rows, columns = arguments.rows, arguments.columns
    draw = np.random.default_rng(0)
    count = int(rows * columns * 1e-4)
    at = draw.integers(0, rows, count), draw.integers(0, columns, count)
    x = sparse.csr_matrix((draw.standard_normal(count).astype(np.float32), at), shape=(rows, columns))
    y = (x @ draw.standard_normal(columns).astype(np.float32) > 0).astype(np.int64)
    console.print(f"{rows} x {columns}, {x.nnz} nonzeros, {_peak():.2f} GB so far")
    dataset = colonnade.from_arrays(x, y)
    del x, at
    data = split(dataset, parties=Q, validation_fraction=0)
    del dataset
    run = make(data, {"name": arguments.methods.split(",")[0]}, updates=arguments.updates, batch_size=4096)
    summary = run.execute()
    console.print(f"{summary['status']}: {summary['updates']} updates in {summary['wall_s']:.0f} s, {_peak():.2f} GB")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "precision": precision, "rounds": rounds, "utilisation": utilisation, "straggler": straggler,
    "speedup": speedup, "bytes": sizes, "wall": wall, "memory": memory,
}  # fmt: skip


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--data", default="synthetic")
    parser.add_argument("--dir")
    parser.add_argument("--methods", default="asysqn-svrg,asysqn-saga")
    parser.add_argument("--estimators", default="sgd,svrg,saga")
    parser.add_argument("--epochs", type=float, default=None)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--memory", type=int)
    parser.add_argument("--ahead", type=int)
    parser.add_argument("--target", type=float)
    parser.add_argument("--most", type=int, help="give up after this many updates")
    parser.add_argument("--updates", type=int, default=200, help="of `memory`; of `wall`: rounds of a synchronous twin")
    parser.add_argument("--rounds", type=int, default=5, help="how often `wall` measures each ratio")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=1_000_000)
    parser.add_argument("--out", default="linear-speedup.html", help="the picture of `speedup`")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    COMMANDS[arguments.command](arguments)


if __name__ == "__main__":
    main()
