"""How long each party has owed the server the same thing.

The role says what each party owes, in words. Other words are another debt, so a role whose words name the step, or how
many parts are missing, grants the whole time again for every part that arrives. Time in which the server itself
computes does not count.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

__all__ = ["Debt", "Debts", "in_words"]


class Debt(NamedTuple):
    """What one party owes, and for how long."""

    what: str
    owed_s: float


class Debts:
    """The debts of all parties."""

    def __init__(self) -> None:
        self._of: dict[str, Debt] = {}

    def note(self, owes: Mapping[str, str], passed_s: float) -> None:
        """Take what each party owes now. `passed_s`: seconds since the last call that count."""
        before, self._of = self._of, {}
        for name, what in owes.items():
            debt = before.get(name)
            going_on = debt is not None and debt.what == what
            self._of[name] = Debt(what, debt.owed_s + passed_s) if debt is not None and going_on else Debt(what, 0.0)

    def of(self, name: str) -> Debt | None:
        """What this party owes."""
        return self._of.get(name)

    def overdue(self, after_s: float) -> dict[str, Debt]:
        """The parties that have owed something for longer than `after_s`."""
        return {name: debt for name, debt in self._of.items() if debt.owed_s > after_s}


def in_words(whats: Iterable[str]) -> str:
    """Several debts in one line, each text once."""
    return "; ".join(dict.fromkeys(whats))
