"""The `[protocol]` fields of `fedvs`, `wait`, `ignore` and `wait-dp`."""

from math import inf, isfinite
from typing import Literal

from colonnade.algorithms.exposure import UNMASKED
from colonnade.algorithms.method import Options
from colonnade.privacy.accountant import OWN_ROWS
from colonnade.privacy.field import P, bound, largest_fit
from colonnade.privacy.gaussian import mu_for
from colonnade.privacy.settings import PrivacySettings
from colonnade.privacy.sharing import LagrangeCode
from colonnade.protocol.errors import ConfigError

__all__ = ["UNPROTECTED", "FedvsOptions", "IgnoreOptions", "PlainOptions", "WaitDpOptions", "WaitOptions"]

Work = Literal["arithmetic", "delays"]
Stale = Literal["allow", "refuse"]
_KEYS = {"segments": "K", "colluders": "T"}
UNPROTECTED = (
    "NOTHING IS PROTECTED between parties (T = 0, allow_unprotected = true): shares have no masks. With K = 1 every "
    "party gets every other party's columns and weights as plain numbers; with K > 1 it gets known linear combinations "
    "of the other parties' K segments of rows, and their weights as plain numbers. Server: the sum of the embeddings "
    "of the set S, of training and test rows. Every party: ∇_H of every batch, from which labels can be inferred"
)
MOST_BITS = 24  # for l_x and l_w: more bits cannot fit


