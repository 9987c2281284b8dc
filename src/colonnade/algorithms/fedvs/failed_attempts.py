"""Attempts at a round that failed, and the parties that the server leaves out because of them. Not in the paper.

A party can spoil every attempt. It may keep its shares to itself, say that it lacks those of another party, or promise
an answer and send none. If one party says that it lacks a share of another, the server cannot tell which of the two is
at fault. So it counts:

    a party lacks a share             against both parties
    a report or an answer is missing  against the party that owes it

After `FAILED` attempts, the server leaves out the party with the highest count for some rounds, if the others are
enough for a sum. This may be an honest party at first. The count of the party at fault still grows with every attempt
that it spoils, so its turn comes.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from colonnade.data.suggest import listing
from colonnade.protocol.saved import Component

__all__ = ["FailedAttempts"]

FAILED = 2
ROUNDS = 20  # to leave out a party the first time, and after which counts are forgotten
DOUBLINGS = 10  # of these rounds, one each time that the party is left out again


@dataclass(slots=True, eq=False)
class FailedAttempts(Component):
    """Counts against parties, by their numbers."""

    failed: int = 0  # attempts since a party was left out the last time
    newest: int = -1  # the round of the newest one
    against: dict[int, int] = field(default_factory=dict)
    until: dict[int, int] = field(default_factory=dict)  # party → the round in which it takes part again
    times: dict[int, int] = field(default_factory=dict)  # how often each party was left out

    def note(self, round: int, against: Mapping[int, int]) -> None:
        """An attempt at this round has failed."""
        if round > self.newest + ROUNDS:
            self.failed, self.against = 0, {}
        self.failed, self.newest = self.failed + 1, round
        # A party with something against it took part, also if it was to be left out: the others were too few.
        self.until = {n: until for n, until in self.until.items() if n not in against}
        for n, count in against.items():
            self.against[n] = self.against.get(n, 0) + count

    def left_out(self, round: int) -> list[int]:
        """The parties that this round does without."""
        return [n for n, until in self.until.items() if round < until]

    def leave_out(self, round: int, is_enough: Callable[[Collection[int]], bool]) -> int | None:
        """Choose the party to leave out from now on, if it is time; None: no party.

        `is_enough` says whether a sum can do without these parties. If it cannot do without this one and those that
        were left out earlier, they take part again: one of them may have been left out by mistake.
        """
        before = self.left_out(round)
        for n in self._suspects(before) if self.failed >= FAILED else []:
            if is_enough([*before, n]):
                return self._leave_out(n, round)
            if is_enough([n]):
                self.until = {}
                return self._leave_out(n, round)
        return None

    def _leave_out(self, n: int, round: int) -> int:
        times = self.times.get(n, 0)
        self.failed, self.times[n] = 0, times + 1
        self.until[n] = round + ROUNDS * 2 ** min(times, DOUBLINGS)
        return n

    def _suspects(self, left_out: Collection[int]) -> list[int]:
        """The parties with counts against them, the highest count first."""
        found = [n for n in self.against if n not in left_out]
        return sorted(found, key=lambda n: (-self.against[n], n))

    def warnings(self, names: Sequence[str]) -> list[str]:
        """Name the parties that were left out."""
        if not self.times:
            return []
        each = listing(f"{names[n]} ({times}×)" for n, times in sorted(self.times.items()))
        cause = "each of these parties, or a party that shares with it, is slow, faulty or lies"
        return [f"left out for some rounds, because attempts failed: {each}; {cause}"]

    def suspects(self, round: int) -> list[int]:
        """The parties with the highest count, if attempts at this round have failed since a party was left out."""
        found = self._suspects(self.left_out(round)) if self.failed and round == self.newest else []
        return sorted(n for n in found if self.against[n] == self.against[found[0]])
