"""Limits, learning rates and cadences that every method shares.

Rates follow VAFL Sec. 3: constant; c/√K with K the planned number of updates (Thm 1, 3);
and diminishing as 1/(k + K0) (Thm 2, 4), written so that the configured rate is the first one.
Two more rules are common for networks: a factor every n updates, and a half wave of a cosine (Loshchilov and Hutter,
2017, without restarts). Any rule may begin with a warm-up.
"""

from dataclasses import dataclass
from math import ceil, cos, pi, sqrt
from typing import Literal

from colonnade.models import LossSpec, OptimiserSpec, Regulariser
from colonnade.protocol.events import NANOSECONDS

__all__ = ["Cadence", "Every", "Rule", "StepRule", "Training"]

Unit = Literal["updates", "epochs", "seconds"]
Rule = Literal["constant", "inverse-sqrt", "inverse", "step", "cosine"]
SQUARED = LossSpec()


@dataclass(frozen=True, slots=True)
class Every:
    """An amount of training: a limit or an interval."""

    unit: Unit
    amount: float

    def updates(self, rows_per_update: int, rows_per_epoch: int) -> int | None:
        """Convert to updates of the global model; None if the unit is seconds."""
        if self.unit == "updates":
            return int(self.amount)
        if self.unit == "epochs":
            return ceil(self.amount * rows_per_epoch / rows_per_update)
        return None


@dataclass(frozen=True, slots=True)
class StepRule:
    """How a learning rate changes with the global update count k."""

    kind: Rule = "constant"
    K: int = 1  # planned updates
    K0: float = 1.0
    factor: float = 1.0  # of "step"
    every: int = 1  # updates
    warm_up: int = 0  # updates: the first ones have 1/n, 2/n, … of the rule's rate

    def rate(self, base: float, k: int) -> float:
        """Return η_k, which is above 0 if the base is."""
        rate = self._ruled(base, k)
        return rate * (k + 1) / self.warm_up if k < self.warm_up else rate

    def _ruled(self, base: float, k: int) -> float:
        match self.kind:
            case "constant":
                return base
            case "inverse-sqrt":
                return base / sqrt(self.K)
            case "step":
                return base * self.factor ** (k // self.every)
            case "cosine":  # a run may have more updates than planned; the rate then stays at the last one
                return base * 0.5 * (1 + cos(pi * min(k, self.K - 1) / self.K))
            case "inverse":
                return base * self.K0 / (k + self.K0)


@dataclass(frozen=True, slots=True)
class Training:
    """The resolved `[train]` section."""

    seed: int
    rows: int  # N, training rows
    batch_size: int
    server_rate: float
    party_rates: tuple[float, ...]
    server_optimiser: OptimiserSpec
    party_optimisers: tuple[OptimiserSpec, ...]
    regularisers: tuple[Regulariser, ...]
    rule: StepRule
    limit: Every
    eval_every: Every
    metric: str
    also: tuple[str, ...] = ()  # further metrics that every evaluation computes
    validation: int = 0  # validation rows, the first of the held-out rows; 0: evaluations use the test rows
    patience: int = 0  # the run ends after this many evaluations without improvement; 0: it runs to its limit
    until: float | None = None  # the run ends when an evaluation's metric is this good; None: it runs to its limit
    measured: bool = False  # learning_rate = "auto": each role measures its step size, starting from the rates
    party_dropout: float = 0.0  # p: the probability that the server replaces a party's block of a row by its fallback
    server_regulariser: Regulariser | None = None
    sampling: Literal["walk", "iid"] | None = None  # of batches; None: the method's own, mostly a walk
    loss: LossSpec = SQUARED  # of a regression

    @property
    def rows_per_epoch(self) -> int:
        """Party-rows in an epoch: N·M, over all parties."""
        return self.rows * len(self.party_rates)


class Cadence:
    """Decides when the next interval is complete, by updates or rows. For seconds the role sets a timer."""

    def __init__(self, every: Every, rows_per_epoch: int) -> None:
        self._unit, self._amount, self._rows_per_epoch = every.unit, every.amount, rows_per_epoch
        self.count = 1  # number of the interval in progress

    def due(self, updates: int, rows: int) -> bool:
        """Whether the current interval is complete; if so, start the next one. Always False for seconds."""
        if self._unit == "seconds":
            return False
        done = updates if self._unit == "updates" else rows / self._rows_per_epoch
        if done < self.count * self._amount:
            return False
        self.count = max(self.count, int(done // self._amount)) + 1  # float division may give one less
        return True

    def timer(self) -> int | None:
        """Return the time (ns) at which the current interval is complete; None if the unit is not seconds."""
        return round(self.count * self._amount * NANOSECONDS) if self._unit == "seconds" else None
