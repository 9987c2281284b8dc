"""Quotas: how many rows or requests may pass within a minute or a day."""

from collections.abc import Sequence
from dataclasses import dataclass

from colonnade.protocol.events import NANOSECONDS

__all__ = ["DAY_S", "MINUTE_S", "Bucket", "take_from_all"]

MINUTE_S, DAY_S = 60, 86_400
ROUNDING_S = 1e-6


@dataclass(slots=True)
class Bucket:
    """Lets `size` units pass within `period_s`. What was used comes back evenly over the period."""

    size: float
    period_s: float
    used: float = 0.0
    at: int = 0  # the time (ns) of `used`

    def wait_s(self, amount: float, now: int) -> float:
        """Return in how many seconds `amount` may pass: 0 if now, infinity if it never may."""
        if amount > self.size:
            return float("inf")
        per_s = self.size / self.period_s
        self.used = max(0.0, self.used - (now - self.at) / NANOSECONDS * per_s)
        self.at = now
        wait_s = (self.used + amount - self.size) / per_s
        return wait_s if wait_s > ROUNDING_S else 0.0


def take_from_all(buckets: Sequence[Bucket], amount: float, now: int) -> float:
    """Take `amount` from every bucket, or from none; return the seconds to wait, 0 if it was taken."""
    wait_s = max((bucket.wait_s(amount, now) for bucket in buckets), default=0.0)
    if not wait_s:
        for bucket in buckets:
            bucket.used += amount
    return wait_s
