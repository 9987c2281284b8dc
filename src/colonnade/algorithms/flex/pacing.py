"""How the server turns measured speeds into the timeout, the common number of steps, and the rates.

**timeout_s = "auto"**: of the multiples of the parties' steps, the T with the most useful work per second,

    Σ_k c·(1 − e^{−τ_k(T)/c}) / (T + round trip),    τ_k(T) = ⌊T / step_k⌋

Each further local step on a stale snapshot is worth less; c is how many of them are useful. A party whose step is
longer than T takes part in every second (third …) round with one step. The server picks T again when step times or
round trips have changed so much that another T is a tenth better.

An optimiser that normalises its gradients (Adam) moves θ_k by the rate in every step. A second step along the same
gradient then acts mostly like a higher rate: c is small, and T is hardly longer than a typical party's step.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from colonnade.algorithms.flex.config import AUTO, RoundOptions
from colonnade.algorithms.flex.local import SGD, STEP_ROUNDING_NS, Report
from colonnade.models import OptimiserSpec
from colonnade.protocol.events import NANOSECONDS
from colonnade.protocol.messages import Array
from colonnade.protocol.saved import UNSAVED, Component

__all__ = ["Pacing", "PhaseSettings", "best_timeout", "steps_within", "useful_steps"]

USEFUL_STEPS = {"server": 12.0, "shared": 20.0}  # c, by `labels`: a gradient that is never renewed loses its use sooner
USEFUL_NORMALISED = {"server": 0.3, "shared": 1.0}  # c if the optimiser of any role normalises
LONGEST = 64  # steps in one phase
MOST_COMMON = 4096  # steps of a phase in which all roles take as many as the fastest says that it can
LONGEST_ROUND_TRIP_S = 600.0  # a longer one counts as this: the server's patience grows with it
BETTER = 1.1  # factor by which another timeout must be better
MEASURED_STEPS = 4  # of a phase that measures speeds: the first ones may be slow, so the shortest counts
SURPRISE = 2  # a phase with an automatic timeout takes at most this many times the expected steps
FOLLOW = 0.5  # weight of the newest measurement
FOLLOW_PACE = 0.2  # weight of the newest measurement in the rates of `adaptive-flex`
BOLDEST = 2.0  # times its learning rate: a slow party's single step with five times the rate did harm on a9a


def steps_that_fit(timeout_s: Array | float, step_s: Array | float) -> Array:
    """Return how many steps of these lengths fit, in whole nanoseconds. Each may be 1 ns longer than stated."""
    step_ns = np.maximum(np.rint(step_s * NANOSECONDS) - STEP_ROUNDING_NS, 1)
    fitting: Array = np.floor_divide(np.rint(timeout_s * NANOSECONDS), step_ns)
    return fitting


def steps_within(timeout_s: float, step_s: float) -> int:
    """Return τ: how many steps of this length fit, at least one."""
    return max(1, int(steps_that_fit(timeout_s, step_s))) if step_s else 1


def useful_per_second(timeouts: Array, step_s: Array, round_trip_s: float, worth: float) -> Array:
    """Return what the rule maximises, for each timeout; `worth` is c."""
    rounds_s = timeouts[:, None] + round_trip_s
    fitting = steps_that_fit(timeouts[:, None], step_s)
    useful = worth * (1 - np.exp(-np.maximum(1, fitting) / worth))
    every = np.where(fitting >= 1, 1, np.ceil((step_s + round_trip_s) / rounds_s))  # rounds per step of a slow party
    per_second: Array = (useful / every / rounds_s).sum(1)
    return per_second


def best_timeout(step_s: list[float], round_trip_s: float, worth: float, current: float = 0.0) -> float:
    """Apply the rule of the module docstring. The current timeout stays unless another is clearly better."""
    steps = np.maximum(step_s, 1e-9)
    typical = np.unique(np.quantile(steps, [0, 0.5, 1], method="nearest"))
    candidates = np.sort((typical[:, None] * np.arange(1, LONGEST + 1)).ravel())
    scores = useful_per_second(candidates, steps, round_trip_s, worth)
    best = int(np.argmax(scores))
    if current and scores[best] < BETTER * useful_per_second(np.array([current]), steps, round_trip_s, worth)[0]:
        return current
    return float(candidates[best])


def useful_steps(options: RoundOptions, optimisers: Iterable[OptimiserSpec]) -> float:
    """Return c for roles with these optimisers."""
    if options.useful_steps is not None:
        return float(options.useful_steps)
    table = USEFUL_STEPS if all(spec.name in SGD for spec in optimisers) else USEFUL_NORMALISED
    return table[options.labels]


class PhaseSettings(NamedTuple):
    """The settings of a phase."""

    timeout_s: float  # 0: no bell
    limit: int  # steps of a party; 0: as many as fit
    server_limit: int
    scales: dict[str, float]  # factors of the roles' rates; 0: the role learns nothing


@dataclass(slots=True, eq=False)
class Pacing(Component):
    """The newest report of every role, and the decisions that follow from it."""

    options: RoundOptions = field(metadata=UNSAVED)
    worth: float = field(metadata=UNSAVED)  # c
    timeout_s: float = 0.0
    step_s: dict[str, float] = field(default_factory=dict)
    round_trip_s: dict[str, float] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)  # 1/(τ_k·w̄_k)
    timeout_of: dict[str, float] = field(default_factory=dict)  # the timeout in which the role reached its τ_k
    pace: dict[str, float] = field(default_factory=dict)  # τ_k·w̄_k per second of the timeout, a running mean

    def __post_init__(self) -> None:
        if self.options.timeout_s != AUTO:
            self.timeout_s = self.options.timeout_s

    def note(self, name: str, report: Report, timeout_s: float) -> None:
        """Note a role's report of a phase with this timeout; 0 is a phase without a bell."""
        # A slow-down counts at once: a timeout just short of a step would waste the step.
        self.step_s[name] = max(report.step_s, _follow(self.step_s.get(name), report.step_s))
        if timeout_s:
            self.shares[name] = 1 / (report.steps * report.weight)
            self.timeout_of[name] = max(timeout_s, report.step_s)  # a late party's one step took longer
            pace = report.steps * report.weight / self.timeout_of[name]
            self.pace[name] = _follow(self.pace.get(name), pace, FOLLOW_PACE)

    def note_round_trip(self, name: str, seconds: float) -> None:
        """Note a round trip between the server and a party."""
        self.round_trip_s[name] = _follow(self.round_trip_s.get(name), min(max(0.0, seconds), LONGEST_ROUND_TRIP_S))

    def measures(self, parties: Collection[str]) -> bool:
        """Whether the next phase only measures, because speeds or τ^0 (Alg. 2 l. 2) are unknown."""
        return self._knows_no_speed(parties) or (self.options.needs_tau and not self.shares)

    def _knows_no_speed(self, parties: Collection[str]) -> bool:
        return self.options.needs_speeds and not any(name in self.step_s for name in parties)

    def plan(self, parties: Collection[str], server: str) -> PhaseSettings:
        """Return the settings of these parties' next phase."""
        options, roles = self.options, [*parties, server]
        if self._knows_no_speed(parties):
            return PhaseSettings(0.0, MEASURED_STEPS, MEASURED_STEPS, dict.fromkeys(roles, 0.0))
        if options.timeout_s == AUTO:
            known = [self.step_s[name] for name in parties if name in self.step_s]
            self.timeout_s = best_timeout(known, self.longest_round_trip_s(parties), self.worth, self.timeout_s)
        measures = self.measures(parties)
        if measures:
            scales = dict.fromkeys(roles, 0.0)
        elif options.adaptive and options.A is None:
            scales = self._beside_quickest(parties, server)
        else:
            scales = {name: self._scale(name) for name in roles}
        limit, server_limit = self._limits(parties, server, measures)
        return PhaseSettings(self.timeout_s if options.rings else 0.0, limit, server_limit, scales)

    def longest_round_trip_s(self, parties: Collection[str]) -> float:
        """Return the longest measured round trip of these parties, in seconds."""
        return max((self.round_trip_s.get(name, 0.0) for name in parties), default=0.0)

    def _limits(self, parties: Collection[str], server: str, measures: bool) -> tuple[int, int]:
        """Return how many steps a party and the server may take; 0: as many as fit."""
        options, most = self.options, self.options.max_steps or 0
        fitting = [self._fitting(name) for name in parties if name in self.step_s]
        of_server = [self._fitting(server)] if server in self.step_s else []  # a server without weights takes no steps
        # DEVIATION: a server many times faster than the parties would fit θ_0 to one batch of stale embeddings, and
        # training diverges at rates that suit the parties. So it takes no more steps than the fastest party: one step,
        # before a party has reported. A round that measures τ^0 learns nothing, so it needs no such cap.
        quickest = max(fitting, default=0 if measures else 1)
        cap = quickest if options.caps_server else 0
        match options.common:
            case "one":
                common = 1
            case "min":
                common = min(fitting + of_server)
            case "max":
                common = min(MOST_COMMON, max(fitting + [_tightest(own, cap) for own in of_server]))
            case _:
                # Wrong speed measurements must not lead to thousands of steps.
                surprise = SURPRISE if options.timeout_s == AUTO else 0
                return most or surprise * quickest, _tightest(most, cap or surprise * max(of_server, default=0))
        return _tightest(common, most), _tightest(common, most)

    def _fitting(self, name: str) -> int:
        return steps_within(self.timeout_s, self.step_s[name])

    def _beside_quickest(self, parties: Collection[str], server: str) -> dict[str, float]:
        """Alg. 2 l. 17 without a given A: A_k is the role's rate times the τ·w̄ of the fastest of these parties."""
        # DEVIATION: Alg. 2 leaves A_k to its reader, and the learning rate itself would make every step τ_k times
        # shorter than those of `flex`. Sec. VII-F compares with the fixed rate A/max τ: so the fastest party has the
        # rate of `flex`, and the others more. The server does not count as the fastest: it may take hundreds of steps.
        # DEVIATION: τ_k·w̄_k is a running mean. If a party's speed changes from round to round, that of the last round
        # alone says little about this one, and its rate would be several times too large in some rounds.
        taus = {name: max(1.0, self.pace[name] * self.timeout_s) for name in (*parties, server) if name in self.pace}
        quickest = max((taus[name] for name in parties if name in taus), default=1.0)
        if self.options.caps_server and server in taus:
            # Its mean is over rounds with other caps. Above this round's cap, it would step with less than in `flex`.
            taus[server] = min(taus[server], quickest)
        return {name: min(BOLDEST, quickest / taus[name]) if name in taus else 1.0 for name in (*parties, server)}

    def _scale(self, name: str) -> float:
        """Return 1, or Alg. 2 l. 17: η_k = A_k/(τ_k·w̄_k), where A_k is the role's own."""
        if not self.options.adaptive:
            return 1.0
        if name not in self.shares:
            # DEVIATION: the paper's parties all take part in the dummy round. A party that has just joined has no
            # τ yet, so it gets the lowest of the other roles' rates.
            return min(map(self._scale, self.shares))
        if not self.options.rate_follows_timeout:
            return self.shares[name]
        # DEVIATION: Alg. 2 l. 17 has no such factor, since its timeout is fixed. τ_k grows with the timeout: after
        # timeout_s = "auto" has changed it, A_k/(τ_k·w̄_k) of the old τ_k would move θ_k too far or too little.
        return min(1.0, self.shares[name] * self.timeout_of[name] / self.timeout_s)


def _tightest(*limits: int) -> int:
    """Return the smallest of these limits; 0 stands for no limit."""
    return min((limit for limit in limits if limit), default=0)


def _follow(before: float | None, now: float, weight: float = FOLLOW) -> float:
    return now if before is None else before + weight * (now - before)
