"""Metrics of a model; scikit-learn computes them, and is imported on first use because it takes a second."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from colonnade.data.task import Task
from colonnade.protocol.errors import ConfigError

__all__ = ["METRICS", "Metric", "default_metric", "measure", "require_metric"]

_CLASSES = ("binary", "multiclass")
TOP = 5


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
    "mae": Metric(("regression",), False, _mae),
    "rmse": Metric(("regression",), False, _rmse),
    "loss": Metric((*_CLASSES, "regression"), False, None),
}


def default_metric(task: Task) -> str:
    """Return the metric that a task uses by default."""
    return "rmse" if task.kind == "regression" else "accuracy"


def require_metric(name: str, task: Task) -> Metric:
    """Return the metric of this name; raises ConfigError if it does not fit the task."""
    fitting = sorted(key for key, metric in METRICS.items() if metric.fits(task))
    if name not in fitting:
        few = f"is always 1 with {len(task.classes)} classes; " if name == "top5" and task.classes else ""
        raise ConfigError("train.metric", name, f"{few}a {task.kind} task is judged by one of: {', '.join(fitting)}")
    return METRICS[name]


def measure(name: str, task: Task, y: Any, prediction: Any, loss: float) -> dict[str, float]:
    """Compute the chosen metric, and accuracy if it applies; `loss` is the objective's on the same rows."""
    compute = require_metric(name, task).compute
    if compute is None:
        values = {name: loss}
    elif not np.isfinite(prediction).all():
        values = {name: float("nan")}  # the training diverged: scikit-learn would raise
    else:
        values = {name: compute(y, prediction)}
    if task.kind in _CLASSES:
        values.setdefault("accuracy", _accuracy(y, prediction))
    return values
