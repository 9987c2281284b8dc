"""The weights of the best evaluation, for runs that end when the model stops improving (`train.patience`).

Each role copies its weights when an evaluation begins. With the next request, the server says which evaluation is the
best so far; if it was this one, the role keeps the copy. At the end all roles return to the weights they kept, and stop
learning. A party that was absent at the best evaluation keeps its current weights.
"""

from dataclasses import dataclass, field
from typing import Protocol

from colonnade.protocol.messages import Array
from colonnade.protocol.saved import Component

__all__ = ["BestWeights", "Keeping"]


class Keeping(Protocol):
    """A network whose weights `BestWeights` can copy and restore."""

    def snapshot(self) -> list[Array]:
        """Return a copy of the weights that evaluation uses."""

    def settle_on(self, snapshot: list[Array]) -> None:
        """Use these weights for evaluation from now on, and stop learning."""


@dataclass(slots=True)
class BestWeights(Component):
    """One role's copies of its weights, at the newest evaluation and at the best one."""

    number: int = 0  # number of the newest evaluation
    newest: list[Array] = field(default_factory=list)
    best_number: int = 0
    best: list[Array] = field(default_factory=list)

    def evaluation(self, number: int, best: int, last: bool, network: Keeping) -> None:
        """Handle the start of evaluation `number`. `best` is the number of the best earlier one, or 0."""
        if best and best == self.number:
            self.best_number, self.best = self.number, self.newest
        if last:
            if best and best == self.best_number:
                network.settle_on(self.best)
        elif number != self.number:
            self.number, self.newest = number, network.snapshot()
