"""Metrics of a model; scikit-learn computes most of them, and is imported on first use because it takes a second.

The second of two classes is the positive one. With more classes, `f1` and `pr-auc` are means over the classes, each
against the rest, and every class counts the same.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from colonnade.data.task import Task
from colonnade.protocol.errors import ConfigError

__all__ = ["METRICS", "Metric", "default_metric", "measure", "require_also", "require_metric"]

_CLASSES = ("binary", "multiclass")
TOP = 5
BINS = 15  # of `ece`


class Metric(NamedTuple):
    """A number computed from labels and predictions."""

    tasks: tuple[str, ...]
    higher_is_better: bool
    compute: Callable[[Any, Any], float] | None  # None: the objective's own loss on the evaluated rows
    least_classes: int = 0

    def fits(self, task: Task) -> bool:
        """Whether the metric is defined for the task."""
        return task.kind in self.tasks and len(task.classes) >= self.least_classes

    def reached(self, value: float, target: float) -> bool:
        """Whether `value` is as good as `target`."""
        return value >= target if self.higher_is_better else value <= target


def _accuracy(y: Any, prediction: Any) -> float:
    return float(np.mean(prediction.argmax(1) == y))


def _top5(y: Any, prediction: Any) -> float:
    from sklearn.metrics import top_k_accuracy_score

    return float(top_k_accuracy_score(y, prediction, k=TOP, labels=np.arange(prediction.shape[1])))


def _auc(y: Any, prediction: Any) -> float:
    if len(np.unique(y)) < prediction.shape[1]:
        return float("nan")  # a class without test rows
    from sklearn.metrics import roc_auc_score

    score = prediction[:, 1] if prediction.shape[1] == 2 else prediction
    return float(roc_auc_score(y, score, multi_class="ovr"))


def _f1(y: Any, prediction: Any) -> float:
    from sklearn.metrics import f1_score

    classes, chosen = prediction.shape[1], prediction.argmax(1)
    if classes == 2:
        return float(f1_score(y, chosen, zero_division=0.0))
    return float(f1_score(y, chosen, labels=np.arange(classes), average="macro", zero_division=0.0))


def _pr_auc(y: Any, prediction: Any) -> float:
    """Return the average precision: the area below the precision-recall curve, without interpolation."""
    classes = prediction.shape[1]
    if len(np.unique(y)) < classes:
        return float("nan")  # a class without rows
    from sklearn.metrics import average_precision_score

    if classes == 2:
        return float(average_precision_score(y, prediction[:, 1]))
    return float(np.mean([average_precision_score(y == one, prediction[:, one]) for one in range(classes)]))


def _brier(y: Any, prediction: Any) -> float:
    """Return the mean squared error of the probabilities: of the positive class, or summed over more classes."""
    if prediction.shape[1] == 2:
        return float(np.mean(np.square(prediction[:, 1] - y)))
    return float(np.mean(np.square(prediction - (y[:, None] == np.arange(prediction.shape[1]))).sum(1)))


def _ece(y: Any, prediction: Any) -> float:
    """Return the expected calibration error (Guo et al., 2017): the mean of |accuracy − confidence| over equal bins.

    The confidence is the largest probability; the bins weigh as many rows as they hold.
    """
    confidence, right = prediction.max(1), prediction.argmax(1) == y
    place = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)  # (a, b], as in the paper
    gaps = np.bincount(place, right - confidence, BINS)
    return float(np.abs(gaps).sum() / len(y))


def _mae(y: Any, prediction: Any) -> float:
    from sklearn.metrics import mean_absolute_error

    return float(mean_absolute_error(y, prediction))


def _rmse(y: Any, prediction: Any) -> float:
    from sklearn.metrics import root_mean_squared_error

    return float(root_mean_squared_error(y, prediction))


METRICS: dict[str, Metric] = {
    "accuracy": Metric(_CLASSES, True, _accuracy),
    "top5": Metric(("multiclass",), True, _top5, least_classes=TOP + 1),  # with five classes it is always 1
    "auc": Metric(_CLASSES, True, _auc),
    "f1": Metric(_CLASSES, True, _f1),
    "pr-auc": Metric(_CLASSES, True, _pr_auc),
    "brier": Metric(_CLASSES, False, _brier),
    "ece": Metric(_CLASSES, False, _ece),
    "mae": Metric(("regression",), False, _mae),
    "rmse": Metric(("regression",), False, _rmse),
    "loss": Metric((*_CLASSES, "regression"), False, None),
}


def default_metric(task: Task) -> str:
    """Return the metric that a task uses by default."""
    return "rmse" if task.kind == "regression" else "accuracy"


def require_metric(name: str, task: Task, key: str = "train.metric") -> Metric:
    """Return the metric of this name; raises ConfigError if it does not fit the task."""
    fitting = sorted(key for key, metric in METRICS.items() if metric.fits(task))
    if name not in fitting:
        few = f"is always 1 with {len(task.classes)} classes; " if name == "top5" and task.classes else ""
        raise ConfigError(key, name, f"{few}a {task.kind} task is judged by one of: {', '.join(fitting)}")
    return METRICS[name]


def require_also(names: Sequence[str], task: Task) -> None:
    """Raise ConfigError for a further metric that does not fit the task, or is given twice."""
    for name in names:
        require_metric(name, task, "train.also")
    if len(set(names)) < len(names):
        raise ConfigError("train.also", list(names), "names a metric twice")


def measure(
    name: str, task: Task, y: Any, prediction: Any, loss: float, also: Sequence[str] = ()
) -> dict[str, float]:  # fmt: skip
    """Compute the chosen metric, the further ones, and accuracy if it applies; `loss` is the objective's own."""
    values = {one: _computed(one, task, y, prediction, loss) for one in (name, *also)}
    if task.kind in _CLASSES:
        values.setdefault("accuracy", _accuracy(y, prediction))
    return values


def _computed(name: str, task: Task, y: Any, prediction: Any, loss: float) -> float:
    compute = require_metric(name, task).compute
    if compute is None:
        return loss
    if not np.isfinite(prediction).all():
        return float("nan")  # the training diverged: scikit-learn would raise
    return compute(y, prediction)
