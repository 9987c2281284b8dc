"""With only its name as a setting, every method learns on tables that its defaults were not found on.

The whole of it, on ten real tables, is `benchmarks/transfer.py --learns`.
"""

import numpy as np
import pytest
from scipy import sparse

import colonnade
from colonnade.algorithms import METHODS
from colonnade.config.schema import from_dict
from colonnade.experiments.run import prepare
from colonnade.models.metrics import METRICS

LINEAR = [name for name, method in METHODS.items() if method.capabilities.party_labels]  # of two classes
CLOCK = {"compute": [{"kind": "fixed", "mean_s": seconds} for seconds in (0.01, 0.01, 0.01, 0.1)]}


def nasty():
    """Columns of all sizes, one constant, one with rare huge values; one row of twenty is of class 1."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((640, 12))
    y = (x[:, 0] + x[:, 4] + x[:, 9] > np.quantile(x[:, 0] + x[:, 4] + x[:, 9], 0.95)).astype(np.int64)
    x[:, 3] = 7.0
    x[:, 6] = draw.lognormal(0, 3, 640)
    return colonnade.from_arrays(x * 10.0 ** draw.integers(-5, 6, 12), y)


def sparse_rows():
    """Mostly zeros; two columns decide."""
    draw = np.random.default_rng(0)
    x = sparse.random(320, 40, 0.1, format="csr", random_state=draw, data_rvs=lambda count: 1 + draw.random(count))
    y = (np.asarray(x[:, :20].sum(1)).ravel() > np.asarray(x[:, 20:].sum(1)).ravel()).astype(np.int64)
    return colonnade.from_arrays(x, y)


TABLES = {
    "wine": lambda: colonnade.load("wine"),
    "diabetes": lambda: colonnade.load("diabetes"),
    "nasty": nasty,
    "sparse": sparse_rows,
    "breast-cancer": lambda: colonnade.load("breast-cancer"),
    "digits": lambda: colonnade.load("digits"),
}
QUICK = ("nasty", "sparse")


def suits(method, table):
    """The linear methods handle two classes or numbers; only they accept sparse tables."""
    return method in LINEAR if table == "sparse" else method not in LINEAR or table in ("nasty", "breast-cancer")


PAIRS = [
    pytest.param(method, table, id=f"{method}-{table}", marks=[] if table in QUICK else pytest.mark.slow)
    for method in METHODS
    for table in TABLES
    if suits(method, table)
]


@pytest.mark.parametrize(("method", "table"), PAIRS)
def test_every_method_learns_with_its_name_alone(method, table):
    data = colonnade.split(TABLES[table](), scale=METHODS[method].defaults.scale)
    limit = {"epochs": 2, "eval_every": "1 epoch"} if table in QUICK else {}
    run = prepare(from_dict({"protocol": {"name": method}, "clock": CLOCK, "train": limit}), data)
    summary = run.execute()
    assert (summary["status"], summary["warnings"]) == ("finished", [])
    metric, margin = METRICS[summary["metric"]], 1 / np.sqrt(len(data.y_test))  # what chance may give
    floor = labels_alone(data) * (1 - margin if metric.higher_is_better else 1 + margin)
    assert metric.reached(summary["value"], floor)
    if table in QUICK:  # with 35 validation rows of diabetes the loss says little
        assert run.rows[-1]["loss"] < run.rows[0]["loss"]


def labels_alone(data):
    """The score of the most frequent class on the test rows, or of the labels' mean."""
    y = data.y_test[data.validation :]
    if data.task.kind == "regression":
        return float(np.sqrt(np.mean((y - data.y_train.mean()) ** 2)))
    return float(np.mean(y == np.bincount(data.y_train).argmax()))
