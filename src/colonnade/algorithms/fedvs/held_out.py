"""The rows held out, as they are coded: places of validation rows come first, so that they can be asked for alone.

Validation rows and test rows are each cut into K segments, and the segments of the latter follow those of the former.
"""

from dataclasses import dataclass

import numpy as np

from colonnade.privacy.sharing import Segmentation
from colonnade.protocol.messages import Array

__all__ = ["HeldOut"]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """`rows` in all, of which the first `validation` are to validate on, in K `segments`."""

    rows: int
    validation: int
    segments: int

    @property
    def cuts(self) -> tuple[Segmentation, Segmentation]:
        """Of the validation rows, and of the test rows."""
        return Segmentation(self.validation, self.segments), Segmentation(self.rows - self.validation, self.segments)

    @property
    def edge(self) -> int:
        """The first place of test rows."""
        return self.cuts[0].length

    @property
    def places(self) -> int:
        """Of all."""
        return sum(cut.length for cut in self.cuts)

    def stop(self, start: int, most: int) -> int:
        """Where a chunk of places ends that begins here: it is of validation rows or of test rows, never of both."""
        return min(start + most, self.edge if start < self.edge else self.places)

    def arranged(self, x: Array) -> Array:
        """(rows, d) to (K · places, d): what is cut into K segments of these places; padded with zeros."""
        parts = zip(self.cuts, (x[: self.validation], x[self.validation :]), strict=True)
        cut = np.concatenate([one.cut(part) for one, part in parts], axis=1)
        return cut.reshape(self.segments * self.places, *x.shape[1:])

    def samples(self, decoded: Array) -> tuple[Array, Array]:
        """Decoded (K, places, h) to the validation rows and the test rows."""
        parts = zip(self.cuts, (decoded[:, : self.edge], decoded[:, self.edge :]), strict=True)
        validation, test = (cut.samples(part, np.arange(cut.length)) for cut, part in parts)
        return validation, test
