"""How fast each party steps, shares and answers, as the server sees it: which parties a round waits for, and asks.

The server measures how long a party takes to step on a gradient and to share the result, including the time of the
messages. A party is prompt if, the last time, it took at most `PATIENCE` times as long as the R-th fastest party. R
parties must answer in any case, so R are always prompt. A round waits for the prompt parties and takes the last share
of every other party.

R answers are enough, and an answer is the most expensive part of a round. So the server asks R prompt parties and a few
more first. They take turns. If R of them have not answered after `PATIENCE` times the usual time, it asks the others,
and the late ones are not asked first any more until they answer in time again.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from colonnade.protocol.saved import UNSAVED, Component

__all__ = ["Pace"]

PATIENCE = 2


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
    asked: dict[int, int] = field(default_factory=dict)  # when the party was asked for its answer, in ns
    answers: dict[int, int] = field(default_factory=dict)  # ns that its last answer took

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
        for known in (self.trained, self.began, self.since, self.took, self.asked, self.answers):
            known.pop(n, None)

    def prompt(self, among: Sequence[int]) -> list[int]:
        """The parties among these that a round waits for, at least R."""
        times = sorted(self.took.get(n, 0) for n in among)
        longest = PATIENCE * times[self.needed - 1]
        return [n for n in among if self.took.get(n, 0) <= longest]

    def too_old(self, among: Collection[int], round: int) -> list[int]:
        """Parties at work whose last share was summed in as many rounds as allowed."""
        return [n for n in among if n in self.began and round - self.since[n] > self.most]

    def ask(self, evaluators: Sequence[int], now: int) -> None:
        """These parties are asked for an answer."""
        self.asked |= dict.fromkeys(evaluators, now)

    def answered(self, n: int, now: int) -> None:
        """Measure an answer."""
        if n in self.asked:
            self.answers[n] = now - self.asked.pop(n)

    def unanswered(self, evaluators: Sequence[int], now: int) -> None:
        """Too few of these parties have answered in time: ask others first from now on."""
        for n in evaluators:
            waited, slowest = now - self.asked.get(n, now), max(self.answers.values(), default=0)
            self.answers[n] = max(waited, (PATIENCE + 1) * slowest, 1)

    def longest(self) -> int | None:
        """How long an answer may take, in ns; None if fewer than R parties have answered yet."""
        times = sorted(self.answers.values())
        return PATIENCE * times[self.needed - 1] if len(times) >= self.needed else None

    def evaluators(self, among: Sequence[int], count: int, round: int) -> list[int]:
        """Choose the parties among these to ask first, `count` of them; none: all."""
        longest = self.longest()
        if longest is None or len(among) <= count:
            return []
        prompt = [n for n in among if self.answers.get(n, 0) <= longest]
        first = count * round % max(len(prompt), 1)
        chosen = [*prompt[first:], *prompt[:first]][:count]
        return sorted(chosen) if len(chosen) == count else []
