"""FedVS: what a secure round costs beside a plaintext one, and the paper's experiment under its own delays.

    python benchmarks/fedvs.py round [--rounds 30]
    python benchmarks/fedvs.py experiment --data DIR [--set mnist|credit] [--rows 4000] [--seconds 120] [--methods …]
    python benchmarks/fedvs.py sweep --data DIR [--rows 2000] [--seconds 60]

**round**: N = 14, K = 2, T = 1, 784 columns, h = 64, batch 256, one thread, all roles one after the other. The floor is
N/K × 2 limbs of the plaintext forward product in float64. Lower quartiles of alternating rounds.

**experiment**: half of the parties delay an embedding by Exp(0.1 s), the others by Exp(2 + 4i/N s); 300 Mbit/s links;
sharing a model is delayed by log²N/|B| of that. `fedvs`, `wait`, `ignore`, `vafl` and `wait-dp` on the same data.

**sweep**: `fedvs` with several K and T (the paper's Fig. 3 and 4).
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

import colonnade
from colonnade.algorithms.fedvs.coding import LIMBS, average, coded_data, coded_sum, share_data, share_model
from colonnade.algorithms.fedvs.config import FedvsOptions
from colonnade.data import Partition
from colonnade.experiments.config import from_dict
from colonnade.experiments.run import prepare
from colonnade.models.polynomial import Polynomial
from colonnade.privacy.field import add

PARTIES, COLUMNS, WIDTH, BATCH, ROWS = 14, 784, 64, 256, 1024
OPTIONS = FedvsOptions(K=2, T=1)
SEEDS = [bytes([n]) * 32 for n in range(4)]


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
        held = [np.concatenate([own[n] for own in shares], axis=1) for n in range(PARTIES)]
        self.places = np.arange(BATCH // OPTIONS.K)
        self.batch = [own[self.places] for own in held]
        self.rows = np.add.outer(np.arange(OPTIONS.K) * (ROWS // OPTIONS.K), self.places).ravel()

    def step(self, h: torch.Tensor) -> torch.Tensor:
        """The server's pass: ∇_H."""
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

    def share(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """All parties share their models."""
        weights = [net.weight.detach().numpy() for net in self.nets]
        return [share_model(w, len(self.places), self.code, OPTIONS.l_w, *SEEDS[1:]) for w in weights]

    def evaluate(self, shares: list[tuple[np.ndarray, np.ndarray]], n: int) -> np.ndarray:
        """Party n's answer."""
        blinding = shares[0][1][n]
        for _, own in shares[1:]:
            blinding = add(blinding, own[n])
        return coded_sum(self.batch[n], np.concatenate([models[n] for models, _ in shares]), blinding)

    def decode(self, answers: list[np.ndarray]) -> torch.Tensor:
        """The server's average."""
        summed = self.code.decode(answers[: self.code.needed], range(self.code.needed))
        return torch.from_numpy(average(summed.reshape(BATCH, WIDTH), PARTIES, OPTIONS.l_x + OPTIONS.l_w))

    def secure(self) -> None:
        """A secure round, with everybody's answer."""
        shares = self.share()
        self.learn(self.step(self.decode([self.evaluate(shares, n) for n in range(PARTIES)])))


def measure(tasks: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of each, the first call not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds + 1):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            seconds[name].append(time.perf_counter() - start)
    return {name: quantiles(values[1:], n=4)[0] for name, values in seconds.items()}


def time_a_round(rounds: int) -> None:
    stage = Stage()
    shares = stage.share()
    answers = [stage.evaluate(shares, n) for n in range(PARTIES)]
    left, right = np.random.default_rng(0).random((BATCH, COLUMNS)), np.random.default_rng(1).random((COLUMNS, WIDTH))
    took = measure(
        {
            "plaintext round": stage.plain,
            "secure round, all roles": stage.secure,
            "  sharing models, all parties": stage.share,
            "  evaluating, all parties": lambda: [stage.evaluate(shares, n) for n in range(PARTIES)],
            "  decoding": lambda: stage.decode(answers),
            "one plaintext forward product, float64": lambda: left @ right,
        },
        rounds,
    )
    floor = PARTIES / OPTIONS.K * LIMBS * took.pop("one plaintext forward product, float64")
    for name, seconds in took.items():
        print(f"{name:<42} {1e3 * seconds:8.2f} ms {seconds / took['plaintext round']:8.2f} × plaintext")
    print(f"{'floor: N/K × limbs of the forward product':<42} {1e3 * floor:8.2f} ms")
    print(f"evaluating is {took['  evaluating, all parties'] / floor:.2f} × the floor, "
          f"the whole round {took['secure round, all roles'] / floor:.2f} ×")  # fmt: skip


# --- the paper's experiment ----------------------------------------------------------------------------------------


def mnist(folder: Path, rows: int, parties: int) -> Partition:
    """So many rows of MNIST (seven of eight for training), the columns in `parties` pieces."""
    whole = colonnade.load("mnist", dir=folder / "mnist")
    chosen = np.random.default_rng(0).permutation(60_000)[:rows]
    x, y = np.asarray(whole.x)[chosen].astype(np.float32) / 255, np.asarray(whole.y)[chosen]
    table = colonnade.from_arrays(x, y, name="mnist")
    return colonnade.split(table, parties=parties, scale="none", test_fraction=0.125)


def credit(folder: Path, rows: int, parties: int) -> Partition:
    """So many rows of UCI credit card, and a fifth of that for testing."""
    file = folder / "uci-credit-card" / "UCI_Credit_Card.csv.gz"
    whole = colonnade.load(str(file), label="default.payment.next.month", id="ID")
    data = colonnade.split(whole, parties=parties, scale="minmax")
    tests = rows // 5
    return replace(
        data,
        train=tuple(own[:rows] for own in data.train), test=tuple(own[:tests] for own in data.test),
        y_train=data.y_train[:rows], y_test=data.y_test[:tests],
    )  # fmt: skip


SETS: dict[str, dict[str, Any]] = {
    "mnist": {"load": mnist, "parties": 14, "party": "polynomial:1", "width": 32, "server": "mlp:32", "batch": 512,
              "rate": {"server": 0.2, "party": 3.0}, "metric": "accuracy", "K": 2},
    "credit": {"load": credit, "parties": 11, "party": "polynomial:2", "width": 16, "server": "mlp:16", "batch": 64,
               "rate": {"server": 0.2, "party": 2.0}, "metric": "auc", "K": 2},
}  # fmt: skip
METHODS: dict[str, dict[str, Any]] = {"fedvs": {"T": 1}, "wait": {}, "ignore": {}, "vafl": {}, "wait-dp": {}}


def delays(parties: int) -> dict[str, Any]:
    """Sec. 6.2."""
    half = parties // 2
    means = [0.1] * (parties - half) + [2 + 4 * i / parties for i in range(1, half + 1)]
    link = {"latency_s": 0.0, "bandwidth_mbps": 300.0}
    compute = [{"kind": "exponential", "mean_s": value} for value in means]
    return {"compute": compute, "network": link, "server": {"compute": {"mean_s": 0.001}, "network": link}}


def tables(which: dict[str, Any], name: str, options: dict[str, Any], seconds: float, seed: int) -> dict[str, Any]:
    own = {} if name == "vafl" else {"work": "delays", "K": which["K"]}
    return {
        "protocol": {"name": name, **own, **options},
        "model": {"party": which["party"], "embedding": which["width"], "server": which["server"], "aggregate": "mean"},
        "clock": delays(which["parties"]),
        "train": {
            "batch_size": which["batch"], "learning_rate": which["rate"], "seconds": seconds, "metric": which["metric"],
            "eval_every": f"{seconds / 8:g} s", "seed": seed,
        },
    }  # fmt: skip


def run(which: dict[str, Any], data: Partition, name: str, options: dict[str, Any], seconds: float, seeds: int) -> None:
    curves, rates, last = [], [], {}
    start = time.perf_counter()
    for seed in range(seeds):
        made = prepare(from_dict(tables(which, name, options, seconds, seed)), data)
        last = made.execute()
        rates.append(last["updates"] / last["clock_s"])
        curves.append([row["value"] or float("nan") for row in made.rows])
    length = min(map(len, curves))
    curve = " ".join(f"{mean(values):.3f}" for values in zip(*(own[:length] for own in curves), strict=True))
    spent = last["privacy"]
    noise = f"  ε′ = 5 a release, ε = {spent['epsilon']:.0f} in all" if spent else ""
    label = " ".join([name, *(f"{key}={value}" for key, value in options.items())])
    took = time.perf_counter() - start
    print(f"{label:<16} {mean(rates):7.2f} rounds/s  {which['metric']} {curve}{noise}  ({took:.0f} s)", flush=True)


def experiment(args: argparse.Namespace) -> None:
    which = SETS[args.set]
    data = which["load"](args.data, args.rows, which["parties"])
    print(f"{args.set}: {len(data.y_train)} + {len(data.y_test)} rows, {which['parties']} parties; "
          f"{which['metric']} at eighths of {args.seconds:g} s of the clock")  # fmt: skip
    for name in args.methods.split(","):
        run(which, data, name, METHODS[name], args.seconds, args.seeds)


def sweep(args: argparse.Namespace) -> None:
    which = SETS[args.set]
    data = which["load"](args.data, args.rows, which["parties"])
    for k, t in ((1, 1), (2, 1), (3, 1), (4, 1), (2, 2), (2, 3)):
        run(which | {"K": k}, data, "fedvs", {"K": k, "T": t}, args.seconds, args.seeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("round")
    one.add_argument("--rounds", type=int, default=30)
    for name in ("experiment", "sweep"):
        other = commands.add_parser(name)
        other.add_argument("--data", type=Path, required=True)
        other.add_argument("--set", choices=list(SETS), default="mnist")
        other.add_argument("--rows", type=int, default=4000)
        other.add_argument("--seconds", type=float, default=120.0)
        other.add_argument("--seeds", type=int, default=1)
        other.add_argument("--methods", default=",".join(METHODS), help="of the experiment")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        if args.command == "round":
            time_a_round(args.rounds)
        else:
            (experiment if args.command == "experiment" else sweep)(args)


if __name__ == "__main__":
    main()
