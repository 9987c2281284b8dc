"""Wrong answers as the server counts them: which parties gave them, and rounds whose answers do not fit together.

The paper's parties follow the protocol. Here the server checks the answers if there are more than R (`spare`). It can
tell whose answer is wrong, but not why: the party may lie, or another party may have sent it a wrong share.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from colonnade.algorithms.remarks import Remark
from colonnade.data.suggest import listing
from colonnade.privacy.sharing import LagrangeCode
from colonnade.protocol.events import Effect, Emit
from colonnade.protocol.saved import UNSAVED, Component

__all__ = ["Suspicion"]

DECLINES = 256  # after the server has lost its memory, honest parties may decline one batch after the other
DISPUTES = 3  # attempts at one round whose answers do not fit together


@dataclass(slots=True, eq=False)
class Suspicion(Component):
    """Counts of wrong answers."""

    names: tuple[str, ...] = field(metadata=UNSAVED)
    code: LagrangeCode = field(metadata=UNSAVED)
    spare: int = field(metadata=UNSAVED)
    most: int = field(metadata=UNSAVED)  # wrong answers of a party, after which it is not asked any more
    wrong: dict[str, int] = field(default_factory=dict)  # wrong answers that were located, by party
    ignored: list[int] = field(default_factory=list)  # parties that are not asked for answers any more
    attempts: int = 0  # at this round, whose answers did not fit together
    disputed: int = 0  # the same, in all rounds
    unchecked: int = 0  # rounds without a spare answer, if `spare` asks for some
    declines: dict[int, int] = field(default_factory=dict)  # by party, since the last sum that was decoded
    test_declines: dict[int, int] = field(default_factory=dict)
    end: str = ""  # why the run ended; "": not for this

    def decoded(self, answers: int) -> None:
        """A round was decoded, from as many answers."""
        self.attempts, self.declines = 0, {}
        self.unchecked += self.spare > 0 and answers == self.code.needed

    def blame(self, wrong: Sequence[int]) -> list[Effect]:
        """Count wrong answers. After `most` of them a party is not asked again, if enough others are left."""
        effects: list[Effect] = []
        for n in wrong:
            name = self.names[n]
            self.wrong[name] = count = self.wrong.get(name, 0) + 1
            if count <= self.most:
                effects.append(Emit(Remark(name, f"wrong answer ({count} of {self.most}), left out")))
            if count == self.most:
                effects += self._ignore(n)
        return effects

    def _ignore(self, n: int) -> list[Effect]:
        # R + 1 parties must be left: the server could not check R answers, so any party could then lie.
        if n in self.ignored or len(self.names) - len(self.ignored) <= self.code.needed + 1:
            return []
        self.ignored.append(n)
        return [Emit(Remark(self.names[n], "is not asked for answers any more"))]

    def declined(self, n: int, testing: bool) -> list[Effect]:
        """A party does not answer. After `DECLINES` times without a sum in between, it is not asked again."""
        declines = self.test_declines if testing else self.declines
        declines[n] = declines.get(n, 0) + 1
        if declines[n] < DECLINES:
            return []
        found = self._ignore(n)
        if not found and not testing and n not in self.ignored:
            others = f"{self.code.needed + 1} other parties would be needed to go on without it"
            self.end = f"{self.names[n]} declined {DECLINES} sums one after the other, and {others}"
        return found

    def dispute(self, round: int, answered: Sequence[int]) -> str:
        """The answers of these parties do not fit together. Returns why the run must end; "": try the round again."""
        self.attempts += 1
        self.disputed += 1
        if self.attempts >= DISPUTES:
            self.end = self._reason(round, [self.names[n] for n in answered])
        return self.end

    def _reason(self, round: int, suspects: list[str]) -> str:
        code = self.code
        most = (code.parties - 1) // 2  # of K + T, from R + 2 ≤ N
        needs = f"{2 * code.colluders + 3} parties" if most <= code.colluders else f"K + T of {most} at most"
        return (
            f"wrong answers in round {round}: {len(suspects)} answers do not fit together, so at least one of "
            f"{listing(suspects)} is wrong; R + 2 = {code.needed + 2} answers locate one wrong answer, which takes "
            f"{needs} (here: {code.parties} parties, K = {code.segments}, T = {code.colluders})"
        )

    def told(self) -> dict[str, object]:
        """The part of the run's summary on wrong answers."""
        return {
            "wrong_answers": dict(sorted(self.wrong.items())),
            "not_asked_any_more": [self.names[n] for n in self.ignored],
            "rounds_in_dispute": self.disputed,
            "unchecked_rounds": self.unchecked,
        }

    def warnings(self) -> list[str]:
        """Wrong answers, located or not, and rounds that were not checked."""
        found = [self.end] if self.end else []
        if self.wrong:
            each = listing(f"{name} ({count})" for name, count in sorted(self.wrong.items()))
            cause = "each of these parties, or a party that shares with it, is faulty or lies"
            found.append(f"wrong answers were left out: {each}; {cause}")
        if self.unchecked:
            advice = f"only {self.code.needed} answers came in time; raise protocol.deadline_s, or lower protocol.K"
            found.append(f"the answers of {self.unchecked} rounds could not be checked: {advice}")
        return found
