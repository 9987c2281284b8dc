"""A party's columns and labels, to train and to test on; checked before anything starts."""

import hashlib

import numpy as np

from colonnade.algorithms.asysqn.block import Block
from colonnade.algorithms.asysqn.config import SAGA, LinearOptions
from colonnade.algorithms.asysqn.losses import FAR, LOSSES, Loss, at_zero, huber, probability
from colonnade.algorithms.evaluation import Scores
from colonnade.algorithms.method import PartySetup
from colonnade.algorithms.training import Training
from colonnade.data.task import Task
from colonnade.models.metrics import measure
from colonnade.privacy import masking
from colonnade.protocol.errors import ConfigError, DataError, TrainingDiverged
from colonnade.protocol.messages import Array

__all__ = ["Holdings", "predictions"]

PAPERS_L2 = 1e-4
REACH = 100.0  # times the largest label: the range of margins that a useful model may have


class Holdings:
    """A party's columns, its labels and the loss for them."""

    def __init__(self, setup: PartySetup[LinearOptions]) -> None:
        assert setup.y_train is not None and setup.y_test is not None and setup.task is not None
        _refuse_others_settings(setup)
        self._name, self._task = setup.name, setup.task
        intercept = setup.options.intercept and setup.index == 0  # one party holds it for all
        self.train, self.test = Block(setup.train, intercept), Block(setup.test, intercept)
        self.loss = _loss_of(setup.options, setup.task, setup.y_train)
        self.y = targets(setup.y_train, setup.task, self.loss, setup.name)
        self.y_test = targets(setup.y_test, setup.task, self.loss, setup.name)
        self.validation = setup.training.validation
        self._refuse_unusable()
        self.level = at_zero(self.loss, self.y)
        self.l2 = _l2_of(setup.options, setup.training)
        self.penalties = self.l2 if not intercept else self.l2 * _penalised(self.train.columns)  # by column
        self._refuse_overflow(setup)
        self.digest = _digest_of(self.y, self.y_test)

    def _refuse_unusable(self) -> None:
        if self.train.rows != len(self.y) or self.test.rows != len(self.y_test):
            raise DataError(f"{self._name}: {len(self.y)} labels for {self.train.rows} rows")
        if self.train.is_zero():
            raise DataError(
                f"{self._name}: all its columns are zero, so nothing can be learned from them; leave this party out"
            )

    def _refuse_overflow(self, setup: PartySetup[LinearOptions]) -> None:
        """Raise if margins could exceed the range of fixed point.

        f(w*) ≤ f(0) bounds ‖w*‖, which bounds every margin. On the way there, `encode` checks each value. The intercept
        has no penalty and no such bound, so only `encode` checks it. For columns in arbitrary units the bound says
        little, because a large column has a small weight. Measured steps therefore use a bound from the labels.
        """
        if setup.training.measured:
            largest = REACH * float(np.abs(self.y).max(initial=1.0))
        else:
            norm = float(np.sqrt(2.0 * self.level / self.l2)) if self.l2 > 0 else 1.0
            largest = max(self.train.largest_norm(), self.test.largest_norm()) * norm
        masking.check_bound(largest, len(setup.names), setup.options.fraction_bits)

    def judged(self, whole: bool) -> int:
        """The number of held-out rows in an evaluation."""
        return self.test.rows if whole or not self.validation else self.validation

    def judge(self, theta: Array, metrics: tuple[str, ...]) -> tuple[Scores, Scores | None]:
        """Scores of the validation rows (of all rows, if there are none), and of test rows that `theta` includes."""
        first = self.validation or len(theta)
        scores = self._scores(theta[:first], self.y_test[:first], metrics)
        return scores, self._scores(theta[first:], self.y_test[first:], metrics) if len(theta) > first else None

    def _scores(self, theta: Array, y: Array, metrics: tuple[str, ...]) -> Scores:
        if not len(theta):
            return Scores(float("nan"), dict.fromkeys(metrics, float("nan")))
        loss = float(np.mean(self.loss.value(theta, y)))
        start = max(at_zero(self.loss, y), self.level)
        if not loss <= FAR * start:
            raise TrainingDiverged(f"the loss of the held-out rows is {loss:.3g}; it was {start:.3g} at the start")
        labels = (y > 0).astype(np.int64) if self.loss.signed else y
        metric, *also = metrics
        return Scores(loss, measure(metric, self._task, labels, predictions(theta, self._task), loss, also))


