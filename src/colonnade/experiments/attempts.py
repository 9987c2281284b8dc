"""Run the attacks of `colonnade attack` on a config's own method, model and data, in bounded time.

They attack a part of the rows in a short training; attacks that do not apply are listed with the reason. A success on
made-up rows counts as a success. A failure on made-up rows shows nothing: real columns depend on each other in ways
that an attacker can use, and random columns do not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from colonnade.attacks import ATTACKS
from colonnade.attacks.attack import NEVER, Order
from colonnade.attacks.feature_inversion import KNOWN, invert
from colonnade.attacks.label_inference import CASES, infer_labels
from colonnade.config.resolve import federation, method_of
from colonnade.config.schema import Config, to_dict
from colonnade.config.settle import settled
from colonnade.data import Partition
from colonnade.experiments.made_up import Holding
from colonnade.protocol.errors import ColonnadeError, ConfigError
from colonnade.protocol.role import SERVER

__all__ = ["Attempt", "Attempts", "attempts"]

ROWS = 1000  # training rows, at most
EPOCHS = 3.0
LABEL_ATTACKERS = {
    "curious": "a party that uploads made-up numbers and reads the answers",
    "eavesdropper": "a reader of all messages between a party and the server, without TLS",
    "adaptive": "a party that chooses its requests to find labels",
}
DECODER = "linear"
CLEAR = 0.02  # a success is more than this above chance and control
Show = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attacker that was tried."""

    attack: str
    attacker: str  # in words
    aim: str
    success: float  # a share
    chance: float  # the same share without any message
    control: float  # the same attacker when there is nothing to learn
    unit: str  # what the shares are of
    real: bool  # whether the attacked values are real
    own_model: bool = True  # False: a server that only adds up replaces the config's

    @property
    def succeeds(self) -> bool:
        """Whether the success is clearly above chance and control."""
        return self.success > max(self.chance, self.control) + CLEAR


@dataclass(frozen=True, slots=True)
class Attempts:
    """The attacks that were tried, and those that were not."""

    made: list[Attempt]
    left_out: dict[str, str]  # attack → why it was left out
    rows: int
    epochs: float


def attempts(config: Config, held: Holding, show: Show) -> Attempts:
    """Try every attack that applies to the config's method."""
    data = _fewer(held.data)
    config = _short(settled(config, len(held.data.y_train), held.data.validation))
    made: list[Attempt] = []
    left_out: dict[str, str] = {}
    tries: tuple[tuple[str, Callable[[Config, Partition, Holding, Show], list[Attempt]]], ...] = (
        ("feature-inversion", _features),
        ("label-inference", _labels),
    )
    for name, attempt in tries:
        try:
            made += attempt(config, data, held, partial(_tell, show, name))
        except ColonnadeError as error:
            left_out[name] = error.advice if isinstance(error, ConfigError) else str(error)
    left_out |= {name: "cannot be run by this report" for name in ATTACKS if name not in dict(tries)}
    return Attempts(made, left_out, len(data.y_train), EPOCHS)


def _tell(show: Show, name: str, text: str, done: float) -> None:
    show(f"{name}: {text}", done)


def _fewer(data: Partition) -> Partition:
    """Keep at most ROWS of the training rows, and as many of those held out."""
    train, test = (tuple(block[:ROWS] for block in blocks) for blocks in (data.train, data.test))
    return replace(
        data,
        train=train,
        test=test,
        y_train=data.y_train[:ROWS],
        y_test=data.y_test[:ROWS],
        validation=min(data.validation, ROWS - 1),
    )


def _short(config: Config) -> Config:
    """Return the config with a few epochs, without evaluations, budgets or faults."""
    train = msgspec.structs.replace(
        config.train, epochs=EPOCHS, updates=None, seconds=None, eval_every=NEVER, patience=0, target=None
    )
    clock = msgspec.structs.replace(config.clock, faults=[])
    party = msgspec.structs.replace(config.party, budget=None, budgets={})
    return msgspec.structs.replace(config, train=train, clock=clock, party=party, methods={})


def _features(config: Config, data: Partition, held: Holding, show: Show) -> list[Attempt]:
    """Attack as a curious server; the victim is the party whose config it is, or the first one."""
    victim = data.parties.index(held.view) if held.view in data.parties else 0
    method, _ = method_of(config.protocol)
    if method.capabilities.party_labels:
        raise ConfigError("protocol.name", method.name, _NO_EMBEDDINGS)
    setting = federation(config, data)
    found = invert(setting, [DECODER], lambda done: show(data.parties[victim], done), victim)[DECODER]
    return [
        Attempt(
            "feature-inversion",
            f"a curious server that knows the columns of {100 * KNOWN:g} % of the rows",
            f"the columns of {data.parties[victim]}",
            1 - found["error"],
            0.0,
            1 - found["control"],
            "of the variation of the columns in the other rows",
            data.parties[victim] in held.real,
        )
    ]


_NO_EMBEDDINGS = "no party uploads embeddings, so there is nothing to invert"


def _labels(config: Config, data: Partition, held: Holding, show: Show) -> list[Attempt]:
    """Attack as a curious party, and as an eavesdropper on its connection.

    If the config's server does more than add up, a server that only adds up replaces it.
    """
    method, _ = method_of(config.protocol)
    model = config.model
    own = model.server == "none" and model.aggregate in ("sum", "mean")
    tables = _tables(config, own)
    order = Order(tables, [method.name], list(LABEL_ATTACKERS), 1, lambda _: data, show)
    cases = [case for case in CASES if case.rules and not case.per_sample]  # the server keeps its rules
    words = {case.title: LABEL_ATTACKERS[case.attacker] for case in cases}
    return [
        Attempt(
            "label-inference",
            f"{words[outcome.attacker]} ({outcome.attacker})",
            "the labels",
            outcome.success,
            outcome.chance,
            outcome.control,
            "of the labels",
            SERVER in held.real,
            own,
        )
        for outcome in infer_labels(order, cases)
    ]


def _tables(config: Config, own: bool) -> Mapping[str, Any]:
    """Return the config as tables; without its model, the attack uses a server that only adds up."""
    tables = to_dict(config)
    names: Sequence[str] = ("protocol", "clock", "train", "privacy", "data", *(("model",) if own else ()))
    train = {key: value for key, value in tables["train"].items() if key not in ("metric",)}
    return {key: tables[key] for key in names} | {"train": train}
