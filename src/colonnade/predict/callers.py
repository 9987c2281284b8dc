"""The callers of the HTTP endpoint: a quota for each, and counts of requests, rows and refusals by name."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from colonnade.protocol.quota import DAY_S, MINUTE_S, Bucket, take_from_all

__all__ = ["Callers"]


@dataclass(slots=True)
class _Caller:
    per_minute: Bucket
    per_day: Bucket
    requests: int = 0
    rows: int = 0
    refused: Counter[str] = field(default_factory=Counter)


class Callers:
    """Names come from the list of tokens, so their number is bounded. A restart of the server forgets the counts."""

    def __init__(self, requests_per_minute: int, rows_per_day: int, clock: Callable[[], int]) -> None:
        self._requests, self._rows, self._clock = requests_per_minute, rows_per_day, clock
        self._of: dict[str, _Caller] = {}
        self.strangers: Counter[str] = Counter()  # refusals of connections without a valid token, by reason

    def request(self, name: str) -> float:
        """Count a request of an admitted caller; returns the seconds to wait, 0 if it may go on."""
        caller = self._caller(name)
        caller.requests += 1
        return take_from_all([caller.per_minute], 1, self._clock())

    def rows(self, name: str, count: int) -> float:
        """Take rows from the caller's quota; returns the seconds to wait, 0 if they were taken."""
        caller = self._caller(name)
        wait_s = take_from_all([caller.per_day], count, self._clock())
        caller.rows += 0 if wait_s else count
        return wait_s

    def refused(self, name: str, why: str) -> None:
        """Count a refusal; `name` is "" without a valid token."""
        (self._caller(name).refused if name else self.strangers)[why] += 1

    def total_refused(self) -> dict[str, int]:
        """Refusals by reason, without names."""
        return dict(sum((caller.refused for caller in self._of.values()), self.strangers.copy()))

    def by_name(self) -> list[dict[str, Any]]:
        """Each caller's counts, for the metrics."""
        rows = [{"name": "", "requests": 0, "rows": 0, "refused": dict(self.strangers)}]
        for name, caller in self._of.items():
            rows.append(
                {"name": name, "requests": caller.requests, "rows": caller.rows, "refused": dict(caller.refused)}
            )
        return rows

    def _caller(self, name: str) -> _Caller:
        if name not in self._of:
            self._of[name] = _Caller(Bucket(self._requests, MINUTE_S), Bucket(self._rows, DAY_S))
        return self._of[name]


def retry_after(wait_s: float) -> dict[str, str]:
    """The header for a caller that must wait; none if waiting does not help."""
    return {} if math.isinf(wait_s) else {"Retry-After": str(math.ceil(wait_s))}
