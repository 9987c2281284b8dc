"""The gradient estimators of Alg. 3–5, and one step with each.

All three are v = Xᵀ_I(∂L/∂θ_I − r_I)/b + Xᵀr/n + λw with reference slopes r, one scalar per row:

    SGD    r = 0
    SVRG   r = ∂L/∂θ at the snapshot θ(w^s): Xᵀr/n + λw^s is the full gradient (Alg. 4 l. 3, 7)
    SAGA   r_i = ∂L/∂θ_i when row i was last in a batch; Xᵀr/n is kept up to date (Alg. 5 l. 5, 8)

λ is 0 for the intercept: a last column of ones, at one party (`Block`). Steps, pairs and directions are of u = w/gains
(`scale`). If the config gives the rate, gains are 1.

v is unbiased whatever r is. A party that restarts may therefore take r at w = 0, where θ needs no aggregation: θ is the
intercept that training starts from (0 if the config gives the rate).

# DEVIATION: Alg. 5 stores gradients. For a linear model these are the slope times x_i, so one scalar per row is enough.
# DEVIATION: batches of SGD and SVRG are walks through permutations, not independent draws (Alg. 3 l. 2). SAGA's batches
# are independent draws (see `draws`), but without the same row twice in a batch.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from colonnade.algorithms.asysqn.config import SAGA, SGD, LinearOptions
from colonnade.algorithms.asysqn.extrapolation import Snapshots, best_coefficients, window_of
from colonnade.algorithms.asysqn.holdings import Holdings
from colonnade.algorithms.asysqn.losses import FAR, at_zero, penalty
from colonnade.algorithms.asysqn.messages import Extrapolated, FullPass, FullPassed, Step, StepMade
from colonnade.algorithms.asysqn.quasi_newton import Memory, curvature
from colonnade.algorithms.asysqn.scale import GIVEN, Scale
from colonnade.models.continued import Continued
from colonnade.protocol.errors import ConfigError, TrainingDiverged
from colonnade.protocol.finite import all_finite
from colonnade.protocol.messages import Array
from colonnade.protocol.saved import form_of

__all__ = ["Estimator", "Learnt", "OwnNumbersDiverged"]

NOTHING = np.zeros(0)
RECENT = 0.95  # weight of the past in a mean over recent batches: about the last twenty


class OwnNumbersDiverged(TrainingDiverged):
    """One party's own numbers diverged, whatever those of the others are."""


@dataclass(slots=True, kw_only=True)
class Learnt:
    """The values that steps and references change."""

    w: Array  # replaced, never changed in place: jobs read it
    steps: int = 0
    reference: Array = field(default_factory=lambda: NOTHING)  # r
    mean: Array = field(default_factory=lambda: NOTHING)  # Xᵀr/n
    before: Array = field(default_factory=lambda: NOTHING)  # v_{k−1}, for the printed curvature
    step_before: Array = field(default_factory=lambda: NOTHING)  # s_{k−1}
    loss: float = 0.0  # smoothed loss of recent batches
    start: float = 0.0  # smoothed loss of the same batches at w = 0
    snapshots: Snapshots = field(default_factory=Snapshots)


_FORM = form_of(Learnt)


