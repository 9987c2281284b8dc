"""The held-out rows in coded form: places of validation rows come first, so that they can be asked for alone.

Validation rows and test rows are each cut into K segments. The segments of test rows follow those of validation rows.
"""

from dataclasses import dataclass

import numpy as np

from colonnade.privacy.sharing import Segmentation
from colonnade.protocol.messages import Array

__all__ = ["HeldOut"]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """`rows` held-out rows, of which the first `validation` are validation rows, in K `segments`."""

    rows: int
    validation: int
    segments: int

    @property
    def cuts(self) -> tuple[Segmentation, Segmentation]:
        """The segmentations of validation rows and of test rows."""
        return Segmentation(self.validation, self.segments), Segmentation(self.rows - self.validation, self.segments)

    @property
    def edge(self) -> int:
        """The first place of test rows."""
        return self.cuts[0].length

    @property
    def places(self) -> int:
        """The number of places of all held-out rows."""
        return sum(cut.length for cut in self.cuts)

    def stop(self, start: int, most: int) -> int:
        """The end of a chunk that starts at `start`: a chunk has validation rows or test rows, never both."""
        return min(start + most, self.edge if start < self.edge else self.places)

    def arranged(self, x: Array) -> Array:
        """(rows, d) to (K · places, d), padded with zeros and ready to be cut into K segments."""
        parts = zip(self.cuts, (x[: self.validation], x[self.validation :]), strict=True)
        cut = np.concatenate([one.cut(part) for one, part in parts], axis=1)
        return cut.reshape(self.segments * self.places, *x.shape[1:])

    def samples(self, decoded: Array) -> tuple[Array, Array]:
        """Decoded (K, places, h) to the validation rows and the test rows."""
        parts = zip(self.cuts, (decoded[:, : self.edge], decoded[:, self.edge :]), strict=True)
        validation, test = (cut.samples(part, np.arange(cut.length)) for cut, part in parts)
        return validation, test
