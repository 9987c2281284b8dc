"""Direct label inference on a summing server: VFL-Cascaded Sec. VI-B, after Fu et al. (2022).

The server adds up the parties' outputs and has no layers of its own ("model without split"), so ∂ℓ/∂h of a party is
∂ℓ/∂y: negative for the label, positive for all other classes. One epoch, in which the attacker guesses the label of
every training row; success is the share of right guesses.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from colonnade.algorithms import find_method
from colonnade.algorithms.method import Method
from colonnade.algorithms.vafl.messages import Gradient
from colonnade.algorithms.zeroth.messages import Losses
from colonnade.attacks.attack import Attack, Order, Outcome, Trial
from colonnade.attacks.clients import UNKNOWN, Client, GradientReader, LossReader, PackedRows, RowByRow
from colonnade.attacks.ears import Direction, Ear, known_direction, random_direction
from colonnade.attacks.stage import Stage
from colonnade.data import Partition
from colonnade.experiments.compare import Contestant, contestants
from colonnade.experiments.config import apply_overrides, from_dict
from colonnade.experiments.resolve import federation
from colonnade.protocol.errors import ConfigError, ModelError
from colonnade.protocol.messages import Array
from colonnade.protocol.seeds import generator

__all__ = ["CASES", "LABEL_INFERENCE", "Case", "answers_of", "infer_labels", "summing_tables"]

ATTACKERS = {
    "curious": "a party that uploads random numbers and reads the answers (Sec. VI-B)",
    "eavesdropper": "somebody on the wire of a benign party (Sec. VI-B)",
    "adaptive": "a party that asks cleverly: row by row with and without the server's rules, and inside the rules",
    "per-sample": "the curious party, if the server told losses per sample",
}
NEVER = "1000000 epochs"


@dataclass(frozen=True, slots=True)
class Case:
    """One attacker under one set of rules; it attacks methods that answer with `answers`."""

    attacker: str
    title: str
    answers: str
    client: type[Client] | None = None  # None: an eavesdropper
    direction: Direction = random_direction
    rules: bool = True
    per_sample: bool = False
    own_rows: bool = False  # whether it chooses rows, which coordinated rounds do not let it

    def attack(self, stage: Stage, show: Callable[[float], None]) -> "Found":
        """Play it."""
        if self.client is None:
            ear = Ear(stage.place, self.direction)
            stage.listen(ear, show)
            return Found(ear.guesses, ear.heard)
        client = self.client(stage.place)
        intruder = stage.intrude(client, rules=self.rules, per_sample=self.per_sample, show=show)
        return Found(client.guesses, intruder.asked, client.refusals, intruder.first_refusal)


@dataclass(frozen=True, slots=True)
class Found:
    """What an attacker comes home with."""

    guesses: Array
    asked: int
    refused: int = 0
    first_refusal: str = ""


CASES = (
    Case("curious", "curious client", "gradients", GradientReader),
    Case("curious", "curious client", "losses", LossReader),
    Case("eavesdropper", "eavesdropper", "gradients"),
    Case("eavesdropper", "eavesdropper, random u", "losses"),
    Case("eavesdropper", "eavesdropper, ĉ − c for u", "losses", direction=known_direction),
    Case("per-sample", "curious client, losses per sample", "losses", LossReader, per_sample=True),
    Case("adaptive", "row by row, against the rules", "losses", RowByRow, own_rows=True),
    Case("adaptive", "row by row, no rules", "losses", RowByRow, rules=False, own_rows=True),
    Case("adaptive", "packed rows, inside the rules", "losses", PackedRows),
)


def infer_labels(order: Order, cases: Sequence[Case] = CASES) -> list[Outcome]:
    """Every attacker against every method, with one seed after the other."""
    tables = summing_tables(order.tables)
    entrants = contestants(tables, order.protocols)
    methods = {entrant.label: _method(entrant) for entrant in entrants}
    first = from_dict(tables).train.seed
    outcomes: dict[tuple[str, str], Outcome] = {}
    steps = [
        (entrant, case, seed)
        for seed in range(first, first + order.trials)
        for entrant in entrants
        for case in cases
        if case.attacker in order.attackers and case.answers == answers_of(methods[entrant.label])
    ]
    data: tuple[int, Partition] | None = None
    for number, (entrant, case, seed) in enumerate(steps):
        if data is None or data[0] != seed:
            data = seed, order.load(from_dict(apply_overrides(tables, {"train.seed": seed})))
            _refuse(data[1])
        stage = _stage(entrant, seed, data[1])
        if case.own_rows and stage.place.coordinated:
            continue
        task, y = data[1].task, data[1].y_train
        chance = float(np.bincount(y.astype(np.int64)).max() / len(y))
        fresh = Outcome(entrant.label, case.title, case.answers, chance, len(task.classes))
        outcome = outcomes.setdefault((entrant.label, case.title), fresh)
        show = partial(_show, order, f"{entrant.label}: {case.title}, seed {seed}", number, len(steps))
        outcome.trials.append(_trial(case, stage, y.astype(np.int64), show))
    order.on_progress("", 1.0)
    return list(outcomes.values())


def _show(order: Order, text: str, number: int, count: int, done: float) -> None:
    order.on_progress(text, (number + done) / count)


def _trial(case: Case, stage: Stage, y: Array, show: Callable[[float], None]) -> Trial:
    """Rows about which it learned nothing are guessed; the control is the same guesses against shuffled labels."""
    show(0.0)
    found, place = case.attack(stage, show), stage.place
    random = generator(place.seed, "guess")
    known = found.guesses != UNKNOWN
    guesses = np.where(known, found.guesses, random.integers(place.classes, size=place.rows))
    right, control = int((guesses == y).sum()), int((guesses == random.permutation(y)).sum())
    counts = (int(known.sum()), found.asked, found.refused)
    return Trial(place.seed, place.rows, right, control, *counts, found.first_refusal)


def answers_of(method: Method) -> str:
    """What the method tells a party: its payloads say it."""
    if method.party is None:
        raise ConfigError("--protocols", method.name, "has no parties and no messages: there is nothing to attack")
    if Losses in method.payloads:
        return "losses"
    if Gradient in method.payloads:
        return "gradients"
    advice = "answers with messages that no attacker here can read; docs/attacks.md says how to add one"
    raise ConfigError("--protocols", method.name, advice)


def _method(entrant: Contestant) -> Method:
    method = find_method(entrant.tables["protocol"]["name"])
    if answers_of(method) == "losses" and not getattr(method.options(), "directions", 0):
        advice = (
            "its parties send no perturbed embeddings, and the attackers here read differences of losses; take cascaded"
        )
        raise ConfigError("--protocols", method.name, advice)
    return method


def summing_tables(tables: Any) -> dict[str, Any]:
    """The config with the defaults of Sec. VI-B, refused if its server does more than add up."""
    model = dict(tables.get("model", {}))
    for key, wanted in (("server", "none"), ("aggregate", "sum")):
        if model.setdefault(key, wanted) != wanted:
            advice = "the direct attack needs a server that only adds up (Sec. VI-B): --set model.server=none "
            advice += "--set model.aggregate=sum --set model.embedding=CLASSES"
            raise ConfigError(f"model.{key}", model[key], advice)
    model.setdefault("party", "linear")
    train = {
        key: value for key, value in tables.get("train", {}).items() if key not in ("epochs", "updates", "seconds")
    }
    train |= {"epochs": 1e6, "eval_every": NEVER}  # the attacker ends the run
    data = dict(tables.get("data", {}))
    if not isinstance(data.get("split"), dict):
        data.setdefault("parties", 2)
    return {**tables, "data": data, "model": model, "train": train}


def _refuse(data: Partition) -> None:
    if data.task.kind == "regression":
        advice = "is a regression task: there are no classes to infer; choose data with a class label"
        raise ConfigError("data.source", data.name, advice)


def _stage(entrant: Contestant, seed: int, data: Partition) -> Stage:
    """The federation of one trial; a party's output is as wide as the task unless the config says otherwise."""
    outputs = data.task.outputs
    embedding = entrant.tables["model"].get("embedding", outputs)
    if any(width != outputs for width in (embedding if isinstance(embedding, list) else [embedding])):
        raise ModelError(f"model.embedding = {embedding}: a summing server needs {outputs} outputs of every party")
    overrides = {"train.seed": seed, "model.embedding": outputs}
    return Stage(federation(from_dict(apply_overrides(entrant.tables, overrides)), data))


LABEL_INFERENCE = Attack("label-inference", ATTACKERS, infer_labels)
