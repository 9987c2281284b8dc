"""How a peer behaved since this process started, and whether it may still join. A restart of this process forgets it.

Two things count against a peer. It sent messages that the role refused, or it was connected and owed something for too
long. The first is final after `network.max_refusals` messages within `WITHIN_S`. The second keeps the peer out for
`network.give_up_s`, and for twice as long each further time. So a peer that always comes back and never pays what it
owes holds the others up for an ever smaller part of the time.
"""

import time
from collections import deque

__all__ = ["WITHIN_S", "Standing"]

WITHIN_S = 600.0


class Standing:
    """The refusals and debts of one peer."""

    def __init__(self) -> None:
        self.refused = 0  # messages, since this process started
        self.given_up = ""  # why this process has nothing more to do with the peer
        self._excluded = ""  # why the list of members excludes it
        self._recent: deque[float] = deque()
        self._overdue = 0
        self._out_until, self._out_for = 0.0, ""

    def refuse(self, cause: str, most: int) -> bool:
        """Count a refused message. Returns whether the peer is given up, because it was the last of `most`."""
        now, recent = time.monotonic(), self._recent
        self.refused += 1
        recent.append(now)
        while now - recent[0] > WITHIN_S:
            recent.popleft()
        if not self.given_up and len(recent) >= most:
            self.given_up = f"refused {len(recent)} times, the last time: {cause}"
        return bool(self.given_up)

    def exclude(self, cause: str) -> None:
        """Give the peer up because the list of members excludes it; with "", a newer list has it again."""
        if self.given_up == self._excluded:
            self.given_up = cause
        self._excluded = cause

    def overdue(self, what: str, owed_s: float, give_up_s: float) -> str:
        """Keep the peer out for a while because of what it owes; returns the reason."""
        self._out_until = time.monotonic() + give_up_s * 2**self._overdue
        self._out_for = f"owed {what} for {owed_s:.0f} s"
        self._overdue += 1
        return self._out_for

    def kept_out(self) -> str:
        """Why the peer may not join now; "" if it may."""
        wait_s = self._out_until - time.monotonic()
        return f"{self._out_for}; it may join again in {wait_s:.0f} s" if wait_s > 0 else ""
