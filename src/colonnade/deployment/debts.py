"""How long each party has owed the server the same thing.

The role says what each party owes, in words. Other words are another debt, so a role whose words name the step, or how
many parts are missing, grants the whole time again for every part that arrives. Time in which the server itself
computes does not count. The time while the party is connected and the time while it is away count apart: a party that
comes late has its whole time, and a party that comes and goes has at most twice that.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

__all__ = ["Debt", "Debts", "in_words"]


class Debt(NamedTuple):
    """What one party owes, and for how long."""

    what: str
    connected_s: float = 0.0
    away_s: float = 0.0

    @property
    def owed_s(self) -> float:
        """All seconds of this debt."""
        return self.connected_s + self.away_s


class Debts:
    """The debts of all parties."""

    def __init__(self) -> None:
        self._of: dict[str, Debt] = {}

    def note(self, owes: Mapping[str, str], connected: Collection[str], passed_s: float) -> None:
        """Take what each party owes now. `passed_s`: seconds since the last call that count."""
        before, self._of = self._of, {}
        for name, what in owes.items():
            debt = before.get(name)
            if debt is None or debt.what != what:
                self._of[name] = Debt(what)
            elif name in connected:
                self._of[name] = Debt(what, debt.connected_s + passed_s, debt.away_s)
            else:
                self._of[name] = Debt(what, debt.connected_s, debt.away_s + passed_s)

    def of(self, name: str) -> Debt | None:
        """What this party owes."""
        return self._of.get(name)

    def overdue(self, after_s: float) -> dict[str, Debt]:
        """The parties that have owed something for longer than `after_s`."""
        return {name: debt for name, debt in self._of.items() if max(debt.connected_s, debt.away_s) > after_s}


def in_words(whats: Iterable[str]) -> str:
    """Several debts in one line, each text once."""
    return "; ".join(dict.fromkeys(whats))
