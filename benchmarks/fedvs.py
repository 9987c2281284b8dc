"""FedVS: what a secure round costs beside a plaintext one, and the paper's experiment under its own delays.

    python benchmarks/fedvs.py round [--rounds 30]
    python benchmarks/fedvs.py slow --data DIR [--parties 4,6,14] [--seeds 3] [--epochs 10]
    python benchmarks/fedvs.py experiment --data DIR [--sets mnist,credit] [--seeds 3] [--out fedvs.png]
    python benchmarks/fedvs.py sweep --data DIR [--seeds 1]
    python benchmarks/fedvs.py tune --data DIR [--sets …] [--methods …]

**round**: N = 14, K = 2, T = 1, 784 columns, h = 64, batch 256, one thread, all roles one after the other. First the
arithmetic of a round: R + 1 = 6 parties answer, and the floor is 6/K × 2 limbs of the plaintext forward product in
float64. A checked round (`spare = 2`) looks for wrong answers among R + 2; a round with a liar locates one. The paper's
round is `stale = "refuse"`. Then whole rounds of the roles in the simulator, with all messages. CPU time; ratios of
five turns. A turn is the lower quartile of alternating rounds, or the mean of some rounds of the roles.

**slow**: one party is ten times slower, all work is charged. `fedvs` and `wait` with the defaults of both on 4,000 rows
of the credit card data: the time of a round, the time of as many rounds with the sharing of data at the start, and the
time until the test loss is within 1 % of the best that `wait` reaches in as many rounds.

**experiment**: half of the parties delay an embedding by Exp(0.1 s), the others by Exp(2 + 4i/N s); 300 Mbit/s links;
sharing a model is delayed by Exp(log²N/|B| of that). `fedvs`, the paper's `fedvs` (`stale = "refuse"`), `wait`,
`ignore`, `vafl` and `wait-dp` on the same data, each at the rate that `tune` found best for it. Curves are of
validation rows; the test rows are judged once, at the end. MNIST: 10,000 rows to train on, 2,000 to validate on and
2,000 to test on; UCI credit card: 21,600, 2,400 and 6,000. `--sets credit-reversed` has the columns in reverse order:
the stragglers then hold those that tell the most.

**sweep**: `fedvs` with several K and T on MNIST (the paper's Fig. 3 and 4), K·|B| = 512: under the delays, and where
the time goes into computing, 50 ms for a local step.

**tune**: the metric of the validation rows for rates × ½ … × 2 of those of `SETS` (and on, while the best is at an
edge), in shorter runs. `factors` of `SETS` holds what it found.
"""

import argparse
import json
import os
import time
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from statistics import mean, median, pstdev
from typing import Any

import numpy as np
import polars
import torch
from aggregation import save
from field import measure
from plotly.graph_objects import Figure
from plotly.subplots import make_subplots
from threadpoolctl import threadpool_limits

import colonnade
from colonnade.algorithms.fedvs.blinders import rows_to_blind
from colonnade.algorithms.fedvs.coding import (
    LIMBS,
    average,
    coded_data,
    coded_sum,
    share_data,
    share_model,
)
from colonnade.algorithms.fedvs.config import FedvsOptions
from colonnade.data import Partition
from colonnade.models.metrics import measure as judge
from colonnade.models.polynomial import Polynomial
from colonnade.privacy.field import add, total

PARTIES, COLUMNS, WIDTH, BATCH, ROWS = 14, 784, 64, 256, 1024
OPTIONS = FedvsOptions(K=2, T=1)
SEEDS = [bytes([n]) * 32 for n in range(4)]
TURNS = 5
PLAIN, SECURE = "plaintext round", "secure round, all roles"
Shares = list[tuple[np.ndarray, np.ndarray, np.ndarray]]  # of each party: models, blinding, the places it blinds


