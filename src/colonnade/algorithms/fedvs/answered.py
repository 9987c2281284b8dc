"""The sums that a party has answered for: subtracting two sums over the same rows must not reveal a few parties' part.

A party's weights have a number: one more than the round whose gradient led to them. If two sums over common rows have
the same weights of a party, its part cancels out of their difference.

    the same S, the same weights     the same sum again
    the same S                       refused if fewer than `least` parties have other weights
    another S                        refused if some party of both has the same weights

Why this is enough, whatever is added and subtracted: docs/methods/fedvs.md, "What the server can subtract".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from colonnade.algorithms.fedvs.batches import SegmentWalk
from colonnade.algorithms.fedvs.messages import CHUNK_PLACES, Sum
from colonnade.protocol.saved import UNSAVED, Component

__all__ = ["MOST_SUMS", "Answered", "Weights", "free_position", "furthest_position", "in_use", "tells_apart"]

TRIES = 4096  # batches to try: every epoch has different ones
MOST_SUMS = 4096  # with weights that are in use: no honest server asks for nearly as many
Weights = Mapping[int, int]  # party of S → number of its weights


def tells_apart(one: Weights, other: Weights, least: int) -> bool:
    """Whether the difference of two sums over the same rows may reveal a few parties' part (rules: see the module)."""
    alike = sum(other.get(n) == trained for n, trained in one.items())
    if one.keys() != other.keys():
        return alike > 0
    return 0 < len(one) - alike < least


def in_use(weights: Weights, newest: Weights) -> bool:
    """Whether a later sum may use some of these weights again."""
    return any(newest.get(n, trained) <= trained for n, trained in weights.items())


def furthest_position(round: int, attempt: int) -> int:
    """The first position that no batch of this attempt can have.

    A position grows by one in every round. A sum that a party declines, or that would tell parties apart, adds a few
    batches. No honest server passes over `TRIES` of them in every round.
    """
    return TRIES * (round + attempt + 1)


@dataclass(slots=True, eq=False)
class Answered(Component):
    """Sums from which a later sum must not be subtracted."""

    walk: SegmentWalk = field(metadata=UNSAVED)
    least: int = field(metadata=UNSAVED)  # fewest parties of a sum
    edge: int = field(metadata=UNSAVED)  # the first place of test rows
    weights_round: int = 0  # gradients broadcast so far; if all parties step, the number of their weights
    sums: list[tuple[bool, int, dict[int, int]]] = field(default_factory=list)  # (held-out?, position, weights of S)
    position: int = -1  # the newest batch answered for

    def weights_of(self, round: int) -> None:
        """All weights are those of this round from now on; earlier answers no longer matter."""
        if round > self.weights_round:
            self.weights_round, self.sums = round, []

    def add(self, message: Sum, weights: dict[int, int]) -> None:
        """Record an answer. Forget sums in which no party's weights are in use any more."""
        testing = message.testing
        newest = testing, message.position, weights
        self.sums = [one for one in self.sums if one != newest and (one[0] != testing or in_use(one[2], weights))]
        self.sums.append(newest)
        if not message.testing:
            self.position = max(self.position, message.position)

    def is_full(self, weights: Weights) -> bool:
        """Whether there is no room for a further sum with these weights."""
        return len(self.sums) >= MOST_SUMS and sum(in_use(one[2], weights) for one in self.sums) >= MOST_SUMS

    def would_tell_apart(self, message: Sum, weights: Weights) -> bool:
        """Whether an earlier sum over some of these rows must not be subtracted from this one."""
        sums = [(position, own) for testing, position, own in self.sums if testing == message.testing]
        if message.testing:  # the server asks in chunks of validation rows or of test rows, never of both
            others = [position for position, own in sums if tells_apart(own, weights, self.least)]
            alike = [position for position in others if (position < self.edge) == (message.position < self.edge)]
            return any(abs(position - message.position) < CHUNK_PLACES for position in alike)
        return free_position(self.walk, message.position, sums, weights, self.least) != message.position


def free_position(
    walk: SegmentWalk, position: int, sums: Sequence[tuple[int, Weights]], weights: Weights, least: int
) -> int | None:
    """The next batch, from `position` on, that can be summed with these weights; None if there is none.

    If none of `TRIES` batches can, only another S is refused. This takes parties that have lost their memory and a
    table of only a few batches.
    """
    for fewest in (least, 0):
        others = sorted({other for other, own in sums if tells_apart(own, weights, fewest)})
        if not others:
            return position
        taken = walk.marked(others)
        for place in range(position, position + TRIES):
            if not taken[walk.batch(place)].any():
                return place
    return None
