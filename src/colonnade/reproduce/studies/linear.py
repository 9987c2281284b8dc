"""AsySQN's experiments: how far the objective on the training rows is above its optimum.

The optimum is scikit-learn's on the joined columns. Rates are chosen by the same objective, which needs no held-out
rows. A run ends when it has reached `goal` of the column, or at its limit.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import product
from math import inf
from typing import Any

import msgspec
import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from colonnade.algorithms.asysqn.losses import LOSSES, penalty
from colonnade.config.resolve import load_partition
from colonnade.config.schema import apply_overrides, from_dict
from colonnade.data import Partition, from_arrays, split
from colonnade.drivers.tasks import in_turn
from colonnade.experiments.run import Run, one_thread, prepare
from colonnade.protocol.errors import TrainingDiverged
from colonnade.reproduce.conduct import Curve, Job
from colonnade.reproduce.item import Column, Row
from colonnade.reproduce.result import Cell

__all__ = ["accuracy", "clocked", "rounds", "speed_up"]

LOGISTIC = LOSSES["logistic"]
EVENTS = 400  # between two looks at the objective
Found = tuple[list[Cell], dict[str, dict[str, Curve]]]


class Trail(msgspec.Struct, frozen=True):
    """A run: updates, clock and suboptimality at every look, and the accuracy on the test rows at the end."""

    updates: list[float]
    clock_s: list[float]
    above: list[float]  # (f(w) − f*)/f*
    accuracy: float

    def arrival(self, goal: float, axis: str) -> float | None:
        """Where the run was at its goal; None: it did not get there."""
        places = getattr(self, axis)
        return next((place for place, above in zip(places, self.above, strict=True) if above <= goal), None)


# Data and their optimum


def made_up(rows: int, columns: int, density: float, seed: int = 0) -> Any:
    """Rows of the size and density of a data set that cannot be had; sparse if few entries are not 0."""
    draw = np.random.default_rng(seed)
    w = draw.standard_normal(columns)
    if density < 0.2:
        x = sparse.random(rows, columns, density, format="csr", random_state=draw, dtype=np.float32)
        norms = np.sqrt(np.asarray(x.multiply(x).sum(1)).ravel())
        x = sparse.diags(1 / np.maximum(norms, 1e-12)) @ x
    else:
        x = draw.standard_normal((rows, columns)) / np.sqrt(columns)
    z = np.asarray(x @ w).ravel()
    y = (z + 0.5 * z.std() * draw.standard_normal(rows) > 0).astype(np.int64)
    return from_arrays(x, y)


@cache
def _data(text: str) -> Partition:
    tables = msgspec.json.decode(text)
    made = tables.pop("made", None)
    if made is None:
        return load_partition(from_dict(tables))
    parties = tables["data"]["parties"]
    return split(made_up(**made), parties=parties, scale="none", validation_fraction=0)


def data_of(tables: dict[str, Any]) -> Partition:
    """The data of a column, kept for its next run."""
    wanted = {key: tables[key] for key in ("data", "made") if key in tables}
    return _data(msgspec.json.encode(wanted, order="deterministic").decode())


def joined(blocks: Sequence[Any]) -> Any:
    """All columns."""
    if any(sparse.issparse(block) for block in blocks):
        return sparse.hstack(blocks, format="csr").astype(np.float64)
    return np.hstack(blocks).astype(np.float64)


@cache
def optimum(data: Partition, l2: float) -> tuple[float, float]:
    """The least objective, and the test accuracy of its weights."""
    x, y = joined(data.train), np.where(data.y_train > 0, 1.0, -1.0)
    solver = "lbfgs" if sparse.issparse(x) else "newton-cholesky"
    model = LogisticRegression(C=1 / (len(y) * l2), fit_intercept=False, tol=1e-10, max_iter=5000, solver=solver)
    w = model.fit(x, y).coef_[0]
    value = float(np.mean(LOGISTIC.value(np.asarray(x @ w).ravel(), y))) + penalty(w, l2)
    margins = np.asarray(joined(data.test) @ w).ravel()
    return value, float(np.mean((margins > 0) == data.y_test))


# Runs


def trail(tables: dict[str, Any], goal: float, l2: float) -> Trail:
    """Run until the objective is at its goal, or to the limit."""
    data = data_of(tables)
    run = prepare(from_dict({key: value for key, value in tables.items() if key != "made"}), data)
    seen: list[tuple[float, float, float]] = []
    try:
        with one_thread():
            while run.simulator.advance(EVENTS):
                seen.append(_look(run, data, l2))
                if seen[-1][2] <= goal:
                    break
            else:
                seen.append(_look(run, data, l2))
    except TrainingDiverged:
        seen.append((inf, inf, inf))
    updates, clock, above = (list(values) for values in zip(*seen, strict=True))
    return Trail(updates, clock, above, _tested(run, data))


def _look(run: Run, data: Partition, l2: float) -> tuple[float, float, float]:
    parties = _parties(run)
    theta = sum(party.margins(block) for party, block in zip(parties, data.train, strict=True))
    y = np.where(data.y_train > 0, 1.0, -1.0)
    value = float(np.mean(LOGISTIC.value(theta, y))) + sum(penalty(party.estimator.w, l2) for party in parties)
    best = optimum(data, l2)[0]
    server: Any = run.simulator.nodes[0].role
    return float(server.progress.k), run.clock_s, (value - best) / best


def _tested(run: Run, data: Partition) -> float:
    theta = sum(party.margins(block) for party, block in zip(_parties(run), data.test, strict=True))
    return float(np.mean((np.asarray(theta) > 0) == data.y_test))


def _parties(run: Run) -> list[Any]:
    return [node.role for node in run.simulator.nodes[1:]]


def _all(job: Job, columns: Iterable[Column]) -> dict[tuple[str, str], list[tuple[dict[str, Any], Trail]]]:
    """Every row with every point of its grid in every column: (row, column) → points and their runs."""
    calls, keys = [], []
    trained = [row for row in job.rows() if row.set]  # without the row of the joined columns
    for column, row in product(columns, trained):
        tables = job.tables(column)
        goal, l2 = tables.pop("goal")["above"], tables["protocol"]["l2"]
        for point in _points(job, row):
            for seed in range(job.seeds):
                own = apply_overrides(tables, row.set | point | {"train.seed": seed})
                calls.append((own, goal, l2))
                keys.append((row.name, column.name, point))
    workers = job.workers if isinstance(job.workers, int) else 1
    found: dict[tuple[str, str], list[tuple[dict[str, Any], Trail]]] = {}
    ended: dict[int, Trail] = {}
    for number, told in enumerate(one for one in in_turn(trail, calls, workers) if one is not None):
        index, result = told
        if isinstance(result, str):
            raise RuntimeError(result)
        ended[index] = result
        row_name, column_name, _ = keys[index]
        job.tell(f"{job.item.id}: {row_name}, {column_name} ({number + 1} of {len(calls)} runs)")
    for index, (row_name, column_name, point) in enumerate(keys):
        found.setdefault((row_name, column_name), []).append((point, ended[index]))
    return found


def _points(job: Job, row: Row) -> list[dict[str, Any]]:
    if job.item.tune is None:
        return [{}]
    grid = job.item.tune.of(row, job.size)
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def _arrivals(job: Job, columns: Sequence[Column], axis: str) -> Found:
    """The best point of each row by its arrival at the goal, and its curve."""
    cells: list[Cell] = []
    curves: dict[str, dict[str, Curve]] = {}
    goals = {column.name: job.tables(column)["goal"]["above"] for column in columns}
    for (row, column), runs in _all(job, columns).items():
        points = list({repr(point): point for point, _ in runs}.values())
        arrivals = {
            repr(point): [run.arrival(goals[column], axis) for other, run in runs if other == point] for point in points
        }
        best = min(points, key=lambda point: _mean(arrivals[repr(point)]))
        edges = list(best) if len(points) > 1 and best in (points[0], points[-1]) else []
        cells.append(Cell(row=row, column=column, values=arrivals[repr(best)], chosen=best, edges=edges))
        shown = next(run for point, run in runs if point == best)
        kept = [(x, above) for x, above in zip(getattr(shown, axis), shown.above, strict=True) if 0 < above < 10]
        step = max(1, len(kept) // 80)
        kept = kept[::step]
        if len(kept) > 1:
            line = [[float(f"{x:.5g}") for x, _ in kept], [float(f"{y:.4g}") for _, y in kept]]
            curves.setdefault(column, {})[row] = line
    return cells, curves


def _mean(values: Sequence[float | None]) -> float:
    return inf if None in values else float(np.mean([value for value in values if value is not None]))


# Studies


def rounds(job: Job, columns: Sequence[Column]) -> Found:
    """Fig. 2: updates until the objective is at its goal."""
    return _arrivals(job, columns, "updates")


def clocked(job: Job, columns: Sequence[Column]) -> Found:
    """Fig. 3: time until the objective is at its goal."""
    return _arrivals(job, columns, "clock_s")


def speed_up(job: Job, columns: Sequence[Column]) -> Found:
    """Fig. 4: the time of one party over the time of q parties, with a q-th of the columns each."""
    cells, _ = _arrivals(job, columns, "clock_s")
    alone = {cell.row: cell.number for cell in cells if cell.column == columns[0].name}
    scaled = []
    for cell in cells:
        first, own = alone[cell.row], cell.number
        if first is None or own is None or inf in (first, own):
            lost = f"did not reach the goal with {columns[0].name if first == inf else cell.column}"
            scaled.append(msgspec.structs.replace(cell, values=[], fault=lost))
        else:
            scaled.append(msgspec.structs.replace(cell, values=[first / own]))
    return scaled, {}


def accuracy(job: Job, columns: Sequence[Column]) -> Found:
    """Table 4: the accuracy on the test rows beside that of the joined columns."""
    cells = []
    for (row, where), runs in _all(job, columns).items():
        best = min({repr(point): (point, run) for point, run in runs}.values(), key=lambda pair: pair[1].above[-1])[0]
        values: list[float | None] = [100 * run.accuracy for point, run in runs if point == best]
        cells.append(Cell(row=row, column=where, values=values, chosen=best))
    for column in columns:
        tables = job.tables(column)
        value = 100 * optimum(data_of(tables), tables["protocol"]["l2"])[1]
        cells.append(Cell(row="not federated", column=column.name, values=[value]))
    return cells, {}