@dataclass
class Stage:
    """Networks, data and shares of all parties."""

    def __post_init__(self) -> None:
        draw = np.random.default_rng(0)
        self.code = OPTIONS.code(PARTIES)
        self.x = [draw.random((ROWS, COLUMNS // PARTIES), np.float32) for _ in range(PARTIES)]
        self.nets = [Polynomial(COLUMNS // PARTIES, WIDTH, 1) for _ in range(PARTIES)]
        self.top = torch.nn.Linear(WIDTH, 10)
        self.y = torch.from_numpy(draw.integers(0, 10, BATCH))
        shares = [share_data(coded_data(x, 1, OPTIONS, "x"), self.code, SEEDS[0]) for x in self.x]
        self.held = [np.concatenate([own[n] for own in shares], axis=1) for n in range(PARTIES)]
        self.places = draw.permutation(ROWS // OPTIONS.K)[: BATCH // OPTIONS.K]
        self.rows = np.add.outer(np.arange(OPTIONS.K) * (ROWS // OPTIONS.K), self.places).ravel()

    def step(self, h: torch.Tensor) -> torch.Tensor:
        h = h.detach().requires_grad_()
        loss = torch.nn.functional.cross_entropy(self.top(h), self.y)
        return torch.autograd.grad(loss, [h, *self.top.parameters()])[0]

    def learn(self, gradient: torch.Tensor) -> None:
        """Every party's own gradient."""
        for net, x in zip(self.nets, self.x, strict=True):
            torch.autograd.grad(net(torch.from_numpy(x[self.rows])), list(net.parameters()), gradient / PARTIES)

    def plain(self) -> None:
        """A plaintext round."""
        with torch.no_grad():
            h = sum(net(torch.from_numpy(x[self.rows])) for net, x in zip(self.nets, self.x, strict=True)) / PARTIES
        self.learn(self.step(h))

    def share(self, paper: bool = False) -> Shares:
        """All parties share their models, and blind: T + 1 of them each place; in the paper's round all of them."""
        found, everyone, places = [], range(PARTIES), len(self.places)
        for n, net in enumerate(self.nets):
            rows = np.arange(places) if paper else rows_to_blind(everyone, n, places, OPTIONS.T)
            weights = net.weight.detach().numpy()
            found.append((*share_model(weights, len(rows), self.code, OPTIONS.l_w, *SEEDS[1:]), rows))
        return found

    def evaluate(self, shares: Shares, n: int) -> np.ndarray:
        """The answer of one party."""
        w, x = np.concatenate([models[n] for models, _, _ in shares]), self.held[n][self.places]
        blinding = np.zeros((len(self.places), WIDTH), np.uint32)
        for _, own, rows in shares:
            blinding[rows] = add(blinding[rows], own[n])
        return coded_sum(x, w, blinding)

    def evaluate_paper(self, shares: Shares, n: int) -> np.ndarray:
        """The answer of one party, if all shares are new."""
        w, x = np.concatenate([models[n] for models, _, _ in shares]), self.held[n][self.places]
        return coded_sum(x, w, total([own[n] for _, own, _ in shares]))

    def answers(self, shares: Shares, spare: int = 0) -> list[np.ndarray]:
        """The answers of the parties that are asked first; a checked round asks `spare` more."""
        return [self.evaluate(shares, n) for n in range(OPTIONS.asked(PARTIES) + spare)]

    def decode(self, answers: list[np.ndarray], spare: int = 0) -> torch.Tensor:
        """The server's average, of R answers; with `spare` more of them, it is checked."""
        count = self.code.needed + spare
        taken, who = answers[:count], list(range(count))
        if spare:
            wrong = self.code.wrong(np.stack(taken), who, os.urandom(32)) or []
            taken, who = [taken[n] for n in who if n not in wrong], [n for n in who if n not in wrong]
        summed = self.code.decode(taken, who)
        return torch.from_numpy(average(summed.reshape(BATCH, WIDTH), PARTIES, OPTIONS.l_x + OPTIONS.l_w))

    def secure(self, spare: int = 0) -> None:
        """A secure round."""
        self.learn(self.step(self.decode(self.answers(self.share(), spare), spare)))

    def secure_paper(self) -> None:
        """A round in which all parties share, blind all places and answer."""
        shares = self.share(paper=True)
        self.learn(self.step(self.decode([self.evaluate_paper(shares, n) for n in range(PARTIES)])))


def time_a_round(rounds: int) -> None:
    stage = Stage()
    shares = stage.share()
    answers = stage.answers(shares, 2)
    left, right = np.random.default_rng(0).random((BATCH, COLUMNS)), np.random.default_rng(1).random((COLUMNS, WIDTH))
    tasks = {
        PLAIN: stage.plain,
        SECURE: stage.secure,
        "secure round, checked": lambda: stage.secure(2),
        "secure round of the paper": stage.secure_paper,
        "  sharing models, all parties": stage.share,
        "  evaluating, all evaluators": lambda: stage.answers(shares),
        "  decoding": lambda: stage.decode(answers),
        "  decoding, checked": lambda: stage.decode(answers, 2),
        "  decoding, one answer wrong": lambda: stage.decode([*answers[:3], answers[0], *answers[4:]], 2),
        "one plaintext forward product, float64": lambda: left @ right,
    }
    turns = [measure(tasks, max(2, rounds // TURNS)) for _ in range(TURNS)]
    took = {name: median(turn[name] for turn in turns) for name in tasks}
    asked = OPTIONS.asked(PARTIES)
    floor = asked / OPTIONS.K * LIMBS * took.pop("one plaintext forward product, float64")
    for name, seconds in took.items():
        print(f"{name:<42} {1e3 * seconds:8.2f} ms {seconds / took[PLAIN]:8.2f} × plaintext")
    print(f"{f'floor: {asked}/K × limbs of the forward product':<42} {1e3 * floor:8.2f} ms")
    print(f"evaluating is {took['  evaluating, all evaluators'] / floor:.2f} × the floor, "
          f"the whole round {took[SECURE] / floor:.2f} ×")  # fmt: skip
    more = took["  decoding, checked"] - took["  decoding"]
    print(f"the check adds {1e3 * more:.2f} ms, {more / took[SECURE]:.2%} of the round; the two rounds as measured: "
          f"{took['secure round, checked'] / took[SECURE]:.3f}")  # fmt: skip
    print(f"arithmetic: secure round / plaintext round {spread_of([turn[SECURE] / turn[PLAIN] for turn in turns])}")


def spread_of(ratios: list[float]) -> str:
    """The median, and all of them."""
    return f"{median(ratios):.2f} (of {', '.join(f'{ratio:.2f}' for ratio in sorted(ratios))})"


# --- whole rounds of the roles --------------------------------------------------------------------------------------


def time_the_roles(rounds: int) -> None:
    """`fedvs`, the paper's `fedvs` and `wait` in the simulator, in turns."""
    draw = np.random.default_rng(0)
    x, y = draw.random((2 * ROWS, COLUMNS), np.float32), draw.integers(0, 10, 2 * ROWS)
    table = polars.DataFrame({f"x{i}": x[:, i] for i in range(COLUMNS)} | {"y": [f"class {one}" for one in y]})
    data = colonnade.split(table, PARTIES, label="y", scale="minmax", validation_fraction=0.0)
    runs = {
        label: colonnade.prepare(
            data, {"K": OPTIONS.K, **own}, "polynomial:1", "linear", embedding=WIDTH, aggregate="mean",
            batch_size=BATCH, updates=10 * TURNS * rounds, eval_every=10 * TURNS * rounds,
        )
        for label, own in (("wait", {"name": "wait"}), ("fedvs", {"name": "fedvs"}),
                           ("fedvs of the paper", {"name": "fedvs", "stale": "refuse"}))
    }  # fmt: skip
    each = max(2, rounds // TURNS)
    for run in runs.values():
        advance(run, 6)
    turns = [{label: advance(run, each) / each for label, run in runs.items()} for _ in range(TURNS)]
    for label in runs:
        seconds = median(turn[label] for turn in turns)
        ratios = spread_of([turn[label] / turn["wait"] for turn in turns])
        print(f"roles: a round of {label:<24} {1e3 * seconds:8.2f} ms   / a round of wait {ratios}")


def advance(run: Any, rounds: int) -> float:
    """The CPU seconds of the next rounds."""
    server, start = run.simulator.nodes[0].role, time.process_time()
    last = server.k + rounds
    while server.k < last:
        run.simulator.advance(1)
    return time.process_time() - start


# --- one slow party -------------------------------------------------------------------------------------------------


def slow(args: argparse.Namespace) -> None:
    whole = credit_card(args.data)
    print("for each: wait, fedvs, their ratio")
    print("parties   R  seed  ms a round          s for all rounds    s to target")
    for parties in args.parties:
        data = fewer(colonnade.split(whole, parties=parties, scale="clipped", validation_fraction=0), 4000, 2000)
        clock = {"compute": [{"mean_s": 0.1 if n == args.slow else 0.01} for n in range(parties)]}
        found = [slow_pair(data, clock, args.epochs, seed) for seed in range(args.seeds)]
        for seed, (line, _) in enumerate(found):
            print(f"{parties:7} {line.format(seed=seed)}", flush=True)
        means = " ".join(
            f"{np.exp(np.mean(np.log(column))):.3f}" for column in zip(*[r for _, r in found], strict=True)
        )
        print(f"{parties:7} geometric means of the three ratios: {means}", flush=True)


def slow_pair(data: Partition, clock: dict[str, Any], epochs: float, seed: int) -> tuple[str, tuple[float, ...]]:
    """A line for one seed, and its ratios."""
    rounds, clocks, curves = {}, {}, {}
    needed = 0
    for name in ("wait", "fedvs"):
        run = colonnade.prepare(data, {"name": name}, clock=clock, epochs=epochs, eval_every="0.25 epochs", seed=seed)
        summary = run.execute()
        curves[name] = [(row["clock_s"], row["loss"]) for row in run.rows if row["loss"] is not None]
        clocks[name] = summary["clock_s"]
        half = [row for row in run.rows if row["update"] >= summary["updates"] / 2][0]  # noqa: RUF015
        rounds[name] = (summary["clock_s"] - half["clock_s"]) / (summary["updates"] - half["update"])
        needed = (summary.get("method") or {}).get("needed", needed)
    target = 1.01 * min(loss for _, loss in curves["wait"])
    reached = {
        name: next((when for when, loss in curve if loss <= target), float("inf")) for name, curve in curves.items()
    }
    ratios = tuple(times["fedvs"] / times["wait"] for times in (rounds, clocks, reached))
    text = f"{needed:3} {{seed:5}}  {1e3 * rounds['wait']:.1f} {1e3 * rounds['fedvs']:.1f}  {ratios[0]:.3f}  "
    text += f"{clocks['wait']:.1f} {clocks['fedvs']:.1f}  {ratios[1]:.3f}  "
    return text + f"{reached['wait']:.1f} {reached['fedvs']:.1f}  {ratios[2]:.3f}", ratios


def credit_card(folder: Path) -> Any:
    """UCI credit card, unchanged."""
    file = folder / "uci-credit-card" / "UCI_Credit_Card.csv.gz"
    return colonnade.load(str(file), label="default.payment.next.month", id="ID")


# --- the paper's experiment ----------------------------------------------------------------------------------------


class CreditTop(torch.nn.Sequential):
    """App. D: Linear-BatchNorm-Linear-ReLU-BatchNorm-WeightNorm-Linear, the sigmoid in the loss."""

    def __init__(self, inputs: int, outputs: int) -> None:
        nn = torch.nn
        last = nn.utils.parametrizations.weight_norm(nn.Linear(inputs, outputs))
        super().__init__(
            nn.Linear(inputs, inputs), nn.BatchNorm1d(inputs), nn.Linear(inputs, inputs), nn.ReLU(),
            nn.BatchNorm1d(inputs), last,
        )  # fmt: skip


def fewer(data: Partition, rows: int | None, held_out: int | None) -> Partition:
    """At most `rows` training rows, and `held_out` validation and test rows each; those of a partition are shuffled."""
    numbers = np.arange(len(data.y_test))
    validation, test = numbers[: data.validation][:held_out], numbers[data.validation :][:held_out]
    held_out = np.concatenate([validation, test])
    return replace(
        data,
        train=tuple(own[:rows] for own in data.train), test=tuple(own[held_out] for own in data.test),
        y_train=data.y_train[:rows], y_test=data.y_test[held_out], validation=len(validation),
    )  # fmt: skip


def mnist(folder: Path) -> Partition:
    """MNIST, the columns in 14 pieces of two lines each."""
    return colonnade.split(colonnade.load("mnist", dir=folder / "mnist"), parties=14, scale="minmax")


def credit(folder: Path, order: int = 1) -> Partition:
    """UCI credit card, standardised; values are cut off at three deviations, which become 1, for all methods alike."""
    whole = credit_card(folder)
    pieces = np.array_split(np.array(whole.columns)[::order], 11)
    held = {f"party-{n}": piece.tolist() for n, piece in enumerate(pieces, 1)}
    data = colonnade.split(whole, how=held, scale="standard")
    cut = {kind: tuple(np.clip(own, -3, 3) / 3 for own in getattr(data, kind)) for kind in ("train", "test")}
    return replace(data, **cut)


def credit_reversed(folder: Path) -> Partition:
    """The same with its columns in reverse order: the stragglers hold the most informative ones."""
    return credit(folder, -1)


PAPER = "fedvs-paper"
# `factors`: of both rates, for each method; `tune` found them.
SETS: dict[str, dict[str, Any]] = {
    "mnist": {"load": mnist, "party": "polynomial:1", "width": 32, "server": "mlp:32,32", "batch": 512,
              "metric": "accuracy", "seconds": 160.0, "rows": (10000, 2000), "server_rate": 0.2, "party_rate": 3.0,
              "factors": {"fedvs": 4.0, PAPER: 4.0, "wait": 4.0, "ignore": 2.0, "vafl": 2.0, "wait-dp": 16.0}},
    "credit": {"load": credit, "party": "polynomial:2", "width": 16, "server": CreditTop, "batch": 64,
               "metric": "auc", "seconds": 400.0, "rows": (None, None), "server_rate": 0.05, "party_rate": 0.5,
               "factors": {"fedvs": 2.0, PAPER: 4.0, "wait": 8.0, "ignore": 16.0, "vafl": 2.0, "wait-dp": 4.0}},
}  # fmt: skip
SETS["credit-reversed"] = SETS["credit"] | {"load": credit_reversed}
METHODS: dict[str, dict[str, Any]] = {
    "fedvs": {"name": "fedvs", "T": 1},
    PAPER: {"name": "fedvs", "T": 1, "stale": "refuse"},  # all parties share in every round
    **{name: {"name": name} for name in ("wait", "ignore", "vafl", "wait-dp")},
}
FACTORS = (0.5, 1.0, 2.0)
# Factors of the time, in `tune`: rounds have unequal costs.
TUNING = {"fedvs": 0.25, PAPER: 0.5, "wait": 1.0, "ignore": 0.5, "vafl": 0.25, "wait-dp": 1.0}
SWEEP_S = 40.0
EVALUATIONS = 20
OUT = "for experiment: a picture (.png or .html); its numbers are beside it (.json) and are reused"
Found = dict[str, dict[str, list[dict[str, Any]]]]  # runs of each seed, by set and method
COLOURS = dict(zip(METHODS, ("#d62728", "#ff9896", "#7f7f7f", "#1f77b4", "#2ca02c", "#bcbd22"), strict=True))


def delays(parties: int) -> dict[str, Any]:
    """Sec. 6.2."""
    half = parties // 2
    means = [0.1] * (parties - half) + [2 + 4 * i / parties for i in range(1, half + 1)]
    return machines([{"kind": "exponential", "mean_s": value} for value in means])


def machines(compute: Any) -> dict[str, Any]:
    link = {"latency_s": 0.0, "bandwidth_mbps": 300.0}
    return {"compute": compute, "network": link, "server": {"compute": {"mean_s": 0.001}, "network": link}}


def train(
    which: dict[str, Any], data: Partition, options: dict[str, Any], seconds: float, seed: int,
    factor: float = 1.0, clock: dict[str, Any] | None = None, work: str = "delays", rounds: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """One run: its curve of validation rows, the test rows at its end, rounds per second, and its summary."""
    own = {} if options["name"] == "vafl" else {"work": work, "K": 2}  # K·|B| is the batch: |B| is the paper's
    limit: dict[str, Any] = {"seconds": seconds, "eval_every": f"{seconds / EVALUATIONS:g} s"}
    if rounds is not None:
        limit = {"updates": rounds, "eval_every": max(1, rounds // EVALUATIONS)}
    run = colonnade.prepare(
        data, {**own, **options}, which["party"], which["server"],
        embedding=which["width"], aggregate="mean", clock=clock or delays(len(data.train)), seed=seed,
        batch_size=which["batch"], metric=which["metric"], **limit,
        learning_rate={"server": factor * which["server_rate"], "party": factor * which["party_rate"]},
    )  # fmt: skip
    start = time.perf_counter()
    summary = run.execute()
    curve = [row for row in run.rows if row["value"] is not None and summary["status"] != "diverged"]
    found = {
        "values": [row["value"] for row in curve], "clock": [row["clock_s"] for row in curve],
        "test": curve[-1]["test_value"] if curve else nan,
        "rate": summary["updates"] / summary["clock_s"], "took": time.perf_counter() - start,
        "privacy": summary["privacy"], "method": summary.get("method"),
    }  # fmt: skip
    if options["name"] == "ignore":
        found["by_the_taken"] = by_the_taken(run, which["metric"])
    return found


def by_the_taken(run: Any, metric: str) -> float:
    """`ignore`, judged on the test rows without the ignored parties: averages of the fast half only."""
    server, data = run.simulator.nodes[0].role, run.federation.data
    table, y = server.evaluation.table.values[data.validation :], data.y_test[data.validation :]
    half = (len(run.federation.parties) + 1) // 2
    h = table.reshape(len(y), len(run.federation.parties), -1)[:, :half].mean(1)
    loss, prediction = server.network.evaluate(h, server.network.objective.targets(y))
    return float(judge(metric, server.network.objective.task, y, prediction, loss)[metric])


def spread(values: list[float]) -> str:
    return f"{mean(values):.3f} ± {pstdev(values):.3f}" if len(values) > 1 else f"{values[0]:.3f}"


def late(run: dict[str, Any]) -> float:
    """The mean over the last fifth, of validation rows."""
    return mean(run["values"][-EVALUATIONS // 5 :])


def line(label: str, runs: list[dict[str, Any]]) -> str:
    """Rounds per second, the metric of validation rows by fifths, the test rows' at the end."""
    length = min(len(run["values"]) for run in runs)
    curve = [mean(run["values"][i] for run in runs) for i in range(length)]
    fifths = " ".join(f"{value:.3f}" for value in curve[:: max(1, EVALUATIONS // 5)])
    text = f"{label:<14} {mean(run['rate'] for run in runs):7.2f} rounds/s  {fifths}"
    text += f"  last fifth {spread([late(run) for run in runs])}  test {spread([run['test'] for run in runs])}"
    if "by_the_taken" in runs[0]:
        text += f"  (judged by the fast half: {spread([run['by_the_taken'] for run in runs])})"
    if "in_plain_numbers" in runs[0]:
        text += f"  (in plain numbers, as many rounds: {spread([run['in_plain_numbers'] for run in runs])})"
    if runs[0]["privacy"]:
        method = runs[0]["method"]
        own = runs[0]["privacy"]["claim_of_own_rows"]["epsilon"]
        text += f"  ε′ = {method['epsilon_per_release']:g}; of a row's own releases: ε = {own:.1f}; "
        text += f"of everything: ε = {runs[0]['privacy']['epsilon']:.3g}"
    return f"{text}  ({sum(run['took'] for run in runs):.0f} s)"


def experiment(args: argparse.Namespace) -> None:
    numbers = args.out.with_suffix(".json")
    found: Found = json.loads(numbers.read_text(encoding="utf-8")) if numbers.exists() else {}
    for name in args.sets:
        which = SETS[name]
        data = fewer(which["load"](args.data), *which["rows"])
        rows = len(data.y_train), data.validation, len(data.y_test) - data.validation
        print(
            f"{name}: {rows} rows to train, validate and test on, {len(data.train)} parties, {args.seeds} seeds; "
            f"{which['metric']} at fifths of {which['seconds']:g} s of the clock"
        )
        for method in args.methods:
            runs = found.setdefault(name, {}).setdefault(method, [])
            for seed in range(len(runs), args.seeds):
                factor = which["factors"][method]
                runs.append(train(which, data, METHODS[method], which["seconds"], seed, factor))
                numbers.write_text(json.dumps(found), encoding="utf-8")
            if method in ("fedvs", PAPER):
                compare_with_plain(which, data, runs, which["factors"][method])
                numbers.write_text(json.dumps(found), encoding="utf-8")
            print(line(method, runs), flush=True)
    save(draw({name: found[name] for name in args.sets}), args.out)


def compare_with_plain(which: dict[str, Any], data: Partition, runs: list[dict[str, Any]], factor: float) -> None:
    """The control: `wait` at the same rate, for as many rounds; on test rows."""
    for seed, run in enumerate(runs):
        if "in_plain_numbers" not in run:
            rounds, clock = round(run["rate"] * run["clock"][-1]), machines({"mean_s": 0.01})
            plain = train(which, data, METHODS["wait"], 0.0, seed, factor, clock, rounds=rounds)
            run["in_plain_numbers"] = plain["test"]


def draw(found: Found) -> Figure:
    """The metric of validation rows against time, a panel for each set."""
    figure = make_subplots(1, len(found), subplot_titles=list(found))
    for column, (name, methods) in enumerate(found.items(), 1):
        for method, runs in methods.items():
            length = min(len(run["values"]) for run in runs)
            x = [mean(run["clock"][i] for run in runs) for i in range(length)]
            y = [mean(run["values"][i] for run in runs) for i in range(length)]
            figure.add_scatter(
                x=x, y=y, name=method, line_color=COLOURS[method], showlegend=column == 1, row=1, col=column
            )
        figure.update_xaxes(title="clock (s)", row=1, col=column)
        figure.update_yaxes(title=f"{SETS[name]['metric']}, validation rows", row=1, col=column)
    figure.update_layout(template="plotly_white", height=580, width=980, margin={"l": 50, "r": 20, "t": 50, "b": 50})
    return figure


def tune(args: argparse.Namespace) -> None:
    for name in args.sets:
        which = SETS[name]
        data = fewer(which["load"](args.data), *which["rows"])
        for method in args.methods:
            ends: dict[float, float] = {}
            waiting = list(FACTORS)
            while waiting:  # the grid grows while its best is at an edge
                for factor in waiting:
                    seconds = TUNING[method] * which["seconds"]
                    values = train(which, data, METHODS[method], seconds, 0, factor)["values"]
                    ends[factor] = mean(values[-3:] or [0.0])
                    print(f"    {name} {method} ×{factor:g} {ends[factor]:.4f}", flush=True)
                best = max(ends, key=ends.__getitem__)
                waiting = [
                    best * step for step in (0.5, 2) if best in (min(ends), max(ends)) and best * step not in ends
                ]
            shown = "  ".join(f"×{factor:g} {ends[factor]:.3f}" for factor in sorted(ends))
            print(f"{name} {method:<8} {shown}  best ×{best:g}", flush=True)


def sweep(args: argparse.Namespace) -> None:
    """Fig. 3 (a) and 4: delays outweigh computing; Fig. 3 (b): computing outweighs them. The rate is that of K = 2."""
    which = SETS["mnist"]
    data, factor = fewer(which["load"](args.data), *which["rows"]), which["factors"]["fedvs"]
    even = machines({"mean_s": 0.05})
    codes = [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (2, 2), (2, 3), (2, 4)]
    for title, clock, work in (("delays", None, "delays"), ("computing", even, "arithmetic")):
        for k, t in codes if work == "delays" else codes[:5]:
            options = METHODS["fedvs"] | {"K": k, "T": t}
            runs = [train(which, data, options, SWEEP_S, seed, factor, clock, work) for seed in range(args.seeds)]
            print(line(f"{title} K={k} T={t}", runs), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("round")
    one.add_argument("--rounds", type=int, default=30)
    late_one = commands.add_parser("slow")
    late_one.add_argument("--data", type=Path, required=True)
    late_one.add_argument("--parties", type=lambda text: [int(part) for part in text.split(",")], default=[4, 6, 14])
    late_one.add_argument("--slow", type=int, default=0, help="the slow party, from 0")
    late_one.add_argument("--seeds", type=int, default=3)
    late_one.add_argument("--epochs", type=float, default=10.0)
    for name in ("experiment", "sweep", "tune"):
        other = commands.add_parser(name)
        other.add_argument("--data", type=Path, required=True)
        other.add_argument("--sets", type=lambda text: text.split(","), default=["mnist", "credit"])
        other.add_argument("--seeds", type=int, default=3 if name == "experiment" else 1)
        other.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS))
        other.add_argument("--out", type=Path, default=Path("fedvs.html"), help=OUT)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        if args.command == "round":
            time_a_round(args.rounds)
            time_the_roles(args.rounds)
        elif args.command == "slow":
            slow(args)
        else:
            {"experiment": experiment, "sweep": sweep, "tune": tune}[args.command](args)


if __name__ == "__main__":
    main()
