"""AsySQN as scikit-learn estimators, over a list of parts, one for each party, trained in the simulator.

    model = AsySQNClassifier(l2=1e-4).fit([bank_columns, shop_columns, clinic_columns], y)
    model.predict_proba([bank_rows, shop_rows, clinic_rows])

Parts are arrays or scipy CSR with the same rows in the same order; nothing is scaled. The first party holds the
intercept, which has no penalty (`fit_intercept=False`: there is none). Settings that are left out have the method's
defaults: `l2` is then 1/n, scikit-learn's C = 1. All parties run in this process, so no data are kept apart: use it for
studies.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, column_or_1d

from colonnade.algorithms.asysqn.losses import probability
from colonnade.config.schema import from_dict
from colonnade.data import Encoder, Partition, Scaler, Task
from colonnade.experiments.run import Run, prepare
from colonnade.protocol.errors import TrainingDiverged
from colonnade.protocol.messages import Array

__all__ = ["AsySQNClassifier", "AsySQNRegressor"]


class _AsySQN(BaseEstimator):
    """Parameters and training of both estimators."""

    def __init__(
        self,
        method: str = "asysqn-svrg",
        *,
        l2: float | None = None,
        learning_rate: float | Literal["auto"] = "auto",
        batch_size: int | None = None,
        epochs: float = 30.0,
        memory: int = 10,
        masking: str = "on",
        fit_intercept: bool = True,
        random_state: int | None = 0,
    ) -> None:
        self.fit_intercept = fit_intercept
        self.method, self.l2, self.learning_rate, self.batch_size = method, l2, learning_rate, batch_size
        self.epochs, self.memory, self.masking, self.random_state = epochs, memory, masking, random_state

    def _fit(self, parts: Sequence[Any], y: Array, task: Task, loss: str) -> None:
        blocks = _checked(parts)
        check_consistent_length(*blocks, y)
        self.n_parts_ = len(blocks)
        self.n_features_in_ = sum(block.shape[1] for block in blocks)
        self._widths = [block.shape[1] for block in blocks]
        run = self._run(_partition(blocks, y, task), loss)
        self.summary_ = run.execute()
        if self.summary_["status"] == "diverged":
            raise TrainingDiverged(self.summary_["note"])
        roles: list[Any] = [node.role for node in run.simulator.nodes[1:]]
        self.coef_ = [role.estimator.w[:width] for role, width in zip(roles, self._widths, strict=True)]
        self.intercept_ = float(roles[0].estimator.w[-1]) if self.fit_intercept else 0.0
        self.n_iter_ = self.summary_["updates"]

    def _run(self, data: Partition, loss: str) -> Run:
        protocol: dict[str, Any] = {"name": self.method, "loss": loss, "masking": self.masking}
        protocol["intercept"] = bool(self.fit_intercept)
        if self.l2 is not None:
            protocol["l2"] = self.l2
        if "sqn" in self.method:
            protocol["memory"] = self.memory
        train = {
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "epochs": float(self.epochs),
            "eval_every": f"{2 * self.epochs} epochs",
            "metric": "loss",
            "seed": 0 if self.random_state is None else int(self.random_state),
        }
        return prepare(from_dict({"protocol": protocol, "train": train}), data)

    def _margins(self, parts: Sequence[Any]) -> Array:
        check_is_fitted(self, "coef_")
        blocks = _checked(parts)
        widths = [block.shape[1] for block in blocks]
        if widths != self._widths:
            raise ValueError(f"the parts have {widths} columns, but those of fit had {self._widths}")
        check_consistent_length(*blocks)
        theta: Array = sum(block @ w for block, w in zip(blocks, self.coef_, strict=True))
        return theta + self.intercept_


class AsySQNClassifier(ClassifierMixin, _AsySQN):
    """A classifier for two classes: logistic regression, or the least-squares SVM."""

    def __init__(
        self,
        method: str = "asysqn-svrg",
        *,
        loss: str = "logistic",
        l2: float | None = None,
        learning_rate: float | Literal["auto"] = "auto",
        batch_size: int | None = None,
        epochs: float = 30.0,
        memory: int = 10,
        masking: str = "on",
        fit_intercept: bool = True,
        random_state: int | None = 0,
    ) -> None:
        super().__init__(
            method,
            l2=l2,
            learning_rate=learning_rate,
            batch_size=batch_size,
            epochs=epochs,
            memory=memory,
            masking=masking,
            fit_intercept=fit_intercept,
            random_state=random_state,
        )
        self.loss = loss

    def fit(self, parts: Sequence[Any], y: Any) -> "AsySQNClassifier":
        """Train; each element of `parts` has the columns of one party."""
        y = column_or_1d(y)
        check_classification_targets(y)
        self.classes_, index = np.unique(y, return_inverse=True)
        if len(self.classes_) != 2:
            raise ValueError(f"y must have two classes, not {len(self.classes_)}")
        task = Task("binary", tuple(map(str, self.classes_)))
        self._fit(parts, index.astype(np.int64), task, self.loss)
        return self

    def decision_function(self, parts: Sequence[Any]) -> Array:
        """Return wᵀx + b."""
        return self._margins(parts)

    def predict(self, parts: Sequence[Any]) -> Array:
        """Return the class of each row."""
        positive = (self._margins(parts) >= 0).astype(np.int64)
        chosen: Array = self.classes_[positive]
        return chosen

    def predict_proba(self, parts: Sequence[Any]) -> Array:
        """Return (rows, 2); raises AttributeError unless the loss is logistic."""
        if self.loss != "logistic":
            raise AttributeError(f"loss = {self.loss!r} has no probabilities; use decision_function")
        p = probability(self._margins(parts))
        return np.column_stack([1.0 - p, p])


class AsySQNRegressor(RegressorMixin, _AsySQN):
    """Ridge regression."""

    def fit(self, parts: Sequence[Any], y: Any) -> "AsySQNRegressor":
        """Train; each element of `parts` has the columns of one party."""
        target = column_or_1d(y).astype(np.float64)
        if not np.isfinite(target).all():
            raise ValueError("y holds NaN or infinity")
        self._fit(parts, target, Task("regression", ()), "ridge")
        return self

    def predict(self, parts: Sequence[Any]) -> Array:
        """Return (rows,) in the unit of `y`."""
        return self._margins(parts)


def _checked(parts: Sequence[Any]) -> list[Any]:
    """Check that every part is a finite 2-D array, or CSR."""
    if isinstance(parts, np.ndarray) or sparse.issparse(parts) or not isinstance(parts, Sequence) or not parts:
        raise ValueError("must be a list with one array or sparse matrix for each party")
    return [check_array(part, accept_sparse="csr", dtype=np.float64) for part in parts]


def _partition(blocks: list[Any], y: Array, task: Task) -> Partition:
    """Make a partition in which all rows are training rows."""
    names = tuple(f"party-{place + 1}" for place in range(len(blocks)))
    columns = tuple(tuple(f"x{i}" for i in range(block.shape[1])) for block in blocks)
    widths = [block.shape[1] for block in blocks]
    edges = np.cumsum([0, *widths])
    return Partition(
        name="parts",
        parties=names,
        columns=columns,
        train=tuple(blocks),
        test=tuple(block[:0] for block in blocks),
        y_train=y,
        y_test=y[:0],
        task=task,
        encoders=tuple(Encoder(held, (None,) * len(held), None) for held in columns),
        scalers=tuple(Scaler(np.zeros(width), np.ones(width)) for width in widths),
        indices=tuple(np.arange(edges[i], edges[i + 1]) for i in range(len(blocks))),
        width=int(edges[-1]),
        shapes=tuple((width,) for width in widths),
    )
