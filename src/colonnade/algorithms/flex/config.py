"""The `[protocol]` fields of `flex`, `adaptive-flex`, `p-bcd`, `sync-min` and `sync-max`."""

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from colonnade.algorithms.exposure import LABELS_TO_PARTIES
from colonnade.algorithms.method import Options
from colonnade.protocol.errors import ConfigError

__all__ = ["AdaptiveOptions", "FlexOptions", "PBcdOptions", "RoundOptions", "SyncMaxOptions", "SyncMinOptions"]

AUTO = "auto"
TO_SERVER = "server: every party's embeddings, its number of local steps, their weight w̄ and how long a step takes"
TO_PARTIES = {
    "server": "each party: the gradient of its own block, from which labels can be inferred (docs/attacks.md)",
    "shared": "each party: the labels themselves, θ_0 and every other party's embeddings of the batch",
}
NONE: Any = 0.0
ONE: Any = 1.0
UNSET: Any = None
WAIT: Any = "wait"
FIT: Any = "fit"
PLAIN = {"momentum": 0.0, "prox": 0.0, "decay": 1.0}
Each = float | list[float]  # one value for all roles, or a list with one for each party


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A_0 and A_k, if they differ."""

    server: float
    party: Each


class RoundOptions(Options, frozen=True, kw_only=True):
    """What the methods of the family share. Each method sets the attributes that it does not offer as options."""

    labels: Literal["server", "shared"] = "server"
    # DEVIATION: the paper judges θ itself. At a rate that learns quickly, θ jumps from round to round.
    average: bool = True  # evaluation and prediction use an average of the weights

    # Values for methods without these options:
    timeout_s = NONE  # no bell: a phase ends with its last step
    momentum = NONE
    prox = NONE
    decay = ONE
    A = UNSET
    max_steps = UNSET
    useful_steps = UNSET
    server_steps = FIT
    rate_follows_timeout = False
    on_lost = WAIT
    adaptive = False  # rates follow measured speeds
    common = ""  # steps of all roles: "one", as many as the slowest can ("min"), as many as the fastest can ("max")

    @property
    def reveals(self) -> str:
        """What each role learns, which depends on `labels`."""
        return f"{TO_SERVER}; {TO_PARTIES[self.labels]}"

    @property
    def exposes(self) -> str:
        """What crosses, which depends on `labels`."""
        return LABELS_TO_PARTIES if self.shares_labels else ""

    @property
    def shares_labels(self) -> bool:
        """Whether the server sends the labels to the parties."""
        return self.labels == "shared"

    @property
    def needs_speeds(self) -> bool:
        """Whether the first phase only measures step times."""
        return self.timeout_s == AUTO or self.common in ("min", "max")

    @property
    def needs_tau(self) -> bool:
        """Whether the first rates follow from the τ of a round that only measures (Alg. 2 l. 2)."""
        # DEVIATION: without a given A the first rates are those of `flex`, so that no round is spent on measuring τ. A
        # server without a cap must know its τ: at the rate of one step it would take hundreds of steps.
        return self.adaptive and not (self.A is None and self.caps_server)

    @property
    def caps_server(self) -> bool:
        """Whether the server takes no more local steps than the fastest party."""
        return bool(self.server_steps == "quickest")

    @property
    def rings(self) -> bool:
        """Whether a bell ends the phase."""
        return self.common in ("", "min")

    def of_party(self, name: str, party: int | None) -> float:
        """Return a setting of one party's local optimiser. None is the server, which a list leaves out."""
        value = getattr(self, name)
        if not isinstance(value, list):
            return float(value)
        return PLAIN[name] if party is None else value[party]

    def a_of(self, party: int | None) -> float | None:
        """Return A_k of a party, or A_0 for None; None if the configured rate applies."""
        if isinstance(self.A, Rates):
            given = [self.A.server] if party is None else self.A.party
            return given[party or 0] if isinstance(given, list) else given
        given_to_all: float | None = self.A
        return given_to_all

    def check(self, parties: int) -> None:
        """Raise ConfigError for options that cannot work."""
        if self.timeout_s != AUTO and not 0 <= self.timeout_s < float("inf"):
            raise ConfigError("protocol.timeout_s", self.timeout_s, "must be above 0 seconds, or 'auto'")
        self._check_each("momentum", parties, lambda rho: 0 <= rho < 1, "ρ must be at least 0 and below 1")
        self._check_each("prox", parties, lambda mu: 0 <= mu < float("inf"), "μ must be 0 or more")
        self._check_each("decay", parties, lambda factor: 0 < factor <= 1, "must be above 0 and at most 1")
        if self.max_steps is not None and self.max_steps < 1:
            raise ConfigError("protocol.max_steps", self.max_steps, "must be 1 or more local steps a round")
        if self.useful_steps is not None and not 0 < self.useful_steps < float("inf"):
            raise ConfigError("protocol.useful_steps", self.useful_steps, "must be above 0 local steps")
        self._check_a(parties)

    def _check_each(self, name: str, parties: int, holds: Callable[[float], bool], advice: str) -> None:
        value = getattr(self, name)
        values = value if isinstance(value, list) else [value]
        if isinstance(value, list) and len(value) != parties:
            raise ConfigError(f"protocol.{name}", value, f"a list needs one value for each of {parties} parties")
        if not all(holds(one) for one in values):
            raise ConfigError(f"protocol.{name}", value, advice)

    def _check_a(self, parties: int) -> None:
        given = self.A.party if isinstance(self.A, Rates) else self.A
        if isinstance(given, list) and len(given) != parties:
            raise ConfigError("protocol.A", given, f"a list needs one value for each of {parties} parties")
        values = [*(given if isinstance(given, list) else [given]), self.a_of(None)]
        if not all(value is None or 0 < value < float("inf") for value in values):
            raise ConfigError("protocol.A", given, "A_k must be above 0: it is the rate of a whole round")


