"""The ring of members: the path of each set of ids, and which member may send what to which.

A set of ids starts at its owner and visits every other member in the order of the list. The last of them sends it to
the server. The server's findings about its own set go back the same way (see `member`).
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from colonnade.algorithms.alignment.messages import Places, Points
from colonnade.privacy.blinding import POINT_BYTES
from colonnade.protocol.role import SERVER

__all__ = ["MOST_IDS", "Ring"]

MOST_IDS = 2**27  # of one member: hashing them takes hours


@dataclass(frozen=True, slots=True)
class Ring:
    """The members that take part, and their numbers of ids."""

    members: tuple[str, ...]
    counts: tuple[int, ...]

    def count(self, member: str) -> int:
        """The number of ids that this member has declared."""
        return self.counts[self.members.index(member)]

    def path(self, owner: str) -> tuple[str, ...]:
        """The way of a set: its owner, the other members in order, and the server, which compares it."""
        start = self.members.index(owner)
        return (*self.members[start:], *self.members[:start], SERVER)

    def is_possible(self) -> bool:
        """Check what a peer says about the members."""
        named = len(self.members) == len(self.counts) == len(set(self.members))
        return named and all(1 <= count <= MOST_IDS for count in self.counts)

    @property
    def work(self) -> int:
        """The number of points that each member raises: its own and all others'."""
        return sum(self.counts)

    def wrong_points(self, sender: str, me: str, message: Points, taken: int) -> str:
        """Why these points are not the next ones expected from this sender; "" if they are."""
        hops, size = message.hops, len(self.members)
        known = message.owner in self.members and 1 <= hops <= size
        if not known or self.path(message.owner)[hops - 1 : hops + 1] != (sender, me):
            return "sends ids out of turn"
        points = message.points
        if points.dtype != np.uint8 or points.ndim != 2 or points.shape[1] != POINT_BYTES:
            return "sends ids of a wrong type or shape"
        return self._wrong_number(message, len(points), taken, f"ids of {message.owner}")

    def wrong_places(self, sender: str, me: str, message: Places, taken: int) -> str:
        """Why these places, on their way to their owner, are not the next ones expected; "" if they are."""
        back = self.path(message.owner) if message.owner in self.members else ()
        steps = [(later, earlier) for earlier, later in pairwise(back)]
        direct = message.owner != SERVER and (sender, me) == (SERVER, message.owner)
        if not direct and (message.owner != SERVER or (sender, me) not in steps):
            return "sends places out of turn"
        places, size = message.places, message.size
        if places.dtype != np.int32 or places.ndim != 1 or not 0 <= size <= self.work:
            return "sends invalid places"
        if len(places) and not -1 <= places.min() <= places.max() < size:
            return "sends invalid places"
        return self._wrong_number(message, len(places), taken, f"places of {message.owner}")

    def _wrong_number(self, message: Points | Places, length: int, taken: int, what: str) -> str:
        declared, end = self.count(message.owner), message.start + length
        if message.start != taken or not length:
            return f"sends {what} out of order"
        if end > declared or (end == declared and not message.last):
            return f"sends more {what} than the {declared} that it declared"
        if message.last and end < declared:
            return f"sends {end} {what}, fewer than the {declared} that it declared"
        return ""
