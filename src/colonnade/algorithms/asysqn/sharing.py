"""Shared sums of the asynchronous methods: which are under way, and when the next one is due (`protocol.share`).

The coordinator announces a shared sum to all parties: its number, which is the position of its batch on the common
walk, and the party that aggregates it. That party sends the totals to all, and every party steps on them. No party
waits for another one's step: the quickest party sets the pace, and a party that is far behind leaves sums out.

At most 1 + `ahead` sums are without totals at any time. So a party that reports steps which it has not made does not
make the others sum more than that.

# DEVIATION: in Alg. 3–5 every party aggregates batches of its own, q times as many sums for as many steps.
"""

from dataclasses import dataclass, field

from colonnade.protocol.saved import UNSAVED, Component

__all__ = ["Pipeline"]


@dataclass(slots=True)
class Pipeline(Component):
    """The coordinator's record of shared sums."""

    ahead: int = field(metadata=UNSAVED)
    newest: int = 0  # the sum that was announced last
    initiator: int = -1  # the party that aggregates it
    reached: int = 0  # the newest sum on which any party has stepped
    open: dict[int, int] = field(default_factory=dict)  # sums without totals, with their initiators

    @property
    def is_due(self) -> bool:
        """Whether the next sum is to be announced."""
        return len(self.open) <= self.ahead and self.newest - self.reached <= self.ahead

    def announce(self, number: int, initiator: int) -> None:
        self.newest, self.initiator = number, initiator
        self.open[number] = initiator

    def restart(self, number: int) -> None:
        """All sums up to this one are dropped."""
        self.newest = self.reached = number
        self.initiator, self.open = -1, {}

    def summed(self, number: int, initiator: int) -> bool:
        """Note that this party has the totals; False if it was not to aggregate them, or no longer."""
        if self.open.get(number) != initiator:
            return False
        del self.open[number]
        return True

    def stepped(self, number: int) -> None:
        self.reached = max(self.reached, number)

    def give_up(self, initiator: int) -> bool:
        """Drop the sums that this party aggregates, for which no party waits any more; False if there were none."""
        gone = [number for number, party in self.open.items() if party == initiator]
        for number in gone:
            del self.open[number]
            self.stepped(number)
        return bool(gone)

    def awaited(self) -> set[int]:
        """The parties whose totals the next announcement waits for."""
        if self.is_due:
            return set()
        if self.open:
            return set(self.open.values())
        return {self.initiator} - {-1}  # it has the totals, and should have stepped on them
