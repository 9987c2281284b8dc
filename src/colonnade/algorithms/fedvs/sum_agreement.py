"""One exchange as the server sees it: sharing, reports on shares, the agreed set S, and answers (footnote 2).

The parties agree on S after sharing. An evaluator with another S, or with another version of a party's data, would
silently decode to garbage. Therefore every answer names S, and S names the versions.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from colonnade.algorithms.fedvs.holdings import LAST_ROUND, NEVER, Key, check_elements
from colonnade.algorithms.fedvs.messages import Answer, Holding, ShareModels, Sum, WhoHolds
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.events import Effect, Send
from colonnade.protocol.messages import Array, Message
from colonnade.protocol.saved import UNSAVED, Component

__all__ = ["Held", "SumAgreement", "agree", "mutually_prepared"]

LONGEST = 200  # characters of a reason
TARDY = 20  # rounds that do not wait for a spare answer of a party, after it missed a deadline
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
    newest: Key = NEVER  # the newest key that is believed; it is later than `key` if this server lost its memory
    claimed: dict[int, Key] = field(default_factory=dict)  # the newest key that each party says it has heard of
    among: list[int] = field(default_factory=list)
    awaited: list[int] = field(default_factory=list)  # models last: parties that share and blind here
    trained: dict[int, dict[int, int]] = field(default_factory=dict)  # reporter → version → number of the weights
    asked: bool = False
    reports: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    summed: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    evaluators: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)  # models last: evaluators to ask first; none: all
    chosen: list[int] = field(default_factory=list)  # evaluators that were asked
    places: int = 0  # places of an answer, once it is asked for
    answers: dict[int, Array] = field(default_factory=dict)
    spare: int = field(default=0, metadata=UNSAVED)  # answers beyond R to wait for
    doubted: int = 0  # that many answers did not fit together, and the wrong ones could not be located
    ignored: list[int] = field(default_factory=list)  # parties that are not asked for answers any more
    tardy: dict[int, int] = field(default_factory=dict)  # party → the round in which a spare answer is waited for again

    def begin(
        self,
        key: Key,
        among: list[int],
        places: int,
        awaited: list[int] | None = None,
        position: int = -1,
        first: list[int] | None = None,
    ) -> list[Effect]:
        """Alg. 1 l. 13: all parties share; if models last, only those that the exchange waits for."""
        self.first, self.chosen = first or [], []
        self.key, self.among, self.asked, self.places = key, among, False, 0
        self.awaited, self.trained = awaited or [], {}
        self.newest = max(key, self.newest)
        self.reports, self.answers, self.doubted = {}, {}, 0
        self.summed, self.versions, self.evaluators = [], [], []
        order = ShareModels(*key, among, places, self.awaited, position, self.first, testing=self.testing)
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
        if wrong or twice or unknown or n not in self.among or len(held) > 2 * len(self.among):
            cause = f"reports shares of {message.held}, but the parties that share are {self.among}"
            raise RemoteProtocolError(sender, cause[:LONGEST])
        if not (0 <= message.clipped < LAST_ROUND and all(0 <= number < LAST_ROUND for number in message.trained)):
            raise RemoteProtocolError(sender, f"reports impossible numbers: {message!r:.120}")
        self.trained[n] = dict(zip(message.versions, message.trained, strict=False))
        self.reports[n] = held if self.awaited else sorted(held)
        return True

    def unreported(self, present: Collection[str]) -> list[str]:
        """The parties within reach without a report; if models last, only those that the exchange waits for."""
        waited_for = self.awaited or self.among
        return [self.names[n] for n in waited_for if n not in self.reports and self.names[n] in present]

    def weights(self) -> dict[int, int]:
        """If models last: the parties of S, and the number of each one's weights."""
        return {n: self._number(n, version) for n, version in zip(self.summed, self.versions, strict=True)}

    def _number(self, n: int, version: int) -> int:
        """The number of party n's weights of this version: as n says itself, or else as most reporters say."""
        said = {reporter: own[version] for reporter, own in self.trained.items() if version in own}
        return said[n] if n in said else Counter(said.values()).most_common(1)[0][0]

    def settle(self, present: Collection[str]) -> bool:
        """Find S and the evaluators from the reports of parties within reach; False if there are too few."""
        reports = {n: own for n, own in self.reports.items() if self.names[n] in present and n not in self.ignored}
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

    def against(self) -> Counter[int]:
        """What speaks against each party if this exchange fails: see `failed_attempts`."""
        found, outdated = Counter[int](), self.outdated()
        if self.asked:
            found.update(n for n in self.among if n not in self.reports)
        for reporter, held in self.reports.items():
            lacking = [n for n in self.among if n not in dict(held)]
            for n in [*lacking, *outdated.get(reporter, [])]:
                found.update({reporter, n})
        found.update(n for n in self.asked_for_answers if n not in self.answers)
        return found

    def announce(self, position: int, places: int) -> list[Effect]:
        """Send S and the batch to the evaluators that are asked first; to all if too few of them hold all shares."""
        self.places = places
        first = [n for n in self.evaluators if n in self.first]
        self.chosen = first if len(first) >= self.needed + self.spare else list(self.evaluators)
        return self._order(position, self.chosen)

    def _order(self, position: int, evaluators: list[int]) -> list[Effect]:
        message = Sum(*self.key, position, self.summed, self.versions, testing=self.testing)
        return [self._send(n, message) for n in evaluators]

    @property
    def asked_for_answers(self) -> list[int]:
        """The evaluators that were asked; all, in the state of a release that always asked all."""
        return self.chosen or self.evaluators

    def unasked(self) -> list[int]:
        """Evaluators that have not been asked yet."""
        return [n for n in self.evaluators if n not in self.asked_for_answers]

    def ask_the_rest(self, position: int) -> list[Effect]:
        """Send S and the batch to all other evaluators."""
        rest = self.unasked()
        self.chosen = list(self.evaluators)
        return self._order(position, rest)

    def needs_others(self, present: Collection[str]) -> bool:
        """Whether the evaluators that were asked cannot give enough answers, or gave some that are wrong."""
        hopeful = [n for n in self._hopeful(present) if n in self.asked_for_answers]
        return self.doubted > 0 or len(hopeful) < self.needed + self.spare

    def answer(self, sender: str, message: Answer, width: int) -> bool:
        """Take an answer; True if it is useful. An answer for another S raises, so it is never decoded with these."""
        n = self.names.index(sender)
        if (message.round, message.attempt) != self.key:
            self._refuse_future(sender, message.round, message.attempt)
            return False
        if n not in self.asked_for_answers or not self.places or message.summed != self.summed or n in self.answers:
            cause = f"sends an answer over {message.summed}, but the set of round {self.key[0]} is {self.summed}"
            raise RemoteProtocolError(sender, cause)
        check_elements(sender, "a coded embedding", message.values, (self.places, width))
        self.answers[n] = message.values
        self.tardy.pop(n, None)
        return True

    def _refuse_future(self, sender: str, round: int, attempt: int) -> None:
        claimed = self.claimed.get(self.names.index(sender), NEVER)
        if (round, attempt) > max(self.newest, claimed):
            raise RemoteProtocolError(sender, f"names round {round}, attempt {attempt}, which has not begun")

    def decodable(self, present: Collection[str]) -> bool:
        """Whether R answers are here, and the spare ones that can still come; more than those that were doubted."""
        prompt = [n for n in self._hopeful(present) if n in self.answers or self.tardy.get(n, 0) <= self.key[0]]
        wanted = max(self.needed, min(self.needed + self.spare, len(prompt)))
        return len(self.answers) >= max(wanted, self.doubted + 1)

    def settle_for_less(self) -> bool:
        """The deadline has passed: whether R answers are here, none of them doubted, so that the server can decode.

        It then does not wait for the missing parties in the next rounds: one silent party would slow down all of them.
        """
        enough = len(self.answers) >= self.needed and not self.doubted
        if enough:
            self.tardy |= {n: self.key[0] + TARDY for n in self.asked_for_answers if n not in self.answers}
        return enough

    def taken(self) -> tuple[Array, list[int]]:
        """The answers, and the numbers of their parties in ascending order."""
        who = sorted(self.answers)
        return np.stack([self.answers[n] for n in who]), who

    def outstanding(self) -> list[str]:
        """Evaluators that were asked and have not answered."""
        return [self.names[n] for n in self.asked_for_answers if n not in self.answers]

    def hopeless(self, present: Collection[str]) -> bool:
        """Whether R answers can no longer come."""
        return bool(self.evaluators) and len(self._hopeful(present)) < self.needed

    def is_disputed(self, present: Collection[str]) -> bool:
        """Whether a wrong answer cannot be located, and no more answers can come."""
        return bool(self.doubted) and len(self._hopeful(present)) <= len(self.answers)

    def _hopeful(self, present: Collection[str]) -> list[int]:
        """Evaluators that have answered, or are within reach."""
        return [n for n in self.evaluators if n in self.answers or self.names[n] in present]
