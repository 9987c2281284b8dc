"""How much noise a config's parties need: dry_run.py counts the releases, the accountant computes the noise."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from colonnade.config.resolve import limit_of, method_of
from colonnade.config.schema import Config
from colonnade.config.settle import settled
from colonnade.data import Partition
from colonnade.experiments.dry_run import ROWS_NOISE, STEPS_NOISE, Counted, Speeds, count
from colonnade.privacy.gaussian import mu_for
from colonnade.privacy.plan import Needs, Noise, Wish, noise_for
from colonnade.privacy.settings import DpSgd, PrivacySettings
from colonnade.protocol.errors import ConfigError

__all__ = ["Asked", "Planned", "plan_noise", "without_learning"]

NEXT_TO_NOTHING = 1e-12  # a rate above 0 that moves no weight


@dataclass(frozen=True, slots=True)
class Asked:
    """The options that were typed; the config supplies the others."""

    clip: float | None = None
    epsilon: float | None = None
    mu: float | None = None
    noise: float | None = None
    delta: float | None = None
    gradient_clip: float | None = None
    gradient_noise: float | None = None
    share: float = 0.75
    speeds: Speeds = "any"


@dataclass(frozen=True, slots=True)
class Planned:
    """The noise, and what each party spends with it."""

    needs: list[Needs]  # the releases for which the noise was planned
    counted: Counted
    noise: Noise
    clip: float
    gradient_clip: float | None
    delta: float
    assumed: str
    notes: tuple[str, ...]


def plan_noise(config: Config, data: Partition, asked: Asked, show: Callable[[float], None]) -> Planned:
    """Plan for the party that uploads most, at any speeds; raises ConfigError if the method has no place for noise."""
    budgets = {name: budget for name in data.parties if (budget := config.budget_of(name)) is not None}
    own = {name: mu_for(budget.epsilon, budget.delta) for name, budget in budgets.items()}
    by_budget = asked.epsilon is asked.mu is asked.noise is None and len(own) == len(data.parties)
    wish = _wish(config.privacy, asked, min(own.values()) if by_budget else asked.mu)
    counted = count(without_learning(config, wish), data, show, asked.speeds)
    needs = counted.needs
    if wish.noise is not None:
        noise = Noise(wish.noise, wish.gradient_noise)
    else:
        noise = noise_for(needs, own if by_budget else dict.fromkeys(data.parties, wish.wanted), wish.share)
    privacy = msgspec.structs.replace(config.privacy, mechanism="output", delta=wish.delta)
    notes = privacy.notes(len(data.y_train))
    assumed = f"{_assumed(config, data)}; {'; '.join(counted.assumed)}"
    return Planned(needs, counted, noise, wish.clip, wish.gradient_clip, wish.delta, assumed, notes)


def _wish(privacy: PrivacySettings, asked: Asked, mu: float | None) -> Wish:
    """Return the typed options, completed from `[privacy]`."""
    clip = privacy.clip if asked.clip is None else asked.clip
    if clip is None:
        raise ConfigError(
            "privacy.clip",
            None,
            "is missing: without a bound on every row no noise gives a guarantee. Set it, or give --clip",
        )
    gradient_clip, gradient_noise = asked.gradient_clip, asked.gradient_noise
    if privacy.dp_sgd is not None:
        gradient_clip = privacy.dp_sgd.clip if gradient_clip is None else gradient_clip
        if asked.noise is not None and gradient_noise is None:
            gradient_noise = privacy.dp_sgd.noise
    delta = privacy.delta if asked.delta is None else asked.delta
    return Wish(clip, asked.epsilon, mu, asked.noise, delta, gradient_clip, gradient_noise, asked.share)


def without_learning(config: Config, wish: Wish) -> Config:
    """Return the config of a dry run with the wish's mechanism."""
    replaced = msgspec.structs.replace
    private = wish.gradient_clip is not None
    privacy = replaced(
        config.privacy,
        mechanism="output",
        clip=wish.clip,
        noise=ROWS_NOISE,
        inner=0.0,
        delta=wish.delta,
        local_updates="dp-sgd" if private else config.privacy.local_updates,
        dp_sgd=DpSgd(wish.gradient_clip, STEPS_NOISE) if wish.gradient_clip is not None else None,
    )
    train = replaced(config.train, learning_rate=0.0, optimiser="sgd", patience=0)  # nothing would improve
    model = replaced(config.model, party="linear", device="cpu")
    # `A` of adaptive-flex is a rate, too. It stays, because a round that measures τ goes with it.
    protocol = {key: NEXT_TO_NOTHING if key == "A" else value for key, value in config.protocol.items()}
    party = replaced(config.party, budget=None, budgets={})
    return replaced(config, privacy=privacy, train=train, model=model, protocol=protocol, party=party)


def _rows(data: Partition) -> str:
    sizes = {"training": len(data.y_train), "validation": data.validation, "test": len(data.y_test) - data.validation}
    *first, last = [f"{count} {what}" for what, count in sizes.items() if count]
    return f"{', '.join(first)} and {last}" if first else last


def _assumed(config: Config, data: Partition) -> str:
    limit, (method, _) = limit_of(settled(config).train), method_of(config.protocol)
    return f"{method.name} on {data.name} ({_rows(data)} rows), {limit.amount:g} {limit.unit}, seed {config.train.seed}"
