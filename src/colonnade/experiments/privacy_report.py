"""What a privacy officer asks about a config before any training: what leaves, what it reveals, what that costs.

    part        from
    outflow     a simulation of the run's start (outflow.py)
    spending    dry runs at several speeds, and the accountant (dry_run.py)
    attempts    the attacks that apply (attempts.py)
    remedies    the accountant at other noises, and the registry of methods

The texts for readers are in report/privacy_words.py.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import msgspec

from colonnade.algorithms import METHODS
from colonnade.algorithms.method import Method
from colonnade.algorithms.observations import LOSSES
from colonnade.config.resolve import federation, method_of, privacy_of
from colonnade.config.schema import Config, to_dict
from colonnade.config.settle import settled
from colonnade.data import Partition
from colonnade.experiments.attempts import Attempts, attempts
from colonnade.experiments.dry_run import Counted, Noises, count
from colonnade.experiments.made_up import Holding, holding
from colonnade.experiments.outflow import Outflow, outflow
from colonnade.experiments.plan_noise import without_learning
from colonnade.privacy.gaussian import epsilon_of
from colonnade.privacy.plan import Needs, Noise, Wish, noise_for
from colonnade.privacy.settings import Budget, PrivacySettings
from colonnade.protocol.errors import ConfigError

__all__ = ["Alternative", "PrivacyReport", "Spending", "config_digest", "privacy_report"]

FACTORS = (0.5, 2.0, 4.0, 10.0)  # of the noise: the report gives ε for each
WANTED = (10.0, 1.0)  # ε: the report gives the noise for each
CLIP, DELTA = 1.0, 1e-5  # if the config has no mechanism
Show = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Spending:
    """What uploads cost with the config's noise, or what noise they would need."""

    counted: Counted
    mechanism: PrivacySettings  # the mechanism that is on, or that would be
    on: bool
    noise: Noise
    budgets: dict[str, Budget]
    modes: tuple[str, ...]  # the values of privacy.local_updates that the method has
    notes: tuple[str, ...]  # warnings about the settings

    @property
    def most(self) -> Needs:
        """Of the party that uploads most, at any speed."""
        assert self.counted.most is not None
        return self.counted.most

    def epsilon(self, need: Needs, factor: float = 1.0) -> float:
        """Return ε with `factor` times the noise."""
        return epsilon_of(need.mu(self.noise) / factor, self.mechanism.delta)

    @property
    def at_other_noises(self) -> list[tuple[float, float]]:
        """(factor, ε) of the party that uploads most."""
        return [(factor, self.epsilon(self.most, factor)) for factor in FACTORS]

    @property
    def needed(self) -> list[tuple[float, float]]:
        """(ε, the noise that it needs)."""
        wishes = [Wish(self.mechanism.clip or CLIP, epsilon=epsilon, delta=self.mechanism.delta) for epsilon in WANTED]
        one = replace(self.most, of_steps=0.0)
        return [(wish.epsilon or 0.0, noise_for([one], {one.party: wish.wanted}, wish.share).rows) for wish in wishes]


@dataclass(frozen=True, slots=True)
class Alternative:
    """Methods that reveal less than the config's, in one respect."""

    methods: tuple[str, ...]
    less: str
    cost: str


@dataclass(frozen=True, slots=True)
class PrivacyReport:
    """Everything that the page says."""

    made: datetime
    digest: str  # sha256 of the settled config
    method: Method
    reveals: str
    protects: str  # what the method's own protection does; "": it has none
    shares_labels: bool  # whether the server tells the parties the labels
    held: Holding
    outflow: Outflow
    spending: Spending | None  # None: the method has no place for noise
    attempts: Attempts
    alternatives: list[Alternative]
    stays: bool  # whether predictions continue after the training


def privacy_report(
    config: Config,
    show: Show,
    *,
    party: str | None = None,
    rows: int | None = None,
    columns: int | None = None,
    now: datetime | None = None,
) -> PrivacyReport:
    """Simulate, count and attack; refuses a config that a run would refuse."""
    method, options = method_of(config.protocol)
    if method.joint is not None:
        advice = "has no parties: all columns and labels are in one place, so there is nothing to report"
        raise ConfigError("protocol.name", method.name, advice)
    show("reads the data", 0.0)
    held = holding(config, party, rows, columns)
    data = held.data
    config = msgspec.structs.replace(config, methods={})
    federation(config, data).roles()  # refuses what cannot be trained
    # Without budgets: a party that stops early sends less than this.
    unlimited = msgspec.structs.replace(config, party=msgspec.structs.replace(config.party, budget=None, budgets={}))
    found = outflow(unlimited, data, lambda done: show("simulates the messages", 0.05 + 0.25 * done))
    spending = _spending(config, data, lambda done: show("counts uploads at several speeds", 0.3 + 0.4 * done))
    tried = attempts(config, held, lambda text, done: show(f"attacks: {text}", 0.7 + 0.3 * done))
    return PrivacyReport(
        (datetime.now(UTC) if now is None else now).replace(microsecond=0),
        config_digest(settled(config, len(data.y_train), data.validation)),
        method,
        options.reveals or method.reveals,
        options.protects,
        options.shares_labels,
        held,
        found,
        spending,
        tried,
        _alternatives(method),
        config.predict.stay,
    )


