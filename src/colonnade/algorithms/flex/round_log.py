"""τ_k and η_k of each round, for metrics.jsonl: what Flex-VFL's Fig. 4 shows.

The server knows a round's rates when the round begins. It learns the numbers of steps from the reports, which come with
the next upload. So an entry is complete one round later; a late party's steps may come too late for it.
"""

from dataclasses import dataclass, field

from colonnade.algorithms.evaluation import Rounds
from colonnade.protocol.saved import UNSAVED, Component

__all__ = ["LOGGED_PARTIES", "LOGGED_ROUNDS", "RoundLog"]

LOGGED_ROUNDS = 64  # between two evaluations; of more rounds every second, fourth … one is logged
LOGGED_PARTIES = 63  # of more parties, only the first ones are logged


@dataclass(slots=True)
class Entry:
    """One round."""

    phase: int
    round: int
    clock_s: float
    tau: list[int | None]  # of each logged role, the server's first
    eta: list[float | None]


@dataclass(slots=True, eq=False)
class RoundLog(Component):
    """The rounds since the last evaluation."""

    roles: tuple[str, ...] = field(metadata=UNSAVED)  # the logged ones
    entries: list[Entry] = field(default_factory=list)
    count: int = 0  # rounds since the last evaluation
    every: int = 1  # one of so many is logged

    def begin(self, phase: int, number: int, clock_s: float, scales: dict[str, float]) -> None:
        """Note a round in which roles learn; `scales` are the factors of the rates of those that take part."""
        if self.count % self.every == 0:
            if len(self.entries) >= LOGGED_ROUNDS:
                self.entries, self.every = self.entries[::2], 2 * self.every
            if self.count % self.every == 0:
                nothing: list[int | None] = [None] * len(self.roles)
                eta = [scales.get(name) for name in self.roles]
                self.entries.append(Entry(phase, number, clock_s, nothing, eta))
        self.count += 1

    def steps(self, phase: int, role: str, steps: int) -> None:
        """Note how many steps a role took in a phase, if the phase is logged."""
        if role not in self.roles:
            return
        for entry in reversed(self.entries):
            if entry.phase == phase:
                entry.tau[self.roles.index(role)] = steps
                return

    def take(self, unfinished: int | None) -> Rounds:
        """Return the logged rounds and forget them, except one whose phase is `unfinished`."""
        done = [entry for entry in self.entries if entry.phase != unfinished]
        self.entries = [entry for entry in self.entries if entry.phase == unfinished]
        self.count, self.every = len(self.entries), 1
        return Rounds(
            [entry.round for entry in done],
            [entry.clock_s for entry in done],
            [entry.tau for entry in done],
            [entry.eta for entry in done],
        )
