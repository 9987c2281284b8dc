"""Decorators that declare a role's handlers.

    @on(Embeddings, PARTY)      a message, and which kind of role may send it
    @done(Stepped)              the result of a job; `done_blind`: the driver may still be computing it
    @timer("bell")              a timer
    @job(Step)                  how to compute a job, without changing state

mypy checks each function against its decorator. A subclass that overrides such a function inherits its declaration.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

from colonnade.protocol.errors import LocalProtocolError
from colonnade.protocol.events import Promised
from colonnade.protocol.messages import Message, Payload

__all__ = ["ANYONE", "PARTY", "Rules", "Sender", "done", "done_blind", "find", "job", "on", "timer"]

Sender = Literal["server", "party"]
PARTY: Final = "party"
ANYONE: Final = "anyone"  # the handler itself checks senders, which are unknown when the role is made
Senders = Literal["server", "party", "anyone"]

R = TypeVar("R")  # a role
M = TypeVar("M", bound=Message)
P = TypeVar("P", bound=Payload)
V = TypeVar("V")
F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__colonnade_rules__"


@dataclass(frozen=True, slots=True)
class _Rule:
    table: Literal["messages", "results", "timers", "jobs"]
    key: Any
    extra: Any = None


def _marked(function: F, *rules: _Rule) -> F:
    setattr(function, _MARK, (*getattr(function, _MARK, ()), *rules))
    return function


def on(message: type[M], sender: Senders) -> Callable[[Callable[[R, str, M], None]], Callable[[R, str, M], None]]:
    """Handle messages of this type and derived types. The chassis refuses them from other senders."""
    return lambda function: _marked(function, _Rule("messages", message, sender))


def done(result: type[P]) -> Callable[[Callable[[R, int, P], None]], Callable[[R, int, P], None]]:
    """Handle the end of a job with a result of this type. The function gets the job's token and the result."""
    return lambda function: _marked(function, _Rule("results", result))


def done_blind(
    result: type[P],
) -> Callable[[Callable[[R, int, P | Promised], None]], Callable[[R, int, P | Promised], None]]:
    """Handle the end of a blind job, whose result may be a promise (see `once_made`). A role has one such handler."""
    return lambda function: _marked(function, _Rule("results", result), _Rule("results", Promised))


def timer(name: str) -> Callable[[Callable[[R, int], None]], Callable[[R, int], None]]:
    """Handle the timer of this name. The function gets the time (ns) that it was set for."""
    return lambda function: _marked(function, _Rule("timers", name))


def job(kind: type[P], *, released: bool = False) -> Callable[[Callable[[R, P], Payload]], Callable[[R, P], Payload]]:
    """Compute jobs of this type. With `released`, the result leaves the party and passes the privacy guard."""
    return lambda function: _marked(function, _Rule("jobs", kind, released))


@dataclass(frozen=True, slots=True)
class Rules:
    """The handlers of one class of roles.

    They are functions of the class, not bound to an instance: a copy of a role must not call the original.
    """

    messages: dict[type, tuple[Callable[[Any, str, Any], None], Senders]] = field(default_factory=dict)
    results: dict[type, tuple[Callable[[Any, int, Any], None], None]] = field(default_factory=dict)
    timers: dict[str, tuple[Callable[[Any, int], None], None]] = field(default_factory=dict)
    jobs: dict[type, tuple[Callable[[Any, Any], Payload], bool]] = field(default_factory=dict)

    @classmethod
    def of(cls, role: type) -> "Rules":
        """Collect the declarations of a class and its bases; raise LocalProtocolError if two functions clash."""
        made = cls()
        owners: dict[tuple[str, Any], str] = {}
        for name, rule in _declared(role):
            owner = owners.setdefault((rule.table, rule.key), name)
            if owner != name:
                raise LocalProtocolError(f"{role.__qualname__}: {owner} and {name} both handle {rule.key}")
            getattr(made, rule.table)[rule.key] = (getattr(role, name), rule.extra)
        return made


def _declared(role: type) -> Iterator[tuple[str, _Rule]]:
    for base in reversed(role.__mro__):
        for name, value in vars(base).items():
            for rule in getattr(value, _MARK, ()):
                yield name, rule


def find(table: dict[type, V], kind: type) -> V | None:
    """Return the entry of a type or of its nearest base, and remember it in the table."""
    found = table.get(kind)
    if found is None:
        found = next((table[base] for base in kind.__mro__ if base in table), None)
        if found is not None:
            table[kind] = found
    return found
