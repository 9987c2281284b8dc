"""What goes over a party's wire, as the method's own `observations` read it."""

from typing import Any

from colonnade.algorithms.method import Method
from colonnade.algorithms.observations import Answer, Observations
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.messages import Message

__all__ = ["observations_of", "read_answer"]


def observations_of(method: Method) -> Observations[Any]:
    """What the method says that a party is told; refused if there is nothing to attack or nothing to read."""
    if method.party is None:
        raise ConfigError("--protocols", method.name, "has no parties and no messages: there is nothing to attack")
    if method.capabilities.party_labels:
        raise ConfigError("--protocols", method.name, "every party holds the labels: there is nothing to infer")
    if method.observations is None:
        advice = "answers with messages that no attacker here can read; docs/attacks.md says how to add one"
        raise ConfigError("--protocols", method.name, advice)
    return method.observations


def read_answer(seen: Observations[Any], message: Message) -> Answer | None:
    """The answer in a message; None: it is no answer. What is not understood must not pass for telling nothing."""
    answer = seen.answer(message)
    if answer is None and not isinstance(message, seen.silent):
        advice = "no attacker here can read this; docs/attacks.md says how to add one that can"
        raise ConfigError("--protocols", f"answers with {type(message).__name__}", advice)
    return answer
