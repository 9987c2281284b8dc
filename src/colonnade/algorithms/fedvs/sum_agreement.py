"""One exchange as the server sees it: sharing, reports on shares, the agreed set S, and answers (footnote 2).

The parties agree on S after sharing. An evaluator with another S, or with another version of a party's data, would
silently decode to garbage. Therefore every answer names S, and S names the versions.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from colonnade.algorithms.fedvs.holdings import NEVER, Key, check_elements
from colonnade.algorithms.fedvs.messages import Answer, Holding, ShareModels, Sum, WhoHolds
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.events import Effect, Send
from colonnade.protocol.messages import Array, Message
from colonnade.protocol.saved import UNSAVED, Component

__all__ = ["Held", "SumAgreement", "agree", "mutually_prepared"]

# reporter → (party, version of its data and model) that it holds all shares of; a party's version to sum is last
Held = Mapping[int, Collection[tuple[int, int]]]


def agree(reports: Held, needed: int, least: int) -> tuple[list[tuple[int, int]], list[int]] | None:
    """The largest S (by a greedy search) that enough reporters hold completely, and these reporters.

    If there are several versions of a party's share, S has the one that most reporters name last, which is the
    one that they prefer to sum. If too few hold that one, S has the next. If none is left, S leaves out the party.
    """
    counts = Counter(item for held in reports.values() for item in held)
    last = Counter(item for held in reports.values() for item in dict(held).items())
    choices: dict[int, list[tuple[int, int]]] = {}
    for item in sorted(counts, key=lambda item: (last[item], counts[item], item)):
        choices.setdefault(item[0], []).append(item)
    summed = sorted(own.pop() for own in choices.values())
    while len(summed) >= max(least, 1):
        evaluators = sorted(reporter for reporter, held in reports.items() if set(held).issuperset(summed))
        if len(evaluators) >= needed:
            return summed, evaluators
        rarest = min(summed, key=lambda item: (counts[item], -item[0]))
        summed.remove(rarest)
        if choices[rarest[0]]:
            summed = sorted([*summed, choices[rarest[0]].pop()])
    return None


def mutually_prepared(held: Mapping[int, Collection[int]]) -> list[int]:
    """The parties that hold each other's data. The party that lacks most, or is lacked most, is left out first."""
    among = sorted(n for n, own in held.items() if n in own)
    while True:
        lacks = {n: sum((m not in held[n]) + (n not in held[m]) for m in among) for n in among}
        worst = max(among, key=lambda n: (lacks[n], n), default=-1)
        if not among or not lacks[worst]:
            return among
        among.remove(worst)