def predictions(theta: Array, task: Task) -> Array:
    """Predictions in the form that metrics take: numbers, or a score for each of the two classes."""
    if task.kind == "regression":
        return theta
    score = probability(theta)
    return np.column_stack([1.0 - score, score])


def _loss_of(options: LinearOptions, task: Task, y_train: Array) -> Loss:
    if options.loss == "huber":
        return huber(options.huber_delta * (float(np.std(y_train)) or 1.0))
    if options.loss != "auto":
        return LOSSES[options.loss]
    return LOSSES["ridge" if task.kind == "regression" else "logistic"]


def _l2_of(options: LinearOptions, training: Training) -> float:
    """λ: as given; if not, 1/n, which is scikit-learn's C = 1, or the paper's value if a rate is given."""
    if options.l2 is not None:
        return options.l2
    return 1.0 / training.rows if training.measured else PAPERS_L2


def _penalised(columns: int) -> Array:
    """1 for each column, 0 for the intercept, which is the last."""
    ones = np.ones(columns)
    ones[-1] = 0.0
    return ones


def _refuse_others_settings(setup: PartySetup[LinearOptions]) -> None:
    """Raise for settings that belong to networks: they have no meaning for a linear model's step."""
    optimiser, regulariser = setup.training.party_optimisers[setup.index], setup.training.regularisers[setup.index]
    if regulariser.kind != "none":
        raise ConfigError(
            "train.regulariser", regulariser.kind, "linear methods use protocol.l2 instead; leave this key out"
        )
    if setup.training.sampling == "walk" and setup.options.estimator == SAGA:
        advice = "SAGA is biased on a walk, so it always draws its batches independently; use 'iid', or leave it out"
        raise ConfigError("train.sampling", "walk", advice)
    if optimiser.name != "sgd" or optimiser.options:
        raise ConfigError("train.optimiser", optimiser.name, "linear methods have their own step; leave this key out")


def targets(y: Array, task: Task | None, loss: Loss, party: str) -> Array:
    """Labels in the form that the loss takes: ±1, or real numbers."""
    if task is not None and task.kind != ("binary" if loss.signed else "regression"):
        raise ConfigError("protocol.loss", loss.name, _advice(task, loss))
    values = np.asarray(y, np.float64)
    if not loss.signed:
        return values
    found = set(np.unique(values).tolist())
    if not (found <= {0.0, 1.0} or found <= {-1.0, 1.0}):
        raise DataError(f"{party}: labels must be ±1 or 0–1 for protocol.loss = {loss.name!r}, not {sorted(found)[:5]}")
    return np.where(values > 0, 1.0, -1.0)


def _advice(task: Task, loss: Loss) -> str:
    if task.kind == "multiclass":
        return f"needs labels of two classes (±1 or 0–1); these labels have {len(task.classes)} classes"
    if loss.signed:
        return "needs labels of two classes; this label is a number, for which there are 'ridge' and 'huber'"
    return "needs a number as the label; this label has two classes: use 'logistic' or 'ls-svm'"


def _digest_of(*labels: Array) -> str:
    """The digest that parties compare: sha256 of the labels and of the number of labels in each part."""
    text = hashlib.sha256()
    for part in labels:
        text.update(len(part).to_bytes(8, "little"))
        text.update(np.ascontiguousarray(part, "<f8").tobytes())
    return text.hexdigest()
