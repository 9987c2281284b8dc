"""The input of an attack, its result, and the confidence in that result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import tomli_w
from scipy.stats import binomtest
from scipy.stats import t as student

from colonnade.config.resolve import load_partition
from colonnade.config.schema import Config
from colonnade.data import Partition
from colonnade.data.suggest import did_you_mean, listing
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.strict_json import to_json
from colonnade.results.folder import RunFolder, note_command

__all__ = [
    "NEVER",
    "PLAIN_SGD",
    "Attack",
    "Attacked",
    "Order",
    "Outcome",
    "Progress",
    "Trial",
    "attack",
    "choose",
    "margin_of",
]

LEVEL = 0.95
NEVER = "1000000 epochs"  # between two evaluations
# Attacked by default: steps as in the papers, not a method's own defaults.
PLAIN_SGD: Mapping[str, Any] = {"optimiser": "sgd", "learning_rate": 0.1, "batch_size": 64}
Progress = Callable[[str, float], None]  # what is being done, and the part of all that is done


@dataclass(frozen=True, slots=True)
class Order:
    """What the user wants to attack."""

    tables: Mapping[str, Any]  # of the config
    protocols: Sequence[str]
    attackers: Sequence[str]
    trials: int = 5
    load: Callable[[Config], Partition] = load_partition
    on_progress: Progress = lambda text, done: None
    on_data: Callable[["Attacked"], None] = lambda data: None  # called once, when the data are loaded


@dataclass(frozen=True, slots=True)
class Attacked:
    """The data that the numbers are about."""

    name: str
    rows: int  # training rows: these are attacked
    parties: tuple[str, ...]
    columns: tuple[int, ...]  # per party
    classes: int  # 0: regression

    @classmethod
    def of(cls, data: Partition) -> "Attacked":
        """Return what a reader must know about the data."""
        columns = tuple(len(names) for names in data.columns)
        return cls(data.name, len(data.y_train), data.parties, columns, len(data.task.classes))

    def __str__(self) -> str:
        held = listing([f"{name} ({count})" for name, count in zip(self.parties, self.columns, strict=True)])
        classes = f", {self.classes} classes" if self.classes else ""
        parties = f"{len(self.parties)} parties with their columns"
        return f"{self.name}: {self.rows:,} training rows{classes}; {parties}: {held}"


@dataclass(frozen=True, slots=True)
class Trial:
    """One seed: the number of rows guessed correctly, and the number if the labels were shuffled."""

    seed: int
    rows: int
    right: int
    control: int
    read: int  # rows for which the attacker had an answer; it guessed the others blindly
    asked: int
    refused: int
    shares: tuple[float, ...]  # p: of each class among the labels
    expected: float  # the value that `control` must be near: Σ (guesses of a class) · (its share of the labels)
    first_refusal: str = ""


def margin_of(values: Sequence[float]) -> float:
    """Return half of the 95 % confidence interval of a mean (Student); 0 for a single value."""
    count = len(values)
    return float(student.ppf((1 + LEVEL) / 2, count - 1)) * stdev(values) / sqrt(count) if count > 1 else 0.0


@dataclass(slots=True)
class Outcome:
    """One attacker against one method."""

    method: str
    attacker: str
    answers: str  # what the method sends to a party: "gradients" or "losses"
    classes: int
    trials: list[Trial] = field(default_factory=list)

    @property
    def chance(self) -> float:
        """The best success without any answer: always guess the most frequent class."""
        return mean(max(trial.shares) for trial in self.trials)

    @property
    def matched(self) -> float:
        """Σp²: the success of blind guesses with the same class frequencies as the labels."""
        return mean(sum(share**2 for share in trial.shares) for trial in self.trials)

    @property
    def success(self) -> float:
        """The mean share of rows guessed correctly."""
        return mean(trial.right / trial.rows for trial in self.trials)

    @property
    def margin(self) -> float:
        """Half of the 95 % confidence interval of the mean over trials."""
        return margin_of([trial.right / trial.rows for trial in self.trials])

    @property
    def wilson(self) -> tuple[float, float]:
        """The 95 % interval over all rows of all trials, as if they were independent."""
        rows, right = (sum(getattr(trial, name) for trial in self.trials) for name in ("rows", "right"))
        interval = binomtest(right, rows).proportion_ci(LEVEL, "wilson")
        return float(interval.low), float(interval.high)

    @property
    def control(self) -> float:
        """The success against shuffled labels: what the same guesses achieve by luck."""
        return mean(trial.control / trial.rows for trial in self.trials)

    def summary(self) -> dict[str, Any]:
        """Return the fields for attack.json."""
        return {
            "method": self.method,
            "attacker": self.attacker,
            "answers": self.answers,
            "success": self.success,
            "margin": self.margin,
            "wilson": list(self.wilson),
            "chance": self.chance,
            "matched": self.matched,
            "uniform": 1 / self.classes,
            "control": self.control,
            "control_expected": mean(trial.expected / trial.rows for trial in self.trials),
            "read": mean(trial.read / trial.rows for trial in self.trials),
            "asked": sum(trial.asked for trial in self.trials),
            "refused": sum(trial.refused for trial in self.trials),
            "trials": [{name: getattr(trial, name) for name in Trial.__slots__} for trial in self.trials],
        }


@dataclass(frozen=True, slots=True)
class Attack:
    """One command of `colonnade attack`."""

    name: str
    attackers: Mapping[str, str]  # attacker → what it does
    run: Callable[[Order], list[Any]]  # returns outcomes, each with a `summary`


def choose(key: str, given: Sequence[str], known: Mapping[str, Any]) -> None:
    """Raise ConfigError for an unknown word, or if there is none."""
    if not given:
        raise ConfigError(key, "", f"name at least one of: {', '.join(known)}")
    for word in given:
        if word not in known:
            raise ConfigError(key, word, f"unknown{did_you_mean(word, known)}; there are: {', '.join(known)}")


def attack(which: Attack, order: Order, out: str | Path | None = None, command: str = "") -> list[Any]:
    """Run an attack; with `out`, write attack.json, config.toml and the command into that new folder."""
    choose("--attackers", order.attackers, which.attackers)
    if order.trials < 1:
        raise ConfigError("--trials", order.trials, "must be 1 or more")
    if out is not None:
        RunFolder.refuse_used(out)
    seen: list[Attacked] = []
    outcomes = which.run(replace(order, load=partial(_load, order, seen)))
    if out is not None:
        _write(Path(out), which.name, order, seen, outcomes, command)
    return outcomes


def _load(order: Order, seen: list[Attacked], config: Config) -> Partition:
    data = order.load(config)
    if not seen:
        seen.append(Attacked.of(data))
        order.on_data(seen[0])
    return data


def _write(out: Path, name: str, order: Order, seen: list[Attacked], outcomes: list[Any], command: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    if command:
        note_command(out, command)
    (out / "config.toml").write_text(tomli_w.dumps(order.tables), encoding="utf-8")
    content = {
        "attack": name,
        "data": asdict(seen[0]) | {"text": str(seen[0])} if seen else None,
        "trials": order.trials,
        "outcomes": [outcome.summary() for outcome in outcomes],
    }
    (out / "attack.json").write_text(to_json(content, indent=2) + "\n", encoding="utf-8")
