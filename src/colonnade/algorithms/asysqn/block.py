"""One party's columns in a form for linear algebra: float64, dense or CSR, never densified.

One party of a federation holds the intercept: a last column of ones, which only this party knows of.
"""

from typing import Any

import numpy as np
from scipy import sparse

from colonnade.algorithms.asysqn.padding import padded
from colonnade.protocol.messages import Array

__all__ = ["Block"]


class Block:
    """The rows of one party."""

    def __init__(self, x: Any, intercept: bool = False) -> None:
        floats = padded(_as_floats(x))
        self.x, self.intercept = _with_ones(floats) if intercept else floats, intercept
        self.rows, self.columns = self.x.shape
        self._indptr = self.x.indptr if sparse.issparse(self.x) else None

    @property
    def nonzeros(self) -> int:
        """Stored numbers, which a pass over all rows touches."""
        return int(self.rows * self.columns if self._indptr is None else self.x.nnz)

    def cost(self, rows: Array) -> int:
        """Numbers that a pass over these rows touches."""
        if self._indptr is None:
            return len(rows) * int(self.columns)
        return int((self._indptr[rows + 1] - self._indptr[rows]).sum())

    def take(self, rows: Array) -> Any:
        """Some rows, (b, d_ℓ)."""
        return self.x.take(rows, axis=0) if self._indptr is None else self.x[rows]

    def margins(self, w: Array, rows: Array | None = None) -> Array:
        """θ^ℓ = w_ℓᵀx_{i,ℓ}."""
        theta: Array = (self.x if rows is None else self.take(rows)) @ w
        return theta

    def largest_norm(self) -> float:
        """max ‖x_{i,ℓ}‖, without the intercept's 1."""
        if self._indptr is None:
            squares = np.einsum("nd,nd->n", self.x, self.x)
        else:
            squares = np.asarray(self.x.multiply(self.x).sum(1)).ravel()
        return float(np.sqrt(max(squares.max(initial=0.0) - self.intercept, 0.0)))

    def is_zero(self) -> bool:
        """Whether all columns are zero, so that there is nothing to learn from."""
        stored = self.x.data if self._indptr is not None else self.x
        return bool(np.count_nonzero(stored) == self.rows * self.intercept)


def _with_ones(x: Any) -> Any:
    """The columns with a column of ones appended."""
    if sparse.issparse(x):
        return sparse.hstack([x, sparse.csr_array(np.ones((x.shape[0], 1)))], format="csr")
    return np.hstack([x, np.ones((x.shape[0], 1))])


def _as_floats(x: Any) -> Any:
    if sparse.issparse(x):
        return sparse.csr_array(x, dtype=np.float64)
    return np.asarray(x, np.float64)