class Estimator:
    """w_ℓ, its memory of curvature and its reference slopes."""

    def __init__(
        self, held: Holdings, options: LinearOptions, scale: Scale = GIVEN, extrapolates: bool = False
    ) -> None:
        self._block, self._y, self._loss, self._options = held.train, held.y, held.loss, options
        self._level, self._l2, self._penalties = held.level, held.l2, held.penalties
        self.scale, self._window = scale, window_of(held.train.rows) if extrapolates else 0
        self.state = Learnt(w=np.zeros(self._block.columns))
        if self._block.intercept:
            self.state.w[-1] = scale.start
        self.memory = Memory(options.memory, max(options.delta, scale.floor), scale.smoothness)

    def begin_at(self, before: Continued, columns: int, who: str) -> None:
        """Start from the weights of an earlier run; references and curvature start empty."""
        w = self.state.w.copy()
        w[:columns] = before.vector(columns, f"model.party of {who}")
        had, has = "bias" in before.tensors, self._block.intercept
        if had != has:
            whose = "held the intercept in the earlier run" if had else "did not hold the intercept in the earlier run"
            advice = "the first party holds it: keep the same party first, and the same protocol.intercept"
            raise ConfigError("network.parties", who, f"{who} {whose}; {advice}")
        if has:
            w[-1] = float(before.tensors["bias"][0])
        self.state.w = w

    def trained(self, columns: int) -> dict[str, Array]:
        """Return w_ℓ without padding, and the intercept if this party holds it."""
        weights = {"weight": self.w[:columns].copy()}
        return weights | ({"bias": self.w[-1:].copy()} if self._block.intercept else {})

    @property
    def w(self) -> Array:
        return self.state.w

    @property
    def steps(self) -> int:
        """The number of steps that led to `w`."""
        return self.state.steps

    @property
    def wants_reference(self) -> bool:
        """Whether a reference is missing, so that it cannot step yet."""
        return self._options.estimator != SGD and not len(self.state.reference)

    @property
    def extra(self) -> int:
        """How many numbers follow the margins of a snapshot."""
        return self._window + 2 if self._window else 0

    # Pure functions, for jobs.

    def snapshot(self, history: list[int]) -> Array:
        """θ^ℓ of all rows, and what extrapolation needs."""
        theta = self._block.margins(self.w)
        if not self._window:
            return theta
        tail = self.state.snapshots.tail(self.w, self._penalties, history, self._window)
        return np.concatenate([theta, tail])

    def full_pass(self, job: FullPass) -> FullPassed:
        """Alg. 4 l. 3, Alg. 5 l. 2: the data part of the full gradient, at the snapshot or at a better point."""
        rows = self._block.rows
        theta, tail = job.theta[:rows], job.theta[rows:]
        if not len(theta):
            theta = np.full(rows, self.scale.start)
        if not job.barrier:
            return FullPassed(*self._gradient(theta))
        row = self.state.snapshots.row(tail, job.parties)
        taken = self.state.snapshots.renewed(job.barrier, self.w, theta, row, self._window)
        error = 0.5 * job.parties * 2.0**-self._options.fraction_bits
        a = best_coefficients(taken.thetas, taken.gram, self._loss, self._y, error) if len(row) > 1 else None
        w, there = taken.moved(a) if a is not None else (NOTHING, theta)
        return Extrapolated(*self._gradient(there), job.barrier, theta, row, w)

    def _gradient(self, theta: Array) -> tuple[Array, Array]:
        slopes = self._loss.derivative(theta, self._y)
        return slopes, (self._block.x.T @ slopes) / self._block.rows

    def step(self, job: Step, rate: float) -> StepMade:
        """Alg. 3 l. 4–6, Alg. 4 l. 7–9, Alg. 5 l. 5–7."""
        rows, theta, penalties = job.rows, job.theta, self._penalties
        state, gains = self.state, self.scale.gains
        x, y, w = self._block.take(rows), self._y[rows], state.w
        slopes = self._loss.derivative(theta, y)
        against = slopes - state.reference[rows] if len(state.reference) else slopes
        difference = (x.T @ against) / len(rows)
        v = difference + penalties * w
        if len(state.mean):
            v += state.mean
        v *= gains
        memory = self._with_printed_pair(v)
        s = memory.direction(v)
        s *= -rate
        y_bar = NOTHING
        if self._options.memory and self._options.curvature == "batch":
            y_bar = curvature(x, self._loss.second_derivative(theta, y), s * gains, penalties)
            y_bar *= gains
        made = StepMade(
            s,
            y_bar,
            v if self._options.curvature == "printed" else NOTHING,
            slopes,
            difference,
            float(self._loss.value(theta, y).mean()) + self._penalty(w),
            max(at_zero(self._loss, y), self._level),
        )
        self._refuse_divergence(made)
        return made

    def _penalty(self, w: Array) -> float:
        """λ/2‖w‖², without the intercept."""
        return penalty(w[: len(w) - self._block.intercept], self._l2)

    def _refuse_divergence(self, made: StepMade) -> None:
        """Raise if the smoothed loss is too high. A single small batch may be bad, and ridge's rows differ in cost."""
        if not all_finite(made.s):
            raise OwnNumbersDiverged("its step is not finite")
        loss, start = self._recent(made)
        if loss > FAR * start:
            own = self._penalty(self.state.w) > FAR * made.start  # its weights alone cost that much
            kind = OwnNumbersDiverged if own else TrainingDiverged
            raise kind(f"the loss of its recent batches is {loss / start:.0f} times that of the start")

    def _recent(self, made: StepMade) -> tuple[float, float]:
        return RECENT * self.state.loss + made.loss, RECENT * self.state.start + made.start

    def _with_printed_pair(self, v: Array) -> Memory:
        """Alg. 1 as printed: the newest pair has ȳ = v_k − v_{k−1}, which is known only now."""
        if self._options.curvature != "printed" or not len(self.state.before):
            return self.memory
        memory = Memory(self.memory.m, self.memory.delta)
        memory.load(self.memory.save())
        memory.add(self.state.step_before, v - self.state.before)
        return memory

    # State changes, for handlers of results.

    def learn(self, rows: Array, made: StepMade) -> None:
        """w_ℓ ← w_ℓ − γd_ℓ; also updates memory, reference and losses."""
        state = self.state
        state.w = state.w + made.s * self.scale.gains
        state.steps += 1
        state.loss, state.start = self._recent(made)
        if len(made.y):
            self.memory.add(made.s, made.y)
        if len(made.v):
            if len(state.before):
                self.memory.add(state.step_before, made.v - state.before)
            state.before, state.step_before = made.v, made.s
        if self._options.estimator == SAGA:  # Alg. 5 l. 8
            state.mean = state.mean + made.difference * (len(rows) / self._block.rows)
            state.reference[rows] = made.slopes

    def refer(self, passed: FullPassed) -> None:
        """Use these slopes as the reference from now on."""
        state = self.state
        state.reference = np.array(passed.slopes)  # a copy, because SAGA changes it
        state.mean = passed.mean
        if isinstance(passed, Extrapolated):
            taken = passed.barrier, state.w, passed.theta, passed.row
            state.snapshots = state.snapshots.renewed(*taken, self._window)
            state.w = passed.w if len(passed.w) else state.w

    def forget_snapshots(self) -> None:
        """Extrapolate from later snapshots only: those so far are over other parties."""
        self.state.snapshots = Snapshots()

    def save(self) -> dict[str, Any]:
        return {"learnt": _FORM.plain(self.state), "memory": self.memory.save()}

    def load(self, saved: dict[str, Any]) -> None:
        self.state = _FORM.typed(saved["learnt"])
        self.state.reference = np.array(self.state.reference)  # a copy, because SAGA changes it
        self.memory.load(saved["memory"])
