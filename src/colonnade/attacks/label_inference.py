"""Direct label inference on a summing server: VFL-Cascaded Sec. VI-B, after Fu et al. (2022).

The server adds up the parties' outputs and has no layers of its own ("model without split"), so ∂ℓ/∂h of a party is
∂ℓ/∂y: negative for the label, positive for all other classes. The attack takes one epoch, in which the attacker guesses
the label of every training row. Success is the share of correct guesses.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from colonnade.algorithms import DEFAULT_METHOD, find_method
from colonnade.algorithms.method import Method
from colonnade.algorithms.observations import CODED, GRADIENTS, LOSSES, Observations
from colonnade.attacks.attack import NEVER, PLAIN_SGD, Attack, Order, Outcome, Trial
from colonnade.attacks.clients import UNKNOWN, Client, GradientReader, LossReader, PackedRows, RowByRow
from colonnade.attacks.eavesdropper import Direction, Eavesdropper, known_direction, random_direction
from colonnade.attacks.stage import Stage
from colonnade.attacks.wires import observations_of
from colonnade.config.resolve import federation, method_of, scale_of
from colonnade.config.schema import apply_overrides, from_dict
from colonnade.data import Partition
from colonnade.experiments.compare import Contestant, contestants
from colonnade.protocol.errors import ConfigError, ModelError
from colonnade.protocol.messages import Array
from colonnade.protocol.seeds import generator

__all__ = ["CASES", "LABEL_INFERENCE", "Case", "infer_labels", "summing_tables"]

ATTACKERS = {
    "curious": "a party that uploads random numbers and reads the answers (Sec. VI-B)",
    "eavesdropper": "a listener on the wire of a benign party (Sec. VI-B)",
    "adaptive": "a party that picks its requests: row by row with and without the server's rules, and within them",
    "per-sample": "the curious party, if the server sent one loss per row",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One attacker under one set of rules; it attacks methods that answer with `answers`."""

    attacker: str
    title: str
    answers: str
    client: type[Client] | None = None  # None: it sends no messages, and reads a benign party's
    direction: Direction = random_direction
    rules: bool = True
    per_sample: bool = False
    own_rows: bool = False  # whether it chooses rows, which coordinated rounds do not allow

    def fits(self, seen: Observations[Any]) -> bool:
        """Whether the method gives these answers, and shows or takes all that this attacker needs."""
        if self.answers != seen.answers or (seen.experiment is None and (self.per_sample or not self.rules)):
            return False
        if self.client is not None:
            return seen.pen is not None
        return seen.upload is not None or self.answers != LOSSES  # a gradient's rows follow from the walk

    def attack(self, stage: Stage, show: Callable[[float], None]) -> "Found":
        """Run the attack."""
        if self.client is None:
            eavesdropper = Eavesdropper(stage.place, self.direction)
            stage.listen(eavesdropper, show)
            return Found(eavesdropper.guesses, eavesdropper.heard)
        client = self.client(stage.place)
        intruder = stage.intrude(client, rules=self.rules, per_sample=self.per_sample, show=show)
        return Found(client.guesses, intruder.asked, client.refusals, intruder.first_refusal)


@dataclass(frozen=True, slots=True)
class Found:
    """The result of one attacker."""

    guesses: Array
    asked: int
    refused: int = 0
    first_refusal: str = ""


CASES = (
    Case("curious", "curious client", GRADIENTS, GradientReader),
    Case("curious", "curious client, by the protocol", CODED),  # its uploads are coded, so it reads the answers
    Case("curious", "curious client", LOSSES, LossReader),
    Case("eavesdropper", "eavesdropper", GRADIENTS),
    Case("eavesdropper", "eavesdropper", CODED),
    Case("eavesdropper", "eavesdropper, random u", LOSSES),
    Case("eavesdropper", "eavesdropper, ĉ − c for u", LOSSES, direction=known_direction),
    Case("per-sample", "curious client, losses per sample", LOSSES, LossReader, per_sample=True),
    Case("adaptive", "row by row, against the rules", LOSSES, RowByRow, own_rows=True),
    Case("adaptive", "row by row, no rules", LOSSES, RowByRow, rules=False, own_rows=True),
    Case("adaptive", "packed rows, inside the rules", LOSSES, PackedRows),
)


