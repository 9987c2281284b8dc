"""The `[privacy]` section, on which all members agree, and a party's own `budget`; both are checked before a run.

Every `noise` is a standard deviation, in the unit of the value it is added to. None is a multiple of a clip.
"""

from math import isfinite
from typing import Literal

import msgspec

from colonnade.protocol.errors import ConfigError

__all__ = ["Budget", "DpSgd", "PrivacySettings"]


class DpSgd(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A party's own step as a private release: each record's gradient shrunk to norm `clip`, noise on their sum."""

    clip: float  # G, of the gradient of one record's own loss
    noise: float  # standard deviation of each coordinate of the SUM over the batch


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The (ε, δ) that a party is ready to spend in one run."""

    epsilon: float  # ε of all that the party releases in one run
    delta: float  # δ of the same account

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < float("inf"):
            raise ConfigError("party.budget.epsilon", self.epsilon, "must be above 0")
        if not 0 < self.delta < 1:
            raise ConfigError("party.budget.delta", self.delta, "must lie between 0 and 1")


class PrivacySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The mechanism between a party's network and the wire."""

    mechanism: Literal["none", "output", "neurons"] | None = None  # left out: none, and no key but delta may be set
    clip: float | None = None  # C: the largest norm of a row before the noise
    noise: float = 0.0  # c: standard deviation of the Gaussian noise
    # c_l: standard deviation of the uniform noise in inner layers ("neurons"), or a list with one for each inner layer.
    # It smooths the network (Thm 5). No ε is claimed for it: the account counts the Gaussian noise alone.
    inner: float | list[float] = 0.0
    delta: float = 1e-5
    local_updates: Literal["plain", "dp-sgd", "answers"] = "plain"
    dp_sgd: DpSgd | None = None

    @property
    def on(self) -> bool:
        """Whether embeddings are clipped, perturbed and accounted."""
        return self.mechanism in ("output", "neurons")

    @property
    def by_record(self) -> bool:
        """Whether θ_m reveals nothing by itself, so that only a record's own row counts."""
        return self.local_updates != "plain"

    def check(self) -> None:
        """Raise ConfigError for a setting that gives no guarantee or makes no sense."""
        inner = self.inner if isinstance(self.inner, list) else [self.inner]
        for name, deviations in (("noise", [self.noise]), ("inner", inner)):
            if not all(0 <= value < float("inf") for value in deviations):
                value = getattr(self, name)
                raise ConfigError(f"privacy.{name}", value, "must be a standard deviation of 0 or more")
        if not 0 < self.delta < 1:
            raise ConfigError("privacy.delta", self.delta, "must lie between 0 and 1, best below 1/rows")
        if self.mechanism is None and self != PrivacySettings(delta=self.delta):
            advice = "choose 'output' (noise on what leaves) or 'neurons' (noise inside the network), or 'none'"
            raise ConfigError("privacy.mechanism", None, advice)
        if self.on:
            self._check_mechanism()
            self._check_local_updates()

    def _check_mechanism(self) -> None:
        if self.clip is None:
            advice = "is missing: without a bound on every row no noise gives a guarantee; set e.g. clip = 1.0"
            raise ConfigError("privacy.clip", None, advice)
        if not (self.clip > 0 and isfinite(self.clip)):
            raise ConfigError("privacy.clip", self.clip, "must be above 0")
        if self.noise == 0:
            advice = "must be above 0; `colonnade privacy plan` computes it; for no noise set mechanism = 'none'"
            raise ConfigError("privacy.noise", self.noise, advice)
        if self.inner and self.mechanism != "neurons":
            raise ConfigError("privacy.inner", self.inner, "noise in inner layers needs mechanism = 'neurons'")

    def _check_local_updates(self) -> None:
        if (self.dp_sgd is not None) != (self.local_updates == "dp-sgd"):
            advice = "local_updates = 'dp-sgd' and dp_sgd = {clip = ..., noise = ...} belong together"
            raise ConfigError("privacy.dp_sgd", self.dp_sgd, advice)
        if self.dp_sgd is not None and not all(
            0 < value < float("inf") for value in msgspec.structs.astuple(self.dp_sgd)
        ):
            raise ConfigError("privacy.dp_sgd", self.dp_sgd, "clip and noise must be above 0")

    def notes(self, rows: int) -> tuple[str, ...]:
        """Warnings for the operator before the run starts."""
        if self.on and self.delta >= 1 / max(rows, 1):
            return (
                f"delta = {self.delta:g} is not below 1/{rows} (one of {rows} training rows): with that "
                "chance a whole record may be revealed; choose a smaller delta",
            )
        return ()
