"""How fast each party steps and shares, as the server sees it: which of them a round waits for.

A party is prompt if the last time it took at most `PATIENCE` times as long as the R-th fastest to step on a gradient
and to share what came of it. R parties must answer in any case, so R are always prompt. A round waits for the prompt
parties and takes the last share of every other one. What is measured includes the way of the messages.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from colonnade.protocol.saved import UNSAVED, Component

__all__ = ["Pace"]

PATIENCE = 2


@dataclass(slots=True, eq=False)
class Pace(Component):
    """Of all parties, by their numbers."""

    needed: int = field(metadata=UNSAVED)  # R
    most: int = field(metadata=UNSAVED)  # rounds that one share may be summed in
    trained: dict[int, int] = field(default_factory=dict)  # which weights the newest share is of
    began: dict[int, int] = field(default_factory=dict)  # when a party was given what it now works at, in ns
    since: dict[int, int] = field(default_factory=dict)  # and in which round
    took: dict[int, int] = field(default_factory=dict)  # ns, the last time
    overdue: list[int] = field(default_factory=list)  # parties whose share is too old: left out until the next one

    def begin(self, among: Sequence[int], round: int, now: int) -> None:
        """An exchange begins: a party that has never shared does so now."""
        for n in among:
            if n not in self.trained and n not in self.began:
                self.began[n], self.since[n] = now, round

    def gradient(self, weights: Mapping[int, int], round: int, now: int) -> None:
        """A gradient is sent: a party steps on it if the sum had its newest weights."""
        for n, trained in weights.items():
            if self.trained.get(n) == trained and n not in self.began:
                self.began[n], self.since[n] = now, round

    def shared(self, n: int, trained: int, now: int) -> None:
        """A party has shared its newest weights."""
        self.trained[n] = trained
        self.overdue = [other for other in self.overdue if other != n]
        if n in self.began:
            self.took[n] = now - self.began.pop(n)

    def late(self, n: int, now: int) -> None:
        """A party that a round has waited for in vain: from now on it is not waited for."""
        waited = now - self.began.get(n, now)
        self.took[n] = max(waited, (PATIENCE + 1) * max(self.took.values(), default=0), 1)

    def forget(self, n: int) -> None:
        """A party that has lost its memory, or is gone, is prompt until it is measured again."""
        for known in (self.trained, self.began, self.since, self.took):
            known.pop(n, None)

    def prompt(self, among: Sequence[int]) -> list[int]:
        """The parties of these that a round waits for, R at least."""
        times = sorted(self.took.get(n, 0) for n in among)
        longest = PATIENCE * times[self.needed - 1]
        return [n for n in among if self.took.get(n, 0) <= longest]

    def too_old(self, among: Collection[int], round: int) -> list[int]:
        """Parties at work whose last share was summed as often as may be."""
        return [n for n in among if n in self.began and round - self.since[n] > self.most]