def infer_labels(order: Order, cases: Sequence[Case] = CASES) -> list[Outcome]:
    """Run every attacker against every method, one seed after the other."""
    entrants = _entrants(order)
    methods = {entrant.label: _method(entrant) for entrant in entrants}
    first = from_dict(entrants[0].tables).train.seed
    outcomes: dict[tuple[str, str], Outcome] = {}
    steps = [
        (entrant, case, seed)
        for seed in range(first, first + order.trials)
        for entrant in entrants
        for case in cases
        if case.attacker in order.attackers and case.fits(observations_of(methods[entrant.label]))
    ]
    loaded: dict[tuple[int, str | None], Partition] = {}  # methods may need another scale
    for number, (entrant, case, seed) in enumerate(steps):
        config = from_dict(apply_overrides(entrant.tables, {"train.seed": seed}))
        key = seed, scale_of(config)
        if key not in loaded:
            loaded = {known: data for known, data in loaded.items() if known[0] == seed} | {key: order.load(config)}
            _refuse(loaded[key])
        data = loaded[key]
        stage = _stage(entrant, seed, data)
        if case.own_rows and stage.place.asking.coordinated:
            continue
        y = data.y_train.astype(np.int64)
        fresh = Outcome(entrant.label, case.title, case.answers, len(data.task.classes))
        outcome = outcomes.setdefault((entrant.label, case.title), fresh)
        show = partial(_show, order, f"{entrant.label}: {case.title}, seed {seed}", number, len(steps))
        outcome.trials.append(_trial(case, stage, y, show))
    order.on_progress("", 1.0)
    if not outcomes:
        advice = f"these attackers cannot attack {', '.join(methods)}; curious and eavesdropper can"
        raise ConfigError("--attackers", ",".join(order.attackers), advice)
    return list(outcomes.values())


def _entrants(order: Order) -> list[Contestant]:
    """Return every method with the defaults of Sec. VI-B, all on the same columns."""
    found = contestants(order.tables, order.protocols)
    methods = [find_method(entrant.tables["protocol"]["name"]) for entrant in found]
    parties = max(observations_of(method).summing.parties for method in methods)
    return [Contestant(entrant.label, summing_tables(entrant.tables, parties)) for entrant in found]


def _show(order: Order, text: str, number: int, count: int, done: float) -> None:
    order.on_progress(text, (number + done) / count)


def _trial(case: Case, stage: Stage, y: Array, show: Callable[[float], None]) -> Trial:
    """Guess blindly the rows about which it learned nothing.

    The control is the same guesses against shuffled labels.
    """
    show(0.0)
    found, place = case.attack(stage, show), stage.place
    random = generator(place.seed, "guess")
    known = found.guesses != UNKNOWN
    guesses = np.where(known, found.guesses, random.integers(place.classes, size=place.rows))
    right, control = int((guesses == y).sum()), int((guesses == random.permutation(y)).sum())
    counts = (int(known.sum()), found.asked, found.refused)
    of_guesses, of_labels = (np.bincount(labels, minlength=place.classes) for labels in (guesses, y))
    shares = of_labels / len(y)
    by_luck = float(of_guesses @ shares)
    return Trial(place.seed, place.rows, right, control, *counts, tuple(shares.tolist()), by_luck, found.first_refusal)


def _method(entrant: Contestant) -> Method:
    method, options = method_of(entrant.tables["protocol"])
    observations_of(method).check(options)
    return method


def summing_tables(tables: Any, parties: int = 2) -> dict[str, Any]:
    """Return the config with the defaults of Sec. VI-B; refuses a server that does more than add up (or average)."""
    model = dict(tables.get("model", {}))
    method = find_method(str(tables.get("protocol", {}).get("name", DEFAULT_METHOD)))
    summing = observations_of(method).summing
    allowed = {"server": ("none",), "aggregate": ("sum", "mean")}
    for key, default in (("server", "none"), ("aggregate", summing.aggregate)):
        if model.setdefault(key, default) not in allowed[key]:
            advice = "the direct attack needs a server that only sums (Sec. VI-B); add --set model.server=none "
            advice += f"--set model.aggregate={summing.aggregate} --set model.embedding=CLASSES"
            raise ConfigError(f"model.{key}", model[key], advice)
    model.setdefault("party", summing.party)
    train = {
        key: value for key, value in tables.get("train", {}).items() if key not in ("epochs", "updates", "seconds")
    }
    train = dict(PLAIN_SGD) | train | {"epochs": 1e6, "eval_every": NEVER}  # the attacker ends the run
    data = dict(tables.get("data", {}))
    if not isinstance(data.get("split"), dict):
        data.setdefault("parties", parties)
    return {**tables, "data": data, "model": model, "train": train}


def _refuse(data: Partition) -> None:
    if data.task.kind == "regression":
        advice = "is a regression task: there are no classes to infer; choose data with a class label"
        raise ConfigError("data.source", data.name, advice)


def _stage(entrant: Contestant, seed: int, data: Partition) -> Stage:
    """Make the federation of one trial; by default a party's output is as wide as the task."""
    outputs = data.task.outputs
    embedding = entrant.tables["model"].get("embedding", outputs)
    if any(width != outputs for width in (embedding if isinstance(embedding, list) else [embedding])):
        raise ModelError(
            f"model.embedding = {embedding}: a server that only sums needs an embedding of {outputs} from every party"
        )
    overrides = {"train.seed": seed, "model.embedding": outputs}
    return Stage(federation(from_dict(apply_overrides(entrant.tables, overrides)), data))


LABEL_INFERENCE = Attack("label-inference", ATTACKERS, infer_labels)
