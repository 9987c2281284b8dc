"""Plan a guarantee before a run: the noise that it takes, or the guarantee that a noise gives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10, sqrt

from colonnade.privacy.accountant import claim_of_theorem_6
from colonnade.privacy.gaussian import epsilon_of, mu_for
from colonnade.protocol.errors import ConfigError

__all__ = ["Needs", "Noise", "Wish", "Workload", "noise_for", "planned"]


@dataclass(frozen=True)
class Workload:
    """One party's uploads in a run."""

    rows: int  # N
    batch_size: int
    updates: int
    extra_rows: float = 0.0  # in batches, with each upload
    test_rows: int = 0
    validation_rows: int = 0  # in every evaluation; if there are any, the test rows are in the last evaluation only
    evaluations: int = 0
    warm_up: bool = True

    def __post_init__(self) -> None:
        for name in ("rows", "batch_size", "updates"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')}", getattr(self, name), "must be 1 or more")
        for name in ("extra_rows", "test_rows", "validation_rows", "evaluations"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"--{name.replace('_', '-')}", getattr(self, name), "must be 0 or more")

    @property
    def uploaded(self) -> float:
        """Rows in all messages together: all of them move if θ_m saw the record without noise."""
        training = self.updates * self.batch_size * (1 + self.extra_rows)
        return self.warm_up * self.rows + training + self._evaluated

    @property
    def _evaluated(self) -> int:
        if not self.validation_rows:
            return self.evaluations * self.test_rows
        return self.evaluations * self.validation_rows + min(self.evaluations, 1) * self.test_rows

    @property
    def of_record(self) -> int:
        """How often the same row is uploaded: the larger count of a training row and a held-out row."""
        passes = ceil(self.updates * self.batch_size * (1 + self.extra_rows) / self.rows)
        return max(self.warm_up + passes, self.evaluations if self.test_rows or self.validation_rows else 0)

    @property
    def steps(self) -> int:
        """Steps of θ_m with the same record."""
        return ceil(self.updates * self.batch_size / self.rows)


@dataclass(frozen=True)
class Wish:
    """A wanted guarantee, or a noise whose guarantee is wanted."""

    clip: float  # C
    epsilon: float | None = None
    mu: float | None = None
    noise: float | None = None
    delta: float = 1e-5
    gradient_clip: float | None = None  # G, with private local steps
    gradient_noise: float | None = None
    share: float = 0.75  # the embeddings' share of μ²

    def __post_init__(self) -> None:
        asked = [self.epsilon, self.mu, self.noise]
        if sum(value is not None for value in asked) != 1:
            raise ConfigError("--epsilon, --mu, --noise", asked, "give exactly one of them; the others follow")
        for name in ("clip", "epsilon", "mu", "noise", "gradient_clip", "gradient_noise"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"--{name.replace('_', '-')}", value, "must be above 0")
        if not 0 < self.delta < 1 or not 0 < self.share < 1:
            raise ConfigError("--delta, --share", [self.delta, self.share], "must lie between 0 and 1")
        if self.noise is not None and (self.gradient_clip is None) != (self.gradient_noise is None):
            advice = "with --noise, give both --gradient-noise and --gradient-clip, or none of the two"
            raise ConfigError("--gradient-noise", self.gradient_noise, advice)

    @property
    def wanted(self) -> float:
        """The wanted μ."""
        return self.mu if self.mu is not None else mu_for(self.epsilon or 0.0, self.delta)


def planned(work: Workload, wish: Wish) -> list[str]:
    """The plan in words: the noise for ε or μ, or the μ and ε of a noise."""
    lines = _plain(work, wish) if wish.gradient_clip is None else _private(work, wish, wish.gradient_clip)
    if wish.delta >= 1 / work.rows:
        chance = "with that chance a whole record may be revealed"
        lines.append(f"Warning: δ = {wish.delta:g} is not below 1/{work.rows}: {chance}.")
    return lines


def _guarantee(mu: float, delta: float) -> str:
    return f"μ = {mu:.6g}, ε = {epsilon_of(mu, delta):.6g} at δ = {delta:g}"


def _plain(work: Workload, wish: Wish) -> list[str]:
    """With plain local updates: 2C√r for every message of r rows, together 2C√(all rows)."""
    clip, sensitivity = wish.clip, 2 * wish.clip * sqrt(work.uploaded)
    c = sensitivity / wish.wanted if wish.noise is None else wish.noise
    claim = claim_of_theorem_6(work.updates, work.batch_size, work.rows, 2 * clip, c)
    return [
        f"plain local updates: {work.uploaded:.0f} rows uploaded, and one record may change all of them: sensitivity "
        f"2C·√rows = {sensitivity:.6g} in all",
        f"privacy.clip = {clip:g}, privacy.noise = {c:.6g}: {_guarantee(sensitivity / c, wish.delta)}",
        f"VAFL's Thm 6 would claim {_guarantee(claim, wish.delta)}, which does not hold against the server",
    ]


def _private(work: Workload, wish: Wish, gradient_clip: float) -> list[str]:
    """With private steps: 2C for every upload of the record's own row, 2G for every step with it."""
    of_rows, of_steps = 2 * wish.clip * sqrt(work.of_record), 2 * gradient_clip * sqrt(work.steps)
    if wish.noise is not None and wish.gradient_noise is not None:
        noise, gradient_noise = wish.noise, wish.gradient_noise
    else:
        noise = of_rows / (wish.wanted * sqrt(wish.share))
        gradient_noise = of_steps / (wish.wanted * sqrt(1 - wish.share))
    total = sqrt((of_rows / noise) ** 2 + (of_steps / gradient_noise) ** 2)
    return [
        f"local updates by dp-sgd: the same row is uploaded up to {work.of_record} times, and in up to {work.steps} "
        "steps",
        f"privacy.clip = {wish.clip:g}, privacy.noise = {noise:.6g}, privacy.dp_sgd = {{clip = {gradient_clip:g}, "
        f"noise = {gradient_noise:.6g}}}: {_guarantee(total, wish.delta)}",
    ]


@dataclass(frozen=True, slots=True)
class Needs:
    """One party's uploads in a run of a config, and their cost at a noise of 1."""

    party: str
    uploads: int
    rows: int
    steps: int  # private steps
    of_rows: float  # Σ Δ² of its uploads, for the record that pays most
    of_steps: float  # Σ Δ² of its private steps

    def mu(self, noise: "Noise") -> float:
        """μ of all releases with this noise, for a record that pays most in both sums."""
        return sqrt(self.of_rows / noise.rows**2 + (self.of_steps / noise.steps**2 if noise.steps else 0.0))


@dataclass(frozen=True, slots=True)
class Noise:
    """privacy.noise, and privacy.dp_sgd.noise if steps are private."""

    rows: float
    steps: float | None = None


def noise_for(parties: Sequence[Needs], wanted: Mapping[str, float], share: float) -> Noise:
    """The least noise that keeps every party's μ. All have the same noise, so the party that uploads most decides."""
    private = any(need.of_steps for need in parties)
    of_rows, of_steps = (share, 1 - share) if private else (1.0, 0.0)
    rows = max(sqrt(need.of_rows / of_rows) / wanted[need.party] for need in parties)
    steps = max(sqrt(need.of_steps / of_steps) / wanted[need.party] for need in parties) if private else None
    return Noise(_up(rows), None if steps is None else _up(steps))


def _up(value: float) -> float:
    """Round up to the six printed digits; rounding down could leave no room for the last upload in the budget."""
    unit = 10.0 ** (floor(log10(value)) - 5)
    return float(f"{ceil(value / unit) * unit:.6g}")
