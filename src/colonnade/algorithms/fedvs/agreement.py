"""One exchange as the server sees it: who shares, whose shares are where, what is summed, who answers (footnote 2).

S is agreed after sharing: one evaluator with another S, or with another version of somebody's data, would decode to
garbage without a word, so every answer names S, and S names the versions.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from colonnade.algorithms.fedvs.holdings import NEVER, Key, check_elements
from colonnade.algorithms.fedvs.messages import Answer, Holding, ShareModels, Sum, WhoHolds
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.events import Effect, Send
from colonnade.protocol.messages import Array, Message

__all__ = ["Agreement", "Held", "agree", "mutually_prepared"]

Held = Mapping[int, frozenset[tuple[int, int]]]  # reporter → (party, version of its data) that it holds all shares of


def agree(reports: Held, needed: int, least: int) -> tuple[list[tuple[int, int]], list[int]] | None:
    """The largest S (as far as a greedy search finds) that enough reporters hold all of, and these reporters."""
    counts = Counter(item for held in reports.values() for item in held)
    newest: dict[int, tuple[int, int]] = {}
    for item in sorted(counts, key=lambda item: (counts[item], item)):
        newest[item[0]] = item  # of several versions, the one that most hold
    summed = sorted(newest.values())
    while len(summed) >= max(least, 1):
        evaluators = sorted(reporter for reporter, held in reports.items() if held.issuperset(summed))
        if len(evaluators) >= needed:
            return summed, evaluators
        summed.remove(min(summed, key=lambda item: (counts[item], -item[0])))
    return None


def mutually_prepared(held: Mapping[int, Collection[int]]) -> list[int]:
    """The parties that hold each other's data; who lacks, or is lacked, most is left out first."""
    among = sorted(n for n, own in held.items() if n in own)
    while True:
        lacks = {n: sum((m not in held[n]) + (n not in held[m]) for m in among) for n in among}
        worst = max(among, key=lambda n: (lacks[n], n), default=-1)
        if not among or not lacks[worst]:
            return among
        among.remove(worst)


