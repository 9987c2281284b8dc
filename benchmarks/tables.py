"""Ten tables over four parties and the clocks of slow parties: what transfer.py and defaults.py run on.

Settings are chosen on the development tables alone. Computing time is proportional to rows, so a method gains nothing
from larger batches: a fast party needs 20 ms for 64 rows (forward and backward), a slow one 200 ms.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import colonnade
from colonnade.data import Dataset, Partition
from colonnade.data.table import Column, Table

__all__ = [
    "DEVELOPMENT",
    "PARTIES",
    "PATTERNS",
    "SOURCES",
    "TEST",
    "Pattern",
    "clock_of",
    "partition",
    "trivial",
]

PARTIES, FACTOR = 4, 10
SMALL = 2000  # rows
ROW_S, SERVER_ROW_S = 0.02 / 64, 0.001 / 64
LATENCY_S, FAR_S = 0.005, 0.1  # one way; with the far one a round trip takes as long as ten steps


@dataclass(frozen=True)
class Source:
    """Where a table comes from, which party holds what, and how a model of it is judged."""

    load: Callable[[str], Dataset]  # given the folder of all data
    how: str | dict[str, list[str]] = "even"
    metric: str = "accuracy"
    slack: float = 0.005  # how far a target is below the centralised metric; for rmse: times the labels' deviation


def _credit(folder: str) -> Dataset:
    categorical = ["SEX", "EDUCATION", "MARRIAGE", *(f"PAY_{i}" for i in (0, 2, 3, 4, 5, 6))]
    label = "default.payment.next.month"
    path = f"{folder}/uci-credit-card"
    return colonnade.load("UCI_Credit_Card.csv.gz", dir=path, label=label, id="ID", categorical=categorical)


def _named(name: str) -> Callable[[str], Dataset]:
    return lambda folder: colonnade.load(name, dir=folder)


def _embedded(name: str) -> Callable[[str], Dataset]:
    return lambda folder: colonnade.load(name)


CREDIT = {
    "person": ["LIMIT_BAL..AGE"],
    "delays": ["PAY_0..PAY_6"],
    "bills": ["BILL_AMT1..BILL_AMT6"],
    "payments": ["PAY_AMT1..PAY_AMT6"],
}
MFEAT = {
    "fourier": ["fou_0..fou_75"],
    "profiles": ["fac_0..fac_215"],
    "pixels": ["kar_0..kar_63", "pix_0..pix_239"],
    "moments": ["zer_0..zer_46", "mor_0..mor_5"],
}
DEVELOPMENT: dict[str, Source] = {
    "credit": Source(_credit, CREDIT, metric="auc"),  # 22 % ones: accuracy moves little
    "a9a": Source(_named("a9a")),
    "mfeat": Source(_named("mfeat"), MFEAT),
    "digits": Source(_embedded("digits")),
}
TEST: dict[str, Source] = {
    "mnist": Source(_named("mnist")),
    "fashion-mnist": Source(_named("fashion-mnist")),
    "breast-cancer": Source(_embedded("breast-cancer")),
    "wine": Source(_embedded("wine")),
    "diabetes": Source(_embedded("diabetes"), metric="rmse"),
    "physionet": Source(_named("physionet2012"), "views", metric="auc"),  # 14 % die: accuracy says little
}
SOURCES = DEVELOPMENT | TEST


def partition(name: str, folder: str, rows: int, scale: str | None = None) -> Partition:
    """A table of at most `rows` rows, a fifth of them to test on, over the four parties.

    A tenth of the other rows is for validation; three tenths of small tables, where fewer rows would say little.
    """
    source = SOURCES[name]
    table = cut(source.load(folder), rows)
    validation = 0.3 if len(table.y) <= SMALL else 0.1
    return colonnade.split(table, how=source.how, scale=scale, validation_fraction=validation)


def cut(dataset: Dataset, rows: int) -> Dataset:
    """At most this many rows, always the same ones; at most a fifth of them from a given test set."""
    total, given = len(dataset.y), dataset.test_rows
    if total <= rows:
        return dataset
    draw = np.random.default_rng(0)
    if given:
        tested = min(given, rows // 5)
        train = draw.permutation(total - given)[: rows - tested]
        chosen = np.concatenate([train, total - given + draw.permutation(given)[:tested]])
    else:
        tested, chosen = 0, draw.permutation(total)[:rows]
    ids = None if dataset.ids is None else dataset.ids.gather(chosen)
    return replace(dataset, x=_rows(dataset.x, chosen), y=dataset.y[chosen], test_rows=tested, ids=ids)


def _rows(x: Any, chosen: np.ndarray) -> Any:
    if not isinstance(x, Table):
        return x[chosen]
    columns = [x.column(place) for place in range(x.shape[1])]
    return Table([Column(column.values[chosen], column.categories) for column in columns])


def trivial(data: Partition, metric: str) -> float:
    """The score on the test rows of a model that knows only the labels' frequencies or mean."""
    y = data.y_test[data.validation :]
    if metric == "auc":
        return 0.5
    if metric == "rmse":
        return float(np.sqrt(np.mean((y - data.y_train.mean()) ** 2)))
    return float(np.mean(y == np.bincount(data.y_train).argmax()))


@dataclass(frozen=True)
class Pattern:
    """Which parties are slow (counted from 0), and how far all of them are from the server."""

    slow: tuple[int, ...] = ()
    latency_s: float = LATENCY_S

    def step_s(self, batch: int) -> float:
        """The approximate time of a `sync` step: the slowest party's computing, the round trip, the server."""
        row_s = ROW_S * (FACTOR if self.slow else 1) + SERVER_ROW_S
        return batch * row_s + 2 * self.latency_s


PATTERNS: dict[str, Pattern] = {
    **{str(party + 1): Pattern((party,)) for party in range(PARTIES)},
    "two": Pattern((1, 3)),
    "none": Pattern(),
    "far": Pattern((), FAR_S),
}


def clock_of(pattern: Pattern, batch: int) -> dict[str, Any]:
    """The `[clock]` under which a step of `batch` rows takes its time."""
    factors = [FACTOR if party in pattern.slow else 1 for party in range(PARTIES)]
    return {
        "compute": [{"kind": "fixed", "mean_s": ROW_S * batch * factor} for factor in factors],
        "server": {"compute": {"kind": "fixed", "mean_s": SERVER_ROW_S * batch}},
        "network": {"latency_s": pattern.latency_s},
    }
