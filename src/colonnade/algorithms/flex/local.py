"""Local steps between two bells: how many fit, with which optimiser, and what they weigh (Eq. 6–8).

    SGD        w_t = 1                          θ ← θ − η·g
    momentum   w_t = (1 − ρ^{τ−t})/(1 − ρ)      u ← ρ·u + g, θ ← θ − η·u; u is reset after the round
    proximal   w_t = (1 − ημ)^{τ−1−t}           θ ← θ − η·(g + μ(θ − θ^{r,0}))
    decaying   w_t = decay^t                    η falls from step to step

w̄ = max w_t is (1 − ρ^τ)/(1 − ρ) for momentum, and 1 for all others.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from colonnade.algorithms.flex.config import RoundOptions
from colonnade.algorithms.flex.messages import LocalStepped
from colonnade.models import MOMENTUM, OptimiserSpec
from colonnade.models.optimiser import Parameters
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.events import NANOSECONDS, Effect, Promised, SetTimer, once_made
from colonnade.protocol.messages import Array
from colonnade.protocol.saved import UNSAVED, Component

__all__ = ["BELL", "LOWER", "SGD", "STEP_ROUNDING_NS", "LocalPhase", "LocalRule", "Report", "local_rule"]

BELL = "bell"
STEP_ROUNDING_NS = 1  # a clock counts whole nanoseconds: six steps of 10/6 s take 2 ns more than 10 s
SGD = ("sgd", "SGD", "momentum")  # the names of the optimisers with a local momentum
LOWER = "lower train.learning_rate (every local step takes it: 'adaptive-flex' divides it by their number)"


@dataclass(frozen=True, slots=True)
class LocalRule:
    """A role's settings for local steps, in addition to torch's optimiser."""

    momentum: float  # ρ
    prox: float  # μ
    decay: float

    def largest_weight(self, steps: int) -> float:
        """Return w̄ after this many steps."""
        # DEVIATION: the printed exponent of the proximal weights, τ − t + 1, does not follow from their recursion.
        return (1 - self.momentum**steps) / (1 - self.momentum)


def local_rule(spec: OptimiserSpec, options: RoundOptions, party: int | None) -> tuple[OptimiserSpec, LocalRule]:
    """Return a role's local optimiser: its own choice in `optimiser`, else what `[protocol]` sets for all roles.

    Raises ConfigError if `protocol.momentum` is above 0 for a role whose optimiser has no local momentum, and for
    values outside their range.
    """
    common = {name: options.of_party(name, party) for name in ("momentum", "prox", "decay")}
    own = 0.0
    if spec.name in SGD:
        default = common["momentum"] or (MOMENTUM if spec.name == "momentum" else 0.0)
        own = spec.options.get("momentum", default)
        if own:
            spec = msgspec.structs.replace(spec, options=spec.options | {"momentum": own})
    elif common["momentum"]:
        _refuse_momentum(spec.name, options, party)
    if not 0 <= own < 1:
        raise ConfigError("train.optimiser", {"momentum": own}, "ρ must be at least 0 and below 1")
    prox, decay = spec.prox or common["prox"], common["decay"] if spec.decay == 1 else spec.decay
    if not (0 <= prox < float("inf") and 0 < decay <= 1):
        raise ConfigError("train.optimiser", {"prox": prox, "decay": decay}, "prox ≥ 0 and 0 < decay ≤ 1 are needed")
    return msgspec.structs.replace(spec, prox=0.0, decay=1.0), LocalRule(own, prox, decay)


def _refuse_momentum(optimiser: str, options: RoundOptions, party: int | None) -> None:
    """Raise ConfigError. Eq. (8)'s local momentum is SGD's; other optimisers keep their memory from round to round."""
    whose, values = f"party {(party or 0) + 1}", "0.0 for this party"
    if party is None:
        whose, values = "the server", "one value for each party, without the server"
    cause = f"{whose} steps by {optimiser!r}, which has no local momentum"
    raise ConfigError("protocol.momentum", options.momentum, f"{cause}: use 'sgd', set 0, or a list with {values}")


class Report(NamedTuple):
    """A role's report of a phase."""

    phase: int
    steps: int  # τ
    weight: float  # w̄
    step_s: float


@dataclass(slots=True, eq=False)
class LocalPhase(Component):
    """One role's local steps, phase after phase."""

    network: Parameters = field(metadata=UNSAVED)
    rule: LocalRule = field(metadata=UNSAVED)
    phase: int = 0
    began: int = 0  # ns: start of the phase
    last: int = 0  # ns: end of the last step
    timeout: int = 0  # ns; 0: no bell
    limit: int = 0  # steps; 0: as many as fit
    scale: float = 1.0  # factor of the rate; 0: only measure
    steps: int = 0  # τ so far
    shortest: int = 0  # ns: the shortest step of the phase
    rung: bool = False
    anchor: Array = field(default_factory=lambda: np.zeros(0, np.float32))  # θ^{r,0}, for the proximal step

    def begin(self, now: int, phase: int, timeout_s: float, limit: int, scale: float) -> list[Effect]:
        """Start a phase and return the timer of its bell."""
        self.phase, self.limit, self.scale = phase, limit, scale
        self.began = self.last = now
        self.timeout = round(timeout_s * NANOSECONDS)
        self.steps = self.shortest = 0
        self.rung = False
        if self.rule.momentum:
            self.network.forget()
        if self.rule.prox:
            self.anchor = self.network.vector().copy()
        return [SetTimer(BELL, now + self.timeout)] if self.timeout else []

    def learn(self, result: LocalStepped | Promised, rate: float, now: int) -> None:
        """Eq. (6), with the rate of the phase. A phase that only measures counts the step and discards it."""
        if self.scale:
            eta = rate * self.scale * self.rule.decay**self.steps
            once_made(result, lambda made: self._apply(made.gradient, eta, made.buffers))
        self.steps += 1
        took, self.last = now - self.last, now
        self.shortest = min(self.shortest or took, took)

    def _apply(self, gradient: Array, eta: float, buffers: list[Array]) -> None:
        if self.rule.prox:
            gradient = gradient + np.float32(self.rule.prox) * (self.network.vector() - self.anchor)
        self.network.apply(gradient, eta, buffers)

    def goes_on(self, now: int) -> bool:
        """Whether to start another step: one like the phase's shortest would end before the bell."""
        if self.rung or (self.limit and self.steps >= self.limit):
            return False
        if not self.timeout:
            return True
        # Steps that take no time (on a simulated clock) would never end, so one is enough.
        # As in `steps_that_fit`, each step may be a nanosecond longer than its stated length.
        spare = (self.steps + 1) * STEP_ROUNDING_NS
        return self.shortest > 0 and now + self.shortest <= self.began + self.timeout + spare

    def wait_for_next(self, now: int) -> list[Effect]:
        """Delay the bell by the few nanoseconds by which the next step would miss it because of rounding."""
        end = now + self.shortest
        return [SetTimer(BELL, end)] if self.timeout and end > self.began + self.timeout else []

    @property
    def over(self) -> bool:
        """Whether the phase is complete, so that not even a bell is pending."""
        return self.steps > 0 and (self.rung or not self.timeout)

    def report(self) -> Report:
        """Return what Alg. 2 l. 15 sends."""
        measures = not self.scale and not self.timeout
        step = self.shortest if measures else (self.last - self.began) / max(self.steps, 1)
        return Report(self.phase, self.steps, self.rule.largest_weight(self.steps), step / NANOSECONDS)
