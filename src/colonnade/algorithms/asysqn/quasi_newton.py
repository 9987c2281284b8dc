"""Stochastic damped L-BFGS on one party: AsySQN Alg. 1, Eq. (12), (13).

    paper                     here
    s_{k−1} = w_k − w_{k−1}   `s` of `add`: the last step of this party's block
    ȳ_{k−1}                   `y` of `add`: what `curvature` gives
    γ_k                       `gamma`: max(ȳᵀȳ / sᵀȳ, δ), of the newest pair
    p = min(m, k−1)           `len(memory)`
    u_i, v̄_i, μ_i, ν_i        the vectors and scalars of the two loops

# DEVIATION: indices of Alg. 1 l. 9–10 (k−m+i, m−i−1) hold only for k > m; with p in the place of m they hold always.
# DEVIATION: (12) has γ_{k−1} and (13) γ_k; with the same γ_k in both, sᵀŷ ≥ 0.3σ > 0 follows.
# DEVIATION: the printed ȳ = v_k − v_{k−1} is a difference over two batches and mostly noise: damping bounds sᵀŷ, not
# ‖ŷ‖, and training stalls or diverges. The default is `curvature`; for the printed form, the caller passes that
# difference to `add`.
"""

from math import inf, isfinite, sqrt
from typing import Any

import numpy as np
from scipy.linalg.blas import daxpy as add_multiple

from colonnade.protocol.messages import Array

__all__ = ["Memory", "curvature"]

LEAST, REST = 0.3, 0.7  # (13): sᵀŷ is at least LEAST·σ
NO_STEP = 1e-200  # least sᵀs: below it, 1/(sᵀŷ) would overflow


def curvature(x: Any, second_derivatives: Array, s: Array, l2: float | Array) -> Array:
    """ȳ = X_ℓᵀ diag(σ′) X_ℓ s / b + λs: the Hessian of this party's block, of one batch, times s.

    `x` is the batch (b, d_ℓ), dense or scipy CSR. σ′ (b,) is taken at margins that the party already has, so nothing is
    sent. λ may differ from column to column.
    """
    weighted = second_derivatives * (x @ s)
    y: Array = (x.T @ weighted) / x.shape[0]
    y += l2 * s
    return y


class Memory:
    """The newest m pairs (s, ŷ), which stand for H_k; with m = 0, or before the first pair, H is I/`gamma`."""

    def __init__(self, m: int, delta: float, gamma: float = 1.0) -> None:
        self.m, self.delta, self.gamma = m, delta, gamma
        self._s = self._y = np.zeros((m, 0))  # (m, d_ℓ) from the first pair on
        self._rho = np.zeros(m)
        self._added = 0

    def __len__(self) -> int:
        return min(self._added, self.m)

    def add(self, s: Array, y: Array) -> bool:
        """Alg. 1 l. 1–2: damp the pair and replace the oldest one; False if there was no step."""
        ss, sy, yy = float(s @ s), float(s @ y), float(y @ y)
        if self.m == 0 or not NO_STEP < ss < inf or not isfinite(yy):
            return False
        if self._added == 0:
            self._s, self._y = np.zeros((self.m, len(s))), np.zeros((self.m, len(s)))
        place = self._added % self.m
        self.gamma = self._scale(ss, sy, yy)
        sigma = self.gamma * ss
        self._s[place], self._y[place] = s, y
        if sy < LEAST * sigma:
            share = REST * sigma / (sigma - sy)  # the paper's θ_{k−1}
            self._y[place] *= share
            add_multiple(s, self._y[place], a=(1.0 - share) * self.gamma)
            sy = LEAST * sigma  # the new sᵀŷ, without the rounding error of a difference
        self._rho[place] = 1.0 / sy
        self._added += 1
        return True

    def direction(self, v: Array) -> Array:
        """Alg. 1 l. 3–11: d = H_k v_k, always a new array."""
        u = np.array(v, np.float64)
        if not len(self):
            u /= self.gamma
            return u
        newest_first = [(self._added - 1 - i) % self.m for i in range(len(self))]
        mu = []
        for i in newest_first:
            mu.append(self._rho[i] * (u @ self._s[i]))
            add_multiple(self._y[i], u, a=-mu[-1])  # in place
        u /= self.gamma  # l. 7: now v̄_0
        for i, mu_i in zip(reversed(newest_first), reversed(mu), strict=True):
            nu = self._rho[i] * (u @ self._y[i])
            add_multiple(self._s[i], u, a=mu_i - nu)
        return u

    def save(self) -> dict[str, Any]:
        """The pairs as arrays (not copied)."""
        return {"s": self._s, "y": self._y, "rho": self._rho, "gamma": self.gamma, "added": self._added}

    def load(self, saved: dict[str, Any]) -> None:
        self._s, self._y, self._rho = (saved[name].copy() for name in ("s", "y", "rho"))
        self.gamma, self._added = saved["gamma"], saved["added"]

    def _scale(self, ss: float, sy: float, yy: float) -> float:
        """γ_k = max(ȳᵀȳ / sᵀȳ, δ); also δ if sᵀȳ is only rounding error, or there is no curvature."""
        rounding = float(np.finfo(np.float64).eps) * sqrt(ss) * sqrt(yy)
        return max(yy / sy, self.delta) if sy > rounding else self.delta
