"""How fast each party steps, shares and answers, as the server sees it: which parties a round waits for, and asks.

The server measures how long a party takes to step on a gradient and to share the result, including the time of the
messages. A party is prompt if, the last time, it took at most `PATIENCE` times as long as the R-th fastest party. R
parties must answer in any case, so R are always prompt. A round waits for the prompt parties and takes the last share
of every other party.

R answers are enough, and an answer is the most expensive part of a round. If enough prompt parties have answered
equally fast for a few rounds, the server asks R of them and some more first, in turns. If R of them have not answered
after `PATIENCE` times the usual time, it asks the others, too. If times differ, it asks all parties in every round:
the fastest R of many are faster than R of a few.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from colonnade.algorithms.fedvs.holdings import NEVER, Key
from colonnade.protocol.saved import UNSAVED, Component

__all__ = ["Pace"]

PATIENCE = 2
EVEN = 5, 4  # answers are equally fast if they take at most 5/4 of the time of R answers
FADING = 7, 8  # a longer time for R answers counts this much less after each round
STREAK = 3  # rounds in which a party has answered as fast as the others, before fewer are asked


@dataclass(slots=True, eq=False)
class Pace(Component):
    """The pace of all parties, by their numbers."""

    needed: int = field(metadata=UNSAVED)  # R
    most: int = field(metadata=UNSAVED)  # rounds in which one share may be summed
    trained: dict[int, int] = field(default_factory=dict)  # number of the weights in the newest share
    began: dict[int, int] = field(default_factory=dict)  # when the party got the work it is doing now, in ns
    since: dict[int, int] = field(default_factory=dict)  # the round in which it got that work
    took: dict[int, int] = field(default_factory=dict)  # ns, the last time
    overdue: list[int] = field(default_factory=list)  # parties whose share is too old: left out until they share again
    asked: list[int] = field(default_factory=list)  # parties that were asked first for an answer
    few: bool = False  # whether some were not asked first
    exchange: Key = NEVER  # the exchange of these answers, and when it asked, in ns
    since_asked: int = 0
    answers: dict[int, int] = field(default_factory=dict)  # ns that they took
    usual: int = 0  # ns until R answers are here, if all are asked; 0: not known
    even: dict[int, int] = field(default_factory=dict)  # party → answers in a row that were as fast as the others'

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
        """Measure a party that has shared its newest weights."""
        self.trained[n] = trained
        self.overdue = [other for other in self.overdue if other != n]
        if n in self.began:
            self.took[n] = now - self.began.pop(n)

    def late(self, n: int, now: int) -> None:
        """A round waited for this party in vain: do not wait for it from now on."""
        waited = now - self.began.get(n, now)
        self.took[n] = max(waited, (PATIENCE + 1) * max(self.took.values(), default=0), 1)

    def forget(self, n: int) -> None:
        """Forget a party that has lost its memory, or is gone; it counts as prompt until it is measured again."""
        for known in (self.trained, self.began, self.since, self.took, self.answers, self.even):
            known.pop(n, None)

    def prompt(self, among: Sequence[int]) -> list[int]:
        """The parties among these that a round waits for, at least R."""
        times = sorted(self.took.get(n, 0) for n in among)
        longest = PATIENCE * times[self.needed - 1]
        return [n for n in among if self.took.get(n, 0) <= longest]

    def too_old(self, among: Collection[int], round: int) -> list[int]:
        """Parties at work whose last share was summed in as many rounds as allowed."""
        return [n for n in among if n in self.began and round - self.since[n] > self.most]

    def ask(self, exchange: Key, evaluators: Sequence[int], few: bool, now: int) -> None:
        """These parties are asked for an answer; `few`: others are left. The answers to the last question count now."""
        self._judge()
        self.exchange, self.asked, self.few, self.since_asked = exchange, list(evaluators), few, now
        self.answers = {}

    def answered(self, exchange: Key, n: int, now: int) -> None:
        """Measure an answer, also one that comes after the first R."""
        if exchange == self.exchange and n in self.asked:
            self.answers.setdefault(n, now - self.since_asked)

    def _judge(self) -> None:
        """Count the parties whose answers were equally fast. A party without an answer was slower."""
        more, of = EVEN
        times = sorted(self.answers.values())
        took = times[self.needed - 1] if len(times) >= self.needed else None
        if took is None or (self.few and of * took > more * self.usual):
            self.even = {}
            return
        if not self.few:
            self.usual = max(took, self.usual * FADING[0] // FADING[1])
        for n in self.asked:
            fast = n in self.answers and of * self.answers[n] <= more * self.usual
            self.even[n] = self.even.get(n, 0) + 1 if fast else 0

    @property
    def longest(self) -> int:
        """How long R answers may take, in ns."""
        return PATIENCE * self.usual

    def evaluators(self, among: Sequence[int], count: int, round: int) -> list[int]:
        """Choose the parties among these to ask first, `count` of them; none: all."""
        even = [n for n in among if self.even.get(n, 0) >= STREAK]
        if len(among) <= count or len(even) < count:
            return []
        first = count * round % len(even)
        return sorted([*even[first:], *even[:first]][:count])
