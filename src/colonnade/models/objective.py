"""What is minimised: cross-entropy, logistic loss, or an error of numbers, always as a mean over the batch.

    LossSpec    for a residual r of standardised labels
    squared     r²
    l1          |r|
    huber       r²/2 up to |r| = δ, then δ(|r| − δ/2) (P. J. Huber, 1964)

The server standardises regression targets with its training labels, so that one learning rate fits any unit.
Predictions and metrics are in the original unit.
"""

from typing import Literal

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from colonnade.data.task import Task
from colonnade.protocol.messages import Array

__all__ = ["LossSpec", "Objective"]


class LossSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The loss of a regression."""

    kind: Literal["squared", "l1", "huber"] = "squared"
    delta: float = 1.0  # δ of Huber's loss, in standard deviations of the training labels


class Objective:
    """The loss of a task, and how to turn an output into a prediction."""

    def __init__(
        self, task: Task, y_train: Array, scale: tuple[float, float] | None = None, error: LossSpec | None = None
    ) -> None:
        self.task, self._error = task, error or LossSpec()
        self._mean, self._spread = scale or (0.0, 1.0)
        if task.kind == "regression" and scale is None:
            self._mean, self._spread = float(np.mean(y_train)), float(np.std(y_train)) or 1.0

    @property
    def scale(self) -> tuple[float, float]:
        """The mean and spread of the targets; a run that continues keeps those of the earlier run."""
        return self._mean, self._spread

    def targets_in(self, y: Array) -> "TargetsIn":
        """Return the targets by row, converted on access: the labels may be in a file."""
        return TargetsIn(self, y)

    def targets(self, y: Array) -> Array:
        """Return labels in the form that `loss` takes."""
        y = np.asarray(y)
        match self.task.kind:
            case "multiclass":
                return y.astype(np.int64)
            case "binary":
                return y.astype(np.float32)
            case _:
                return ((y - self._mean) / self._spread).astype(np.float32)

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch of outputs (rows, outputs)."""
        return self._losses(output, targets, "mean")

    def row_losses(self, output: Tensor, targets: Tensor) -> Tensor:
        return self._losses(output, targets, "none")

    def _losses(self, output: Tensor, targets: Tensor, how: str) -> Tensor:
        match self.task.kind:
            case "multiclass":
                return functional.cross_entropy(output, targets, reduction=how)
            case "binary":
                real = targets.to(output.dtype)
                return functional.binary_cross_entropy_with_logits(output[:, 0], real, reduction=how)
            case _:
                return self._errors(output[:, 0], targets.to(output.dtype), how)

    def _errors(self, values: Tensor, targets: Tensor, how: str) -> Tensor:
        match self._error.kind:
            case "l1":
                return functional.l1_loss(values, targets, reduction=how)
            case "huber":
                return functional.huber_loss(values, targets, reduction=how, delta=self._error.delta)
            case _:
                return functional.mse_loss(values, targets, reduction=how)

    def predict(self, output: Tensor) -> Array:
        """Return probabilities (rows, classes), or values (rows,) for regression."""
        prediction: Array
        match self.task.kind:
            case "multiclass":
                prediction = torch.softmax(output.double(), 1).cpu().numpy()
            case "binary":
                ones = torch.sigmoid(output[:, 0].double())
                prediction = torch.stack([1 - ones, ones], 1).cpu().numpy()
            case _:
                prediction = (output[:, 0].double() * self._spread + self._mean).cpu().numpy()
        return prediction

    def predict_here(self, output: Array) -> Array:
        """Return the same as `predict`, up to rounding, for an array in this process's memory."""
        z: Array = output.astype(np.float64)
        match self.task.kind:
            case "multiclass":
                shares = np.exp(z - z.max(1, keepdims=True))
                prediction: Array = shares / shares.sum(1, keepdims=True)
            case "binary":
                prediction = np.empty((len(z), 2))
                prediction[:, 1] = np.exp(np.minimum(z[:, 0], 0)) / (1 + np.exp(-np.abs(z[:, 0])))  # cannot overflow
                prediction[:, 0] = 1 - prediction[:, 1]
            case _:
                prediction = z[:, 0] * self._spread + self._mean
        return prediction


class TargetsIn:
    """Targets by row; allocates nothing as large as all rows."""

    def __init__(self, objective: Objective, y: Array) -> None:
        self._objective, self._y = objective, y

    def __getitem__(self, rows: Array) -> Array:
        return self._objective.targets(self._y[rows])
