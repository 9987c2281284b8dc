"""A party without torch and without gradients: decision stumps in numpy, trained by loss differences alone.

    PYTHONPATH=examples colonnade compare examples/black_box.toml --protocols cascaded,frozen --seeds 3

A stump says whether a column lies above its threshold, yes or no; the embedding is a weighted sum of them. The
derivative by a threshold is zero wherever it exists, so that backpropagation would never move one. VFL-Cascaded's
parties only ask for the loss at other parameters, and a threshold that moves across a few rows changes it.
"""

import numpy as np
import numpy.typing as npt

__all__ = ["Stumps"]

Array = npt.NDArray[np.float32]


class Stumps:
    """inputs columns → outputs numbers; θ is a threshold for each column, then the weights, as one flat vector."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.inputs, self.outputs = inputs, outputs

    def initial(self, generator: np.random.Generator) -> Array:
        """Thresholds among standardised columns; weights so small that their sum is of order one."""
        thresholds = generator.normal(0.0, 0.5, self.inputs)
        weights = generator.normal(0.0, self.inputs**-0.5, self.inputs * self.outputs)
        return np.concatenate([thresholds, weights]).astype(np.float32)

    def __call__(self, theta: Array, rows: Array) -> Array:
        """Hard steps, and their weighted sum."""
        thresholds, weights = theta[: self.inputs], theta[self.inputs :].reshape(self.inputs, self.outputs)
        steps = np.where(rows > thresholds, np.float32(1), np.float32(-1))
        return steps @ weights