class Agreement:
    """The newest exchange."""

    def __init__(self, testing: bool, names: Sequence[str], needed: int, least: int) -> None:
        self._testing, self._names, self._needed, self._least = testing, names, needed, least
        self._index = {name: n for n, name in enumerate(names)}
        self.key: Key = NEVER
        self.newest: Key = NEVER  # that parties speak of: later, where this server has lost its memory
        self.among: list[int] = []
        self.asked = False
        self.reports: dict[int, frozenset[tuple[int, int]]] = {}
        self.summed: list[int] = []
        self.versions: list[int] = []
        self.evaluators: list[int] = []
        self.places = 0  # of an answer, once it is asked for
        self.answers: dict[int, Array] = {}

    def begin(self, key: Key, among: list[int], places: int) -> list[Effect]:
        """Alg. 1 l. 13: everybody shares."""
        self.key, self.among, self.asked, self.places = key, among, False, 0
        self.newest = max(key, self.newest)
        self.reports, self.answers = {}, {}
        self.summed, self.versions, self.evaluators = [], [], []
        return [self._send(n, ShareModels(*key, among, places, testing=self._testing)) for n in among]

    def ask(self) -> list[Effect]:
        """The time is over: whoever has not reported reports what it holds."""
        self.asked = True
        message = WhoHolds(*self.key, testing=self._testing)
        return [self._send(n, message) for n in self.among if n not in self.reports]

    def _send(self, n: int, message: Message) -> Effect:
        return Send(self._names[n], message, self._testing)

    def report(self, sender: str, message: Holding) -> bool:
        """A report; False if it is of an exchange that is over."""
        if (message.round, message.attempt) != self.key or self.evaluators:
            self._refuse_future(sender, message.round, message.attempt)
            return False
        held = list(zip(message.held, message.versions, strict=False))
        wrong = len(message.held) != len(message.versions) or not set(message.held) <= set(self.among)
        if wrong or len(set(message.held)) < len(held) or self._index[sender] not in self.among:
            raise RemoteProtocolError(sender, f"reports shares of {message.held}, and {self.among} share")
        self.reports[self._index[sender]] = frozenset(held)
        return True

    def unreported(self, present: Collection[str]) -> list[str]:
        """Who is within reach and has not reported."""
        return [self._names[n] for n in self.among if n not in self.reports and self._names[n] in present]

    def complete(self) -> bool:
        """Whether everybody holds everybody's shares."""
        return len(self.reports) == len(self.among)

    def settle(self, present: Collection[str]) -> bool:
        """S and the evaluators, from what was reported by those within reach; False if there are too few."""
        reports = {n: held for n, held in self.reports.items() if self._names[n] in present}
        found = agree(reports, self._needed, self._least)
        if found is None:
            return False
        self.summed, self.versions = [n for n, _ in found[0]], [version for _, version in found[0]]
        self.evaluators = found[1]
        return True

    def outdated(self) -> dict[int, list[int]]:
        """Whose shares each reporter holds in another version than their owners do."""
        own = {n: dict(held).get(n) for n, held in self.reports.items()}
        found = {
            r: [n for n, version in sorted(held) if own.get(n, version) != version] for r, held in self.reports.items()
        }
        return {reporter: of for reporter, of in found.items() if of}

    def announce(self, position: int, places: int) -> list[Effect]:
        """S and the batch, to the evaluators."""
        self.places = places
        message = Sum(*self.key, position, self.summed, self.versions, testing=self._testing)
        return [self._send(n, message) for n in self.evaluators]

    def answer(self, sender: str, message: Answer, width: int) -> bool:
        """An answer; True if it is of use. One for another S is never decoded with these."""
        n = self._index[sender]
        if (message.round, message.attempt) != self.key:
            self._refuse_future(sender, message.round, message.attempt)
            return False
        if n not in self.evaluators or not self.places or message.summed != self.summed or n in self.answers:
            cause = f"an answer over {message.summed}, and the set of round {self.key[0]} is {self.summed}"
            raise RemoteProtocolError(sender, cause)
        check_elements(sender, "a coded embedding", message.values, (self.places, width))
        self.answers[n] = message.values
        return True

    def _refuse_future(self, sender: str, round: int, attempt: int) -> None:
        if (round, attempt) > self.newest:
            raise RemoteProtocolError(sender, f"speaks of round {round}, attempt {attempt}, which has not begun")

    def decodable(self) -> bool:
        """Whether R answers are there."""
        return len(self.answers) >= self._needed

    def taken(self) -> tuple[Array, list[int]]:
        """The R answers of the lowest numbers, and whose they are."""
        who = sorted(self.answers)[: self._needed]
        return np.stack([self.answers[n] for n in who]), who

    def outstanding(self) -> list[str]:
        """Evaluators without an answer."""
        return [self._names[n] for n in self.evaluators if n not in self.answers]

    def hopeless(self, present: Collection[str]) -> bool:
        """Whether R answers cannot come any more."""
        hopeful = [n for n in self.evaluators if n in self.answers or self._names[n] in present]
        return bool(self.evaluators) and len(hopeful) < self._needed

    def save(self) -> dict[str, Any]:
        """All of it."""
        state = {name: getattr(self, name) for name in _STATE}
        return state | {"reports": {n: sorted(held) for n, held in self.reports.items()}}

    def load(self, saved: dict[str, Any]) -> None:
        """The reverse of `save`."""
        for name in _STATE:
            setattr(self, name, saved[name])
        self.reports = {n: frozenset((int(m), int(v)) for m, v in held) for n, held in saved["reports"].items()}


_STATE = ("key", "newest", "among", "asked", "summed", "versions", "evaluators", "places", "answers")