def config_digest(config: Config) -> str:
    """Return the digest of a settled config; configs that settle to the same values have the same."""
    text = json.dumps(to_dict(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _spending(config: Config, data: Partition, show: Callable[[float], None]) -> Spending | None:
    method, options = method_of(config.protocol)
    mechanism = privacy_of(config)
    budgets = {name: budget for name in data.parties if (budget := config.budget_of(name)) is not None}
    if options.mechanism is not None:
        train = msgspec.structs.replace(config.train, learning_rate=0.0, optimiser="sgd", patience=0)
        party = msgspec.structs.replace(config.party, budget=None, budgets={})
        dry, noises = msgspec.structs.replace(config, train=train, party=party), Noises(rows=mechanism.noise)
        counted, noise = count(dry, data, show, noises=noises), Noise(mechanism.noise)
        return Spending(counted, mechanism, True, noise, budgets, (), mechanism.notes(len(data.y_train)))
    if not method.capabilities.local_updates:
        return None
    on = mechanism.on
    if not on:
        mechanism = PrivacySettings(mechanism="output", clip=CLIP, noise=1.0, delta=min(DELTA, 0.1 / len(data.y_train)))
    steps = mechanism.dp_sgd
    wish = Wish(
        mechanism.clip or CLIP,
        noise=mechanism.noise,
        delta=mechanism.delta,
        gradient_clip=None if steps is None else steps.clip,
        gradient_noise=None if steps is None else steps.noise,
    )
    dry = msgspec.structs.replace(config, privacy=mechanism)
    noise = Noise(mechanism.noise, None if steps is None else steps.noise)
    counted, notes = count(without_learning(dry, wish), data, show), mechanism.notes(len(data.y_train))
    return Spending(counted, mechanism, on, noise, budgets, method.capabilities.local_updates, notes)


def _alternatives(method: Method) -> list[Alternative]:
    """Find alternatives from what the registry says of each method, not from its name."""
    others = [other for other in METHODS.values() if other.joint is None and other.name != method.name]
    found = []
    if not _sums_only(method):
        sums = [other for other in others if _sums_only(other) and not other.capabilities.party_labels]
        found.append(_alternative(sums, "the server sees sums over several parties, never one party's embeddings"))
        alone = [other for other in others if other.capabilities.party_labels]
        found.append(_alternative(alone, "no server computes: parties learn sums over all parties"))
    if method.observations is not None and method.observations.answers != LOSSES:
        losses = [other for other in others if other.observations is not None and other.observations.answers == LOSSES]
        found.append(_alternative(losses, "parties get two losses for a batch, not a gradient for each row"))
    if not method.capabilities.local_updates:
        able = [other for other in others if other.capabilities.local_updates]
        found.append(_alternative(able, "can add noise, which gives a formal guarantee against the server"))
    return [one for one in found if one.methods]


def _sums_only(method: Method) -> bool:
    """Whether the method declares that it sends nothing of one party alone in the clear; False if it does not say."""
    return method.capabilities.party_labels or (
        method.observations is not None and method.observations.sums is not None
    )


def _alternative(methods: list[Method], less: str) -> Alternative:
    return Alternative(tuple(method.name for method in methods), less, _cost(methods[0]) if methods else "")


def _cost(method: Method) -> str:
    can, costs = method.capabilities, []
    if can.party_labels:
        costs.append("every party must hold the labels, and models are linear")
    if can.party_models:
        costs.append(f"networks must be {' or '.join(can.party_models)}")
    if can.aggregates:
        costs.append(f"embeddings must be combined by {' or '.join(can.aggregates)}")
    if method.observations is not None and method.observations.answers == LOSSES:
        costs.append("parties learn from differences of losses, which takes more steps and small networks")
    if can.local_updates and not costs:
        costs.append("the server sees each party's embeddings, with noise")
    return "; ".join(costs)
