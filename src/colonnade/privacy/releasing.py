"""A party whose uploads pass a guard, as drivers and attacks know it."""

from typing import Protocol, runtime_checkable

from colonnade.privacy.guard import Guard
from colonnade.protocol.role import Role

__all__ = ["Releasing"]


@runtime_checkable  # looked at when a process begins, never for an event
class Releasing(Role, Protocol):
    """Perturbs, accounts and stops by its guard."""

    guard: Guard