class _Local(RoundOptions, frozen=True, kw_only=True):
    """Options of the methods with local steps."""

    timeout_s: float | Literal["auto"] = "auto"
    momentum: Each = 0.0  # ρ; the velocity is reset after every round
    prox: Each = 0.0  # μ
    decay: Each = 1.0  # each local step's rate is this times the rate of the step before
    max_steps: int | None = None  # in a round, even if more fit
    useful_steps: float | None = None  # c of timeout_s = "auto"; left out: depends on `labels` and the optimisers

    def check(self, parties: int) -> None:
        """Raise ConfigError for options that cannot work."""
        super().check(parties)
        if self.timeout_s == 0:
            raise ConfigError("protocol.timeout_s", self.timeout_s, "must be above 0 seconds, or 'auto'")


class FlexOptions(_Local, frozen=True, kw_only=True):
    """Options of Algorithm 1."""

    server_steps: Literal["quickest", "fit"] = "quickest"  # as many as the fastest party takes, or as many as fit
    on_lost: Literal["continue", "wait"] = "continue"


class AdaptiveOptions(FlexOptions, frozen=True, kw_only=True):
    """Options of Algorithm 2."""

    A: float | Rates | None = None  # A_k; left out: the learning rate times the steps of the fastest party
    rate_follows_timeout: bool = True  # false: as in Alg. 2, rates ignore in which timeout τ_k was reached

    adaptive = True


class PBcdOptions(RoundOptions, frozen=True, kw_only=True):
    """τ = 1: parallel block coordinate descent."""

    common = "one"


class SyncMinOptions(_Local, frozen=True, kw_only=True):
    """All roles take as many steps as the slowest can."""

    common = "min"


class SyncMaxOptions(_Local, frozen=True, kw_only=True):
    """All roles, the server too, take as many steps as the fastest can, and the round waits for them."""

    server_steps: Literal["quickest", "fit"] | None = None  # left out: "fit" as in the paper; "quickest" with "auto"

    common = "max"

    @property
    def caps_server(self) -> bool:
        """Whether the server is ignored in the search for the fastest role."""
        # DEVIATION: the paper has no automatic timeout. "auto" chooses one for the parties, and a server a hundred
        # times faster would make them take a hundred times as many steps as the timeout was chosen for.
        chosen = self.server_steps or ("quickest" if self.timeout_s == AUTO else "fit")
        return chosen == "quickest"
