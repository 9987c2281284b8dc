"""Any method as a scikit-learn estimator, over a block of columns for each party, in the simulator.

    model = VerticalClassifier(protocol="vafl").fit({"bank": bank_frame, "shop": shop_array}, y)
    model.predict_proba({"bank": new_bank_rows, "shop": new_shop_rows})

Blocks are arrays, scipy CSR or DataFrames with the same rows in the same order, in a list or in a dict by the parties'
names. All parties run in this process, so no data are kept apart: use it for studies. scikit-learn's own splitters
cannot split lists of blocks, so cross_val_score and pipelines do not work; clone, get_params and set_params do.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from colonnade.algorithms import DEFAULT_METHOD
from colonnade.api import Model, Result, train
from colonnade.data import Blocks, Partition, Task, named_blocks, partition_of
from colonnade.data.task import classification
from colonnade.protocol.errors import ConfigError, DataError
from colonnade.protocol.messages import Array

__all__ = ["VerticalClassifier", "VerticalRegressor"]


class _Vertical(BaseEstimator):
    """Parameters and training of both estimators.

    `settings` holds further keys of `colonnade.train`, such as `clock`, `privacy`, `embedding` or `optimiser`.
    """

    def __init__(
        self,
        protocol: str | Mapping[str, Any] = DEFAULT_METHOD,
        party_model: Model | Sequence[Model] | None = None,
        server_model: Model | None = None,
        *,
        epochs: float | None = None,
        learning_rate: float | None = None,
        batch_size: int | None = None,
        scale: str | None = None,
        missing: str = "refuse",
        categorical: Sequence[str] = (),
        validation_fraction: float = 0.1,
        settings: Mapping[str, Any] | None = None,
        random_state: int = 0,
    ) -> None:
        self.protocol, self.party_model, self.server_model = protocol, party_model, server_model
        self.epochs, self.learning_rate, self.batch_size = epochs, learning_rate, batch_size
        self.scale, self.missing, self.categorical = scale, missing, categorical
        self.validation_fraction, self.settings, self.random_state = validation_fraction, settings, random_state

    def _fit(self, blocks: Blocks, y: Array, task: Task) -> None:
        data = self._partition(blocks, y, task)
        given = {"epochs": self.epochs, "learning_rate": self.learning_rate, "batch_size": self.batch_size}
        settings: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        settings |= {"seed": int(self.random_state)} | dict(self.settings or {})
        self.result_: Result = train(data, self.protocol, self.party_model, self.server_model, **settings)
        self.parties_ = data.parties
        self.n_features_in_ = data.width

    def _partition(self, blocks: Blocks, y: Array, task: Task) -> Partition:
        """Train on all rows except the validation rows, which decide when to stop; these also serve as test rows."""
        if not 0 < self.validation_fraction < 1:
            raise ConfigError("validation_fraction", self.validation_fraction, "must lie between 0 and 1")
        if len(y) < 2:
            raise DataError(f"{len(y)} row cannot be split into one to train and one to validate on")
        order = np.random.Generator(np.random.PCG64(int(self.random_state))).permutation(len(y))
        held = min(max(round(len(y) * self.validation_fraction), 1), len(y) - 1)
        rows = order[held:], np.concatenate([order[:held], order[:held]])
        return partition_of(named_blocks(blocks), y, task, rows, held, self.categorical, self.scale, self.missing)

    def _outputs(self, blocks: Blocks) -> Array:
        check_is_fitted(self, "result_")
        named = named_blocks(blocks)
        if isinstance(blocks, Mapping) and set(named) != set(self.parties_):
            raise DataError(f"blocks are of {sorted(named)}, but fit had {list(self.parties_)}")
        return self.result_.predict(named if isinstance(blocks, Mapping) else list(named.values()))


class VerticalClassifier(ClassifierMixin, _Vertical):
    """A classifier for two or more classes; labels may be numbers or words.

    Fitted: `classes_`, `parties_`, `n_features_in_`, and `result_`, which has the summary and the curves.
    """

    def fit(self, blocks: Blocks, y: Any) -> Self:
        """Train on a block of columns for each party."""
        labels = column_or_1d(y)
        check_classification_targets(labels)
        self.classes_, index = np.unique(labels, return_inverse=True)
        self._fit(blocks, index.astype(np.int64), classification(tuple(map(str, self.classes_))))
        return self

    def predict_proba(self, blocks: Blocks) -> Array:
        """Return (rows, classes), in the order of `classes_`."""
        return self._outputs(blocks)

    def predict(self, blocks: Blocks) -> Array:
        """Return the likeliest class of each row."""
        index = self.predict_proba(blocks).argmax(axis=1)
        chosen: Array = self.classes_[index]
        return chosen


class VerticalRegressor(RegressorMixin, _Vertical):
    """A regressor: one number for each row.

    Fitted: `parties_`, `n_features_in_`, and `result_`, which has the summary and the curves.
    """

    def fit(self, blocks: Blocks, y: Any) -> Self:
        """Train on a block of columns for each party."""
        target = column_or_1d(y).astype(np.float32)
        if not np.isfinite(target).all():
            raise DataError("y holds NaN or infinity")
        self._fit(blocks, target, Task("regression", ()))
        return self

    def predict(self, blocks: Blocks) -> Array:
        """Return (rows,) in the unit of `y`."""
        return self._outputs(blocks)
