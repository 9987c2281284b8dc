"""The order of batches: FedVS draws places, and a place stands for a row in each of the K segments."""

from collections.abc import Iterable

import numpy as np

from colonnade.algorithms.batches import Draws, Order, Walk
from colonnade.algorithms.training import Training
from colonnade.privacy.sharing import Segmentation
from colonnade.protocol.messages import Array

__all__ = ["SegmentWalk"]


class SegmentWalk:
    """Batches B of places; K·|B| is the configured size. All roles derive the same batches, without a message."""

    def __init__(self, rows: int, training: Training, segments: int) -> None:
        self.cut = Segmentation(rows, segments)
        self.places = min(-(-training.batch_size // segments), self.cut.length)
        kind = Draws if training.sampling == "iid" else Walk
        self._walk: Order = kind(self.cut.length, self.places, training.seed, "batches")
        self.per_epoch = self._walk.per_epoch

    def batch(self, position: int) -> Array:
        """The places of batch number `position`, counted from 0 through all epochs."""
        return self._walk.batch(position)

    def rows(self, position: int) -> Array:
        """The rows of batch number `position`."""
        return self.cut.row_numbers(self.batch(position))

    def marked(self, positions: Iterable[int]) -> Array:
        """All places, as booleans: True for those of these batches. Batches of two epochs may have places in common."""
        found = np.zeros(self.cut.length, np.bool_)
        for position in positions:
            found[self.batch(position)] = True
        return found
