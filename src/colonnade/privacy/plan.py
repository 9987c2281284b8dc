"""How much noise a guarantee takes, before anything is run; and which guarantee a noise gives."""

from dataclasses import dataclass
from math import ceil, sqrt

from colonnade.privacy.accountant import claim_of_theorem_6
from colonnade.privacy.gaussian import epsilon_of, mu_for
from colonnade.protocol.errors import ConfigError

__all__ = ["Workload", "planned"]


@dataclass(frozen=True)
class Workload:
    """What one party uploads in a run."""

    rows: int  # N
    batch_size: int
    updates: int
    extra_rows: float = 0.0  # in batches, with each upload
    test_rows: int = 0
    evaluations: int = 0
    warm_up: bool = True

    def __post_init__(self) -> None:
        for name in ("rows", "batch_size", "updates"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')}", getattr(self, name), "must be 1 or more")
        for name in ("extra_rows", "test_rows", "evaluations"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"--{name.replace('_', '-')}", getattr(self, name), "must be 0 or more")

    @property
    def uploaded(self) -> float:
        """Rows, all messages together: what moves if θ_m saw the record without noise."""
        training = self.updates * self.batch_size * (1 + self.extra_rows)
        return self.warm_up * self.rows + training + self.evaluations * self.test_rows

    @property
    def of_record(self) -> int:
        """How often the same row is uploaded: of a training row, or of one to test on, whichever is more."""
        passes = ceil(self.updates * self.batch_size * (1 + self.extra_rows) / self.rows)
        return max(self.warm_up + passes, self.evaluations if self.test_rows else 0)

    @property
    def steps(self) -> int:
        """Steps of θ_m with the same record."""
        return ceil(self.updates * self.batch_size / self.rows)


def planned(
    work: Workload,
    clip: float,
    epsilon: float | None,
    mu: float | None,
    noise: float | None,
    delta: float,
    gradient_clip: float | None,
    gradient_noise: float | None,
    share: float,
) -> list[str]:
    """The answer in words: noise for ε or μ, or μ and ε for a noise."""
    if sum(value is not None for value in (epsilon, mu, noise)) != 1:
        raise ConfigError("--epsilon, --mu, --noise", [epsilon, mu, noise], "give one of them: the others follow")
    given = {"--clip": clip, "--epsilon": epsilon, "--mu": mu, "--noise": noise, "--gradient-clip": gradient_clip}
    for name, value in (given | {"--gradient-noise": gradient_noise}).items():
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(name, value, "must be above 0")
    if not 0 < delta < 1 or not 0 < share < 1:
        raise ConfigError("--delta, --share", [delta, share], "must lie between 0 and 1")
    if noise is not None and (gradient_clip is None) != (gradient_noise is None):
        raise ConfigError("--gradient-noise", gradient_noise, "with --noise, it and --gradient-clip belong together")
    lines = _private(work, clip, epsilon, mu, noise, delta, gradient_clip, gradient_noise, share)
    if gradient_clip is None:
        lines = _plain(work, clip, epsilon, mu, noise, delta)
    if delta >= 1 / work.rows:
        lines.append(
            f"Warning: δ = {delta:g} is not below 1/{work.rows}: a whole record may be given away with that chance."
        )
    return lines


def _wanted(epsilon: float | None, mu: float | None, delta: float) -> float:
    return mu if mu is not None else mu_for(epsilon or 0.0, delta)


def _guarantee(mu: float, delta: float) -> str:
    return f"μ = {mu:.6g}, ε = {epsilon_of(mu, delta):.6g} at δ = {delta:g}"


def _plain(
    work: Workload, clip: float, epsilon: float | None, mu: float | None, noise: float | None, delta: float
) -> list[str]:
    """2C√r for every message of r rows: together 2C√(all rows)."""
    sensitivity = 2 * clip * sqrt(work.uploaded)
    c = sensitivity / _wanted(epsilon, mu, delta) if noise is None else noise
    claim = claim_of_theorem_6(work.updates, work.batch_size, work.rows, 2 * clip, c)
    return [
        f"plain local updates: {work.uploaded:.0f} rows uploaded, all of which a record may move: sensitivity "
        f"2C·√rows = {sensitivity:.6g} in all",
        f"privacy.clip = {clip:g}, privacy.noise = {c:.6g}: {_guarantee(sensitivity / c, delta)}",
        f"VAFL's Thm 6 would claim {_guarantee(claim, delta)}, which does not hold against the server",
    ]


def _private(
    work: Workload,
    clip: float,
    epsilon: float | None,
    mu: float | None,
    noise: float | None,
    delta: float,
    gradient_clip: float | None,
    gradient_noise: float | None,
    share: float,
) -> list[str]:
    """2C for every upload of the record's own row, 2G for every step with it."""
    if gradient_clip is None:
        return []
    of_rows, of_steps = 2 * clip * sqrt(work.of_record), 2 * gradient_clip * sqrt(work.steps)
    if noise is None or gradient_noise is None:
        wanted = _wanted(epsilon, mu, delta)
        noise, gradient_noise = of_rows / (wanted * sqrt(share)), of_steps / (wanted * sqrt(1 - share))
    total = sqrt((of_rows / noise) ** 2 + (of_steps / gradient_noise) ** 2)
    return [
        f"local updates by dp-sgd: the same row is uploaded up to {work.of_record} times, and in up to {work.steps} "
        "steps",
        f"privacy.clip = {clip:g}, privacy.noise = {noise:.6g}, privacy.dp_sgd = {{clip = {gradient_clip:g}, noise = "
        f"{gradient_noise:.6g}}}: {_guarantee(total, delta)}",
    ]
