"""Record the rows that a party has contributed at its current weights, and over which parties.

Sums of the same rows at the same weights over two sets of parties differ by the margins of the parties in only one set.
A party therefore contributes its margins of a row, at one state of its weights, to sums over one set only. Then sums
over different sets have no party's term in common, and no combination of them cancels the terms of the others.

A contribution counts from the moment at which its job is given out, because the party cannot know whether the sum was
completed. The party may move while the job runs. The term may then be of the weights before or after, so the rows count
for both. A party whose weights are all zero has no margins to reveal, so only its running jobs count.

The fence has one limit: a party that went back to an older checkpoint has forgotten its contributions since. The other
parties of those sums have not, unless they all went back.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from colonnade.algorithms.batches import Rows
from colonnade.protocol.messages import Array
from colonnade.protocol.saved import form_of

__all__ = ["Fence", "Members", "Share"]

Members = tuple[int, ...]
Marks = dict[tuple[bool, Members], Array]  # (test rows?, parties) → whether each row was contributed


class Share(NamedTuple):
    """A party's part in a sum: of test rows (all), or of training rows (all, if whole)."""

    tests: bool
    whole: bool
    rows: Rows
    members: Members


_RUNNING = form_of(dict[int, Share])


class Fence:
    """A party's contributions since it last moved."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.marks: Marks = {}
        self.running: dict[int, Share] = {}  # by the token of the job that makes the term

    def forbids(self, share: Share, w: Array) -> bool:
        """Whether this share, at these weights, would bring a second set of parties to one of its rows."""
        if not self._clashes(share, self.marks):
            return False
        return bool(w.any()) or self._clashes(share, self._marked(self.running.values(), {}))

    def awaits(self, share: Share) -> bool:
        """Whether only terms that are being made are in the way of this share: until they are done, no move helps."""
        running = self._marked(self.running.values(), {})
        rest = {key: mask & ~running[key] if key in running else mask for key, mask in self.marks.items()}
        return not self._clashes(share, rest)

    def _clashes(self, share: Share, marks: Marks) -> bool:
        for (tests, members), mask in marks.items():
            if tests == share.tests and members != share.members and mask[self._places(share)].any():
                return True
        return False

    def note(self, token: int, share: Share) -> None:
        """Record a share whose job is given out."""
        self.running[token] = share
        self._marked([share], self.marks)

    def settle(self, token: int) -> Share:
        """The job of a share is done."""
        return self.running.pop(token)

    def moved(self) -> None:
        """The weights have changed; terms that are being made may already be of the new weights."""
        self.marks = self._marked(self.running.values(), {})

    def members(self) -> set[Members]:
        """The sets of parties over which this party has contributed at its current weights."""
        return {members for _, members in self.marks}

    def _marked(self, shares: Iterable[Share], marks: Marks) -> Marks:
        for share in shares:
            key = share.tests, share.members
            if key not in marks:
                marks[key] = np.zeros(1 if share.tests else self._rows, np.bool_)
            marks[key][self._places(share)] = True
        return marks

    @staticmethod
    def _places(share: Share) -> Any:
        return slice(None) if share.tests or share.whole else share.rows

    def save(self) -> dict[str, Any]:
        """The whole state, with row marks as bits."""
        marks = [(tests, members, np.packbits(mask)) for (tests, members), mask in self.marks.items()]
        return {"marks": marks, "running": _RUNNING.plain(self.running)}

    def load(self, saved: dict[str, Any]) -> None:
        self.marks = {
            (tests, members): np.unpackbits(bits, count=1 if tests else self._rows).astype(np.bool_)
            for tests, members, bits in saved["marks"]
        }
        self.running = _RUNNING.typed(saved["running"])
