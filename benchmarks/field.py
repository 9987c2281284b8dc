"""The exact product over F_p (privacy/field.py) against the BLAS time of its own limbs, and against `galois`.

    python benchmarks/field.py [--rounds 100] [--galois-rounds 3]

256×784 by 784×64 uniform elements, one thread. The floor is one float64 product of 256×784 by 784×128: both limbs,
side by side. Measured: with both factors as they come from the wire, and with factors made ready before (`centre`d
data, `split` model). Also what the other steps of a FedVS round cost at N = 14, K = 2, T = 1. All times are CPU
time, lower quartiles of alternating rounds; `galois` compiles once before it is measured.
"""

import argparse
import time
from collections.abc import Callable
from statistics import quantiles

import galois
import numpy as np
from threadpoolctl import threadpool_limits

from colonnade.privacy.field import P, centre, matmul, split, uniform
from colonnade.privacy.sharing import LagrangeCode

ROWS, INNER, COLUMNS = 256, 784, 64
SEED, OTHER = bytes(32), bytes([1] * 32)
BLAS_GOAL, GALOIS_GOAL = 2.0, 50.0
Task = Callable[[], object]


def measure(tasks: dict[str, Task], rounds: int) -> dict[str, float]:
    """CPU seconds of each, without the first call: on a busy machine, long tasks wait longer than short ones."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds + 1):
        for name, task in tasks.items():
            start = time.process_time()
            task()
            seconds[name].append(time.process_time() - start)
    return {name: quantiles(values[1:], n=4)[0] for name, values in seconds.items()}


def products(a: np.ndarray, b: np.ndarray) -> dict[str, Task]:
    """The floor, and the product from three starts."""
    whole, limbs = centre(a), split(b)
    out = np.empty((ROWS, limbs.parts.shape[1]))
    return {
        "BLAS, both limbs": lambda: np.matmul(whole, limbs.parts, out=out),
        "BLAS, one plain product": lambda: np.matmul(whole, limbs.parts[:, :COLUMNS], out=out[:, :COLUMNS]),
        "elements @ elements": lambda: matmul(a, b),
        "centred @ elements": lambda: matmul(whole, b),
        "centred @ limbs": lambda: matmul(whole, limbs),
    }


def coding() -> dict[str, Task]:
    """The other work of a party and the server in a round: 56 columns and a bias, batch 256, h = 64."""
    code = LagrangeCode(2, 1, 14)
    model, masks = uniform(SEED, (57, COLUMNS)), uniform(OTHER, (1, 57, COLUMNS))
    terms = uniform(SEED, (code.blinding_terms, ROWS, COLUMNS))
    answers = uniform(OTHER, (code.needed, ROWS, COLUMNS))
    who = range(3, 3 + code.needed)
    return {
        "share the model": lambda: code.encode_model(model, masks),
        "draw the blinding": lambda: uniform(SEED, terms.shape),
        "share the blinding": lambda: code.blinding(terms),
        "decode": lambda: code.decode(answers, who),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=100)
    arguments.add_argument("--galois-rounds", type=int, default=3)
    options = arguments.parse_args()
    field = galois.GF(P)
    a, b = uniform(SEED, (ROWS, INNER)), uniform(OTHER, (INNER, COLUMNS))
    a_galois, b_galois = field(a.astype(np.int64)), field(b.astype(np.int64))
    assert np.array_equal(matmul(a, b), np.asarray(a_galois @ b_galois))
    with threadpool_limits(1):
        ours = measure(products(a, b), options.rounds)
        others = measure(coding(), options.rounds)
        theirs = measure({"galois": lambda: a_galois @ b_galois}, options.galois_rounds)
    floor, full = ours["BLAS, both limbs"], ours["elements @ elements"]
    for name, seconds in {**ours, **theirs, **others}.items():
        print(f"{name:24} {1e3 * seconds:8.2f} ms   {seconds / floor:6.2f} × the limbs' BLAS time")
    print(f"product / its limbs' BLAS time {full / floor:.2f}   (at most {BLAS_GOAL:g})")
    print(f"galois / product {theirs['galois'] / full:.0f}   (at least {GALOIS_GOAL:g})")


if __name__ == "__main__":
    main()
