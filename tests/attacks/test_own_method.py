"""A user's own method, with its own messages and observations: attacks need no change elsewhere."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from colonnade.algorithms import METHODS
from colonnade.algorithms.observations import GRADIENTS, LOSSES, Answer, Asking, Batches, Observations, Pen, Upload
from colonnade.algorithms.vafl.config import VaflOptions
from colonnade.algorithms.vafl.messages import Embeddings, Gradient
from colonnade.attacks.attack import Order, Outcome, attack
from colonnade.attacks.clients import GradientReader
from colonnade.attacks.feature_inversion import FEATURE_INVERSION
from colonnade.attacks.label_inference import LABEL_INFERENCE, Case
from colonnade.attacks.stage import Behind
from colonnade.config.resolve import load_partition
from colonnade.config.schema import Config
from colonnade.data import Partition
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.events import Effect, Event, Received, Send
from colonnade.protocol.messages import Array, Message

FEW = 200


class Guess(Message, frozen=True):
    """Party → server."""

    number: int
    rows: Array
    numbers: Array
    wanted: bool  # whether the party wants a Slope


class Slope(Message, frozen=True):
    """Server → party."""

    number: int
    numbers: Array


class Renamed(Behind):
    """A VAFL role that sends the same content in other messages."""

    def handle(self, event: Event, now: int) -> Sequence[Effect]:
        if isinstance(event, Received):
            event = Received(event.sender, _theirs(event.message))
        return [
            msgspec.structs.replace(effect, message=_ours(effect.message)) if isinstance(effect, Send) else effect
            for effect in super().handle(event, now)
        ]


def _ours(message: Message) -> Message:
    match message:
        case Embeddings(step=step, batch=batch, rows=rows, values=values):
            return Guess(step, rows, values, batch > 0)
        case Gradient(step=step, values=values):
            return Slope(step, values)
    return message


def _theirs(message: Message) -> Message:
    match message:
        case Guess(number=number, rows=rows, numbers=numbers, wanted=wanted):
            return Embeddings(number, len(rows) if wanted else 0, rows, numbers)
        case Slope(number=number, numbers=numbers):
            return Gradient(number, 0, numbers)
    return message


class GuessPen(Pen):
    def upload(self, upload: Upload, now: int) -> Message:
        return Guess(upload.step, upload.rows, upload.values, True)


def read_upload(message: Message, walk: Batches) -> Upload | None:
    if not isinstance(message, Guess):
        return None
    renewed = 0 if message.wanted else len(message.rows)
    return Upload(message.number, message.rows, message.numbers, renewed=renewed)


def read_answer(message: Message) -> Answer | None:
    return Answer(message.number, message.numbers, message.number + 1) if isinstance(message, Slope) else None


SEEN = Observations[VaflOptions](
    answers=GRADIENTS,
    answer=read_answer,
    silent=(Guess,),
    upload=read_upload,
    pen=GuessPen,
    asking=lambda options: Asking(coordinated=False),
)
VAFL = METHODS["vafl"]
OWN = replace(
    VAFL,
    name="own",
    payloads=(*VAFL.payloads, Guess, Slope),
    server=lambda setup: Renamed(VAFL.server(setup)),
    party=lambda setup: Renamed(VAFL.party(setup)),
    observations=SEEN,
)
UNSEEN = replace(OWN, name="unseen", observations=None)
TABLES: dict[str, Any] = {"train": {"batch_size": 32}, "protocol": {"name": f"{__name__}:OWN", "batches": "shared"}}


def few(config: Config) -> Partition:
    data = load_partition(config)
    return replace(data, train=tuple(x[:FEW] for x in data.train), y_train=data.y_train[:FEW])


def attacked(attackers: str, method: str = "OWN") -> list[Outcome]:
    order = Order(TABLES, [f"{__name__}:{method}"], attackers.split(","), 1, few)
    return attack(LABEL_INFERENCE, order)


def test_a_party_and_an_ear_read_every_label() -> None:
    found = attacked("curious,eavesdropper")
    assert [(one.attacker, one.success) for one in found] == [("curious client", 1.0), ("eavesdropper", 1.0)]
    assert found[0].trials[0].asked == 7 and found[0].trials[0].refused == 0  # 200 rows in batches of 32


def test_a_server_reads_its_embeddings() -> None:
    tables = {**TABLES, "train": {"batch_size": 32, "epochs": 1.0}, "privacy": {"mechanism": "none"}}
    (clear, *_) = FEATURE_INVERSION.run(Order(tables, [f"{__name__}:OWN"], ["linear"], 1, few))
    assert clear.noise == 0.0 and clear.error < 0.6


def test_without_observations_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'unseen': answers with messages that no built-in attacker can read"):
        attacked("curious", "UNSEEN")


def test_attackers_that_need_what_the_method_has_not_are_left_out() -> None:
    by_the_rules, asking = Case("a", "a", GRADIENTS), Case("a", "a", GRADIENTS, GradientReader)
    assert by_the_rules.fits(SEEN) and not replace(by_the_rules, rules=False).fits(SEEN)
    assert asking.fits(SEEN) and not asking.fits(replace(SEEN, pen=None))
    unread, losses = replace(SEEN, upload=None), replace(SEEN, answers=LOSSES, upload=None)
    assert by_the_rules.fits(unread) and not Case("a", "a", LOSSES).fits(losses)


def test_a_method_that_packs_its_uploads_is_refused_and_not_called_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server refuses every question in plain numbers, so the guesses would be no better than chance."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    order = Order({"train": {"batch_size": 32}}, ["vafl_byte:METHOD"], ["curious"], 1, few)
    with pytest.raises(ConfigError, match="packs its parties' uploads"):
        attack(LABEL_INFERENCE, order)
    heard = attack(LABEL_INFERENCE, replace(order, attackers=["eavesdropper"]))
    assert heard[0].success == 1.0, "its gradients are not packed"
    with pytest.raises(ConfigError, match="packs its parties' uploads"):
        FEATURE_INVERSION.run(replace(order, tables={"train": {"epochs": 1.0}}, attackers=["linear"]))
