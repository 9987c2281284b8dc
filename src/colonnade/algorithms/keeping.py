"""The weights of the best evaluation, for runs that end when they get no better (`train.patience`).

Each role takes a copy of its weights when an evaluation begins, and keeps the copy if the server says, with the next
request, that this evaluation was the best so far. At the end all roles go back to what they kept, and learn no more. A
party that was away at the best evaluation stays where it is.
"""

from dataclasses import dataclass, field
from typing import Protocol

from colonnade.protocol.messages import Array
from colonnade.protocol.saved import Component

__all__ = ["Keeping", "Kept"]


class Keeping(Protocol):
    """What a network must be able to do."""

    def snapshot(self) -> list[Array]:
        """What evaluation reads."""

    def settle_on(self, snapshot: list[Array]) -> None:
        """Read this from now on, and learn no more."""


@dataclass(slots=True)
class Kept(Component):
    """Copies of one role's weights."""

    number: int = 0  # of the newest evaluation
    newest: list[Array] = field(default_factory=list)
    best_number: int = 0
    best: list[Array] = field(default_factory=list)

    def evaluation(self, number: int, best: int, last: bool, network: Keeping) -> None:
        """An evaluation of this number begins; `best` is that of the best one before it."""
        if best and best == self.number:
            self.best_number, self.best = self.number, self.newest
        if last:
            if best and best == self.best_number:
                network.settle_on(self.best)
        elif number != self.number:
            self.number, self.newest = number, network.snapshot()
