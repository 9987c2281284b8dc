"""What a party has answered for with its weights: the same rows over another S would tell an embedding apart."""

from typing import Any

from colonnade.algorithms.fedvs.batches import SegmentWalk
from colonnade.algorithms.fedvs.messages import CHUNK_PLACES, Sum

__all__ = ["Answered"]


class Answered:
    """Sums since the weights have changed."""

    def __init__(self, walk: SegmentWalk) -> None:
        self._walk = walk
        self.weights_round = 0  # gradients that were broadcast so far: what the weights are the result of
        self.sums: list[tuple[bool, int, list[int]]] = []  # (test rows?, position, S)
        self.position = -1  # the newest batch

    def weights_of(self, round: int) -> None:
        """From now on, weights are those of this round; what was answered for before does not matter any more."""
        if round > self.weights_round:
            self.weights_round, self.sums = round, []

    def add(self, testing: bool, message: Sum) -> None:
        """An answer is given."""
        self.sums = [*self.sums, (testing, message.position, message.summed)]
        if not testing:
            self.position = max(self.position, message.position)

    def would_tell_one_apart(self, testing: bool, message: Sum) -> bool:
        """Whether rows were answered for over another S with these weights: the difference would be an embedding."""
        others = [position for kind, position, summed in self.sums if kind == testing and summed != message.summed]
        if testing:  # in chunks, that begin where no other does
            return any(abs(position - message.position) < CHUNK_PLACES for position in others)
        return any(self._walk.overlap(message.position, position) for position in others)

    def save(self) -> dict[str, Any]:
        """All of it."""
        return {"weights_round": self.weights_round, "sums": self.sums, "position": self.position}

    def load(self, saved: dict[str, Any]) -> None:
        """The reverse of `save`."""
        self.weights_round, self.sums, self.position = saved["weights_round"], saved["sums"], saved["position"]