@dataclass(slots=True, eq=False)
class SumAgreement(Component):
    """The newest exchange."""

    testing: bool = field(metadata=UNSAVED)
    names: tuple[str, ...] = field(metadata=UNSAVED)
    needed: int = field(metadata=UNSAVED)  # R
    least: int = field(metadata=UNSAVED)  # fewest parties in a sum
    key: Key = NEVER
    newest: Key = NEVER  # the newest key that parties named; it is later than `key` if this server lost its memory
    among: list[int] = field(default_factory=list)
    awaited: list[int] = field(default_factory=list)  # models last: parties that share and blind here
    trained: dict[int, int] = field(default_factory=dict)  # version → number of the weights
    asked: bool = False
    reports: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    summed: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    evaluators: list[int] = field(default_factory=list)
    places: int = 0  # places of an answer, once it is asked for
    answers: dict[int, Array] = field(default_factory=dict)

    def begin(
        self, key: Key, among: list[int], places: int, awaited: list[int] | None = None, position: int = -1
    ) -> list[Effect]:
        """Alg. 1 l. 13: all parties share; if models last, only those that the exchange waits for."""
        self.key, self.among, self.asked, self.places = key, among, False, 0
        self.awaited, self.trained = awaited or [], {}
        self.newest = max(key, self.newest)
        self.reports, self.answers = {}, {}
        self.summed, self.versions, self.evaluators = [], [], []
        order = ShareModels(*key, among, places, self.awaited, position, testing=self.testing)
        return [self._send(n, order) for n in among]

    def ask(self) -> list[Effect]:
        """The deadline has passed: ask the parties without a report what they hold."""
        self.asked = True
        message = WhoHolds(*self.key, testing=self.testing)
        return [self._send(n, message) for n in self.among if n not in self.reports]

    def _send(self, n: int, message: Message) -> Effect:
        return Send(self.names[n], message, self.testing)

    def report(self, sender: str, message: Holding) -> bool:
        """Take a report; False if its exchange is over."""
        if (message.round, message.attempt) != self.key or self.evaluators:
            self._refuse_future(sender, message.round, message.attempt)
            return False
        held = list(zip(message.held, message.versions, strict=False))
        n = self.names.index(sender)
        wrong = len(message.held) != len(message.versions) or not set(message.held) <= set(self.among)
        twice = len(set(held if self.awaited else message.held)) < len(held)
        unknown = len(message.trained) != (len(held) if self.awaited else 0)
        if wrong or twice or unknown or n not in self.among:
            raise RemoteProtocolError(
                sender, f"reports shares of {message.held}, but the parties that share are {self.among}"
            )
        self.trained |= dict(zip(message.versions, message.trained, strict=False))
        self.reports[n] = held if self.awaited else sorted(held)
        return True

    def unreported(self, present: Collection[str]) -> list[str]:
        """The parties within reach without a report; if models last, only those that the exchange waits for."""
        waited_for = self.awaited or self.among
        return [self.names[n] for n in waited_for if n not in self.reports and self.names[n] in present]

    def weights(self) -> dict[int, int]:
        """If models last: the parties of S, and the number of each one's weights."""
        return {n: self.trained[version] for n, version in zip(self.summed, self.versions, strict=True)}

    def settle(self, present: Collection[str]) -> bool:
        """Find S and the evaluators from the reports of parties within reach; False if there are too few."""
        reports = {n: held for n, held in self.reports.items() if self.names[n] in present}
        found = agree(reports, self.needed, self.least)
        if found is None:
            return False
        self.summed, self.versions = [n for n, _ in found[0]], [version for _, version in found[0]]
        self.evaluators = found[1]
        return True

    def outdated(self) -> dict[int, list[int]]:
        """For each reporter, the parties whose shares it holds in another version than their owners do."""
        own = {n: dict(held).get(n) for n, held in self.reports.items()}
        found = {r: [n for n, version in held if own.get(n, version) != version] for r, held in self.reports.items()}
        return {reporter: of for reporter, of in found.items() if of}

    def announce(self, position: int, places: int) -> list[Effect]:
        """Send S and the batch to the evaluators."""
        self.places = places
        message = Sum(*self.key, position, self.summed, self.versions, testing=self.testing)
        return [self._send(n, message) for n in self.evaluators]

    def answer(self, sender: str, message: Answer, width: int) -> bool:
        """Take an answer; True if it is useful. An answer for another S raises, so it is never decoded with these."""
        n = self.names.index(sender)
        if (message.round, message.attempt) != self.key:
            self._refuse_future(sender, message.round, message.attempt)
            return False
        if n not in self.evaluators or not self.places or message.summed != self.summed or n in self.answers:
            cause = f"sends an answer over {message.summed}, but the set of round {self.key[0]} is {self.summed}"
            raise RemoteProtocolError(sender, cause)
        check_elements(sender, "a coded embedding", message.values, (self.places, width))
        self.answers[n] = message.values
        return True

    def _refuse_future(self, sender: str, round: int, attempt: int) -> None:
        if (round, attempt) > self.newest:
            raise RemoteProtocolError(sender, f"names round {round}, attempt {attempt}, which has not begun")

    def decodable(self) -> bool:
        """Whether R answers are here."""
        return len(self.answers) >= self.needed

    def taken(self) -> tuple[Array, list[int]]:
        """The R answers with the lowest party numbers, and these numbers."""
        who = sorted(self.answers)[: self.needed]
        return np.stack([self.answers[n] for n in who]), who

    def outstanding(self) -> list[str]:
        """Evaluators without an answer."""
        return [self.names[n] for n in self.evaluators if n not in self.answers]

    def hopeless(self, present: Collection[str]) -> bool:
        """Whether R answers can no longer come."""
        hopeful = [n for n in self.evaluators if n in self.answers or self.names[n] in present]
        return bool(self.evaluators) and len(hopeful) < self.needed
