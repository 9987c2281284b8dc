"""A token bucket: so many actions in a time, and no more than that many at once."""

import time
from dataclasses import dataclass, field

__all__ = ["Bucket"]


@dataclass(slots=True)
class Bucket:
    """Full at first; fills evenly, by `most` in `in_s` seconds."""

    most: int
    in_s: float
    _left: float = field(init=False)
    _at: float = field(init=False)

    def __post_init__(self) -> None:
        self._left, self._at = float(self.most), time.monotonic()

    def take(self) -> bool:
        """Take one; False if there is none."""
        now = time.monotonic()
        self._left = min(self.most, self._left + (now - self._at) * self.most / self.in_s)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
