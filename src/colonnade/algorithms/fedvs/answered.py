"""What a party has answered for with its weights: the same rows over another S would tell an embedding apart."""

from dataclasses import dataclass, field

from colonnade.algorithms.fedvs.batches import SegmentWalk
from colonnade.algorithms.fedvs.messages import CHUNK_PLACES, Sum
from colonnade.protocol.saved import UNSAVED, Component

__all__ = ["Answered"]


@dataclass(slots=True, eq=False)
class Answered(Component):
    """Sums since the weights have changed."""

    walk: SegmentWalk = field(metadata=UNSAVED)
    edge: int = field(metadata=UNSAVED)  # the first place of test rows
    weights_round: int = 0  # gradients that were broadcast so far: what the weights are the result of
    sums: list[tuple[bool, int, list[int]]] = field(default_factory=list)  # (rows held out?, position, S)
    position: int = -1  # the newest batch

    def weights_of(self, round: int) -> None:
        """From now on, weights are those of this round; what was answered for before does not matter any more."""
        if round > self.weights_round:
            self.weights_round, self.sums = round, []

    def add(self, message: Sum) -> None:
        """An answer is given."""
        self.sums.append((message.testing, message.position, message.summed))
        if not message.testing:
            self.position = max(self.position, message.position)

    def would_tell_one_apart(self, message: Sum) -> bool:
        """Whether rows were answered for over another S with these weights: the difference would be an embedding."""
        others = [
            position
            for testing, position, summed in self.sums
            if testing == message.testing and summed != message.summed
        ]
        if message.testing:  # in chunks, that begin where no other does, and are of validation rows or of test rows
            alike = [position for position in others if (position < self.edge) == (message.position < self.edge)]
            return any(abs(position - message.position) < CHUNK_PLACES for position in alike)
        return any(self.walk.overlap(message.position, position) for position in others)
