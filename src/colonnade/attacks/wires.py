"""The messages on a party's wire, as the method's own `observations` read them."""

from typing import Any

import numpy as np

from colonnade.algorithms.encoding import Encoding
from colonnade.algorithms.method import Method
from colonnade.algorithms.observations import Answer, Observations
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.messages import Message
from colonnade.protocol.role import Role

__all__ = ["observations_of", "read_answer", "refuse_packed"]


def observations_of(method: Method) -> Observations[Any]:
    """Return what the method says that a party is told; raises ConfigError if there is nothing to attack or to read."""
    if method.party is None:
        raise ConfigError("--protocols", method.name, "has no parties and no messages, so there is nothing to attack")
    if method.capabilities.party_labels:
        raise ConfigError("--protocols", method.name, "every party holds the labels: there is nothing to infer")
    if method.observations is None:
        advice = "answers with messages that no built-in attacker can read; docs/attacks.md says how to add an attacker"
        raise ConfigError("--protocols", method.name, advice)
    return method.observations


def read_answer(seen: Observations[Any], message: Message) -> Answer | None:
    """Return the answer in a message; None if it is no answer. An unknown message is refused, not taken for silence."""
    answer = seen.answer(message)
    if answer is None and not isinstance(message, seen.silent):
        advice = "no built-in attacker can read this; docs/attacks.md says how to add an attacker"
        raise ConfigError("--protocols", f"answers with {type(message).__name__}", advice)
    return answer


def refuse_packed(method: Method, party: Role, width: int) -> None:
    """Refuse a method whose uploads are packed (`encode`): a server that refuses all questions would look safe."""
    plain = np.zeros((2, width), np.float32)
    packed = party.encode(plain) if isinstance(party, Encoding) else plain
    if packed.shape != plain.shape or packed.dtype != plain.dtype:
        advice = "packs its parties' uploads (`encode`), which no built-in attacker can read"
        raise ConfigError("--protocols", method.name, advice)