def most_segments(parties: int, colluders: int, spare: int = 0) -> int:
    """The largest K that still decodes if one in eight parties, at least one, answers too late; 1 if no K does.

    `spare` answers more than that must be there, to check the others.
    """
    answers = parties - may_be_late(parties) - spare
    return max(1, (answers - 1) // 2 + 1 - colluders)


def may_be_late(parties: int) -> int:
    """One in eight parties, at least one."""
    return max(1, parties // 8)


class FedvsOptions(Options, frozen=True, kw_only=True):
    """Options of Algorithm 1, and of what it leaves open."""

    K: int | None = None  # segments that the rows are cut into; left out: the most that tolerate one straggler in eight
    T: int = 1  # parties that may collude
    allow_unprotected: bool = False  # accept T = 0, which masks nothing
    l_x: int = 8  # bits after the point, for data
    l_w: int = 11  # bits after the point, for weights: sums over 2,000 columns still fit
    x_max: float = 1.0  # data must lie in ±x_max
    w_max: float | None = None  # weights are kept in ±w_max; left out: the range that fits into the field, at least 1
    min_summed: int | None = None  # the fewest parties whose sum is decoded; left out: half of them, at least T + 2
    deadline_s: float = 60.0  # for sharing, and again for answering
    blinding: bool = True  # the server learns only the sum from coded answers; false: all of ψ
    stale: Stale = "allow"  # a round uses a slow party's last share; "refuse": all share in every round
    catch_up: int = 4  # longest step, in rounds, of a party that has missed rounds; 1: never longer
    max_stale: int = 20  # rounds in which one share may be summed; then the round waits for its party
    spare: int = 0  # answers beyond R that a round waits for: 1 shows that some are wrong, 2a locate a wrong ones
    most_wrong: int = 3  # wrong answers of a party; after that, the server asks it for no more
    work: Work = "arithmetic"  # what a simulator charges; "delays": as in the paper's experiments

    def code(self, parties: int) -> LagrangeCode:
        """The code (K, T, N); raises if it cannot decode."""
        fewest = 2 * self.T + 1
        if self.K is None and 0 <= self.T < parties < fewest:
            advice = f"T = {self.T} needs at least {fewest} parties, but there are {parties}: use another method"
            raise ConfigError("protocol.T", self.T, advice)
        try:
            return LagrangeCode(self.segments(parties), self.T, parties)
        except ConfigError as error:
            raise ConfigError(f"protocol.{_KEYS[error.key]}", error.value, error.advice) from None

    def limbs(self, parties: int) -> tuple[float, float, float]:
        """The products that a simulator charges per multiply-add to encode data, models and blinding."""
        return self.code(parties).limbs() if self.stale == "allow" else (2, 2, 2)

    def segments(self, parties: int) -> int:
        """K as configured, or its default."""
        return most_segments(parties, self.T, self.spare) if self.K is None else self.K

    def asked(self, parties: int) -> int:
        """How many parties are asked for an answer first: R, the spare ones, and as many as may be late."""
        return self.code(parties).needed + self.spare + may_be_late(parties)

    def least(self, parties: int) -> int:
        """The fewest parties of a summing set: without its T colluders' own parts, a sum still has two others."""
        return min(parties, max(self.T + 2, (parties + 1) // 2)) if self.min_summed is None else self.min_summed

    @property
    def reveals(self) -> str:
        """What the server sees if T = 0; "" if not, because the method's own text then holds."""
        return "" if self.T else UNPROTECTED

    @property
    def exposes(self) -> str:
        """What the method exposes if T = 0; "" if not, because the method's own text then holds."""
        return "" if self.T else UNMASKED

    @property
    def protects(self) -> str:
        """What Lagrange coded shares with T random masks (privacy/sharing.py) protect, in words."""
        if not self.T:
            return UNPROTECTED
        blinding = "" if self.blinding else " blinding is off, so two rounds of answers reveal data to the server."
        return (
            f"Parties hold coded shares of each other's columns and weights. Up to {self.T} of them together learn "
            f"nothing about the others from these shares, with any amount of computing; {self.T + 1} or more may. This "
            "holds if all follow the protocol. It is no ε: the server still sees sums of embeddings, and every party "
            f"still gets gradients, from which labels can be inferred.{blinding}"
        )

    def check(self, parties: int) -> None:
        """Raise for options that cannot work, and for ones that protect nothing unless the config allows it."""
        self.code(parties)
        if not self.T and not self.allow_unprotected:
            advice = (
                "without masks every party gets the other parties' columns and models as plain numbers: use 1 or more; "
                "for a test without protection set protocol.allow_unprotected = true, in every member's config"
            )
            raise ConfigError("protocol.T", self.T, advice)
        for name in ("l_x", "l_w"):
            if not 0 <= getattr(self, name) <= MOST_BITS:
                raise ConfigError(f"protocol.{name}", getattr(self, name), f"must be 0 to {MOST_BITS} bits")
        for name, value in (("x_max", self.x_max), ("w_max", self.least_w_max)):
            if not 0 < value < inf:
                raise ConfigError(f"protocol.{name}", value, "must be above 0")
        if not self.deadline_s > 0:
            raise ConfigError("protocol.deadline_s", self.deadline_s, "must be above 0 seconds (inf: no deadline)")
        for name, rounds in (("max_stale", self.max_stale), ("catch_up", self.catch_up)):
            if rounds < 1:
                raise ConfigError(f"protocol.{name}", rounds, "must be 1 or more rounds")
        self._check_spare(parties)
        fewest = min(parties, self.T + 2)
        if not fewest <= self.least(parties) <= parties:
            advice = (
                f"must be {fewest} to {parties}: {self.T} colluders can subtract their own parts from a sum, and the "
                "rest must not be one party's embedding"
            )
            raise ConfigError("protocol.min_summed", self.min_summed, advice)

    def _check_spare(self, parties: int) -> None:
        code = self.code(parties)
        if not 0 <= self.spare <= code.stragglers:
            advice = (
                f"must be 0 to {code.stragglers}: {parties} parties give {parties} answers, and K = {code.segments}, "
                f"T = {code.colluders} need {code.needed} of them"
            )
            raise ConfigError("protocol.spare", self.spare, advice)
        if self.most_wrong < 1:
            raise ConfigError("protocol.most_wrong", self.most_wrong, "must be 1 or more answers")

    @property
    def least_w_max(self) -> float:
        """The least W_max that must fit."""
        return 1.0 if self.w_max is None else self.w_max

    def largest_w_max(self, terms: int, degree: int) -> float:
        """W_max: as configured, or the largest that fits beside l_x and l_w."""
        if self.w_max is not None:
            return self.w_max
        x = 2.0**self.l_x * self._largest_x(degree) + 0.5
        return max(1.0, ((P - 1) / (2 * x * terms) - 1) / 2.0**self.l_w)

    def _largest_x(self, degree: int) -> float:
        """The largest |x| over all powers, and the 1 that is appended."""
        return max(self.x_max**degree, self.x_max, 1.0)

    def check_bound(self, terms: int, degree: int) -> None:
        """Raise if sums could leave the field, because they would wrap around silently."""
        x_max, w_max = self._largest_x(degree), self.least_w_max
        needs = bound(self.l_x, self.l_w, x_max, w_max, terms)
        if needs < P:
            return
        l_x, l_w = largest_fit(self.l_x, self.l_w, x_max, w_max, terms)
        fits = [f"l_w = {l_w}"] if l_w is not None else []
        fits += [f"l_x = {l_x}"] if l_x is not None else []
        advice = (
            f"sums over {terms} terms of |x| ≤ {x_max:g} and |w| ≤ {w_max:g} would leave the field "
            f"({needs:.3g}, and p = {P}); the largest that fit: {' or '.join(fits) or 'none at all'}; "
            "or set a lower protocol.w_max"
        )
        raise ConfigError("protocol.l_w", self.l_w, advice)


class PlainOptions(Options, frozen=True, kw_only=True):
    """The options that the baselines share."""

    K: int | None = None  # draw batches as `fedvs` with this K does; left out: as it does with T = 1
    work: Work = "arithmetic"  # one local step in both cases

    def check(self, parties: int) -> None:
        """Raise ConfigError for options that cannot work."""
        if self.segments(parties) < 1:
            raise ConfigError("protocol.K", self.K, "must be 1 or more segments")

    def segments(self, parties: int) -> int:
        """K as configured, or its default."""
        return most_segments(parties, 1) if self.K is None else self.K

    def taken(self, parties: int) -> int:
        """How many embeddings a round takes; later parties are left out."""
        return parties

    def threshold(self, parties: int) -> int:
        """How many parties an update takes."""
        return self.taken(parties)

    def told(self) -> dict[str, object]:
        """The part of the run's summary on these options."""
        return {}


class WaitOptions(PlainOptions, frozen=True, kw_only=True):
    """The server waits for all parties."""


class IgnoreOptions(PlainOptions, frozen=True, kw_only=True):
    """The server averages the embeddings that arrive first."""

    fastest: int | None = None  # embeddings that a round averages; left out: half of the parties, rounded up

    def taken(self, parties: int) -> int:
        return (parties + 1) // 2 if self.fastest is None else self.fastest

    def check(self, parties: int) -> None:
        """Raise ConfigError for options that cannot work."""
        super().check(parties)
        if not 1 <= self.taken(parties) <= parties:
            raise ConfigError("protocol.fastest", self.fastest, f"must be 1 to {parties}, the number of parties")


class WaitDpOptions(PlainOptions, frozen=True, kw_only=True):
    """The server waits for the clipped and perturbed embeddings of all parties."""

    epsilon: float = 5.0  # ε′ of one release of one row by one party
    delta: float = 1e-5  # δ of the same release
    clip: float = 1.0  # the largest norm of a row's embedding

    @property
    def mechanism(self) -> PrivacySettings:
        """Replacing a row moves an embedding by at most 2C; σ = 2C/μ makes one release (ε′, δ) private."""
        sigma = 2 * self.clip / mu_for(self.epsilon, self.delta)
        return PrivacySettings(mechanism="output", clip=self.clip, noise=sigma, delta=self.delta)

    @property
    def claim(self) -> str:
        """Which claim the ledger reports: the paper's ε′ is for one release of one row."""
        return OWN_ROWS

    def told(self) -> dict[str, object]:
        """The noise of one release."""
        return {
            "epsilon_per_release": self.epsilon,
            "delta": self.delta,
            "sensitivity": 2 * self.clip,
            "sigma": self.mechanism.noise,
        }

    def check(self, parties: int) -> None:
        """Raise ConfigError for options that cannot work."""
        super().check(parties)
        for name in ("epsilon", "clip"):
            value = getattr(self, name)
            if not (isfinite(value) and value > 0):
                raise ConfigError(f"protocol.{name}", value, "must be above 0")
        if not 0 < self.delta < 1:
            raise ConfigError("protocol.delta", self.delta, "must be between 0 and 1")
