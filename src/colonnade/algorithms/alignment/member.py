"""The work of a member that holds ids: raise its own and all others' points, and derive an order from the places.

    k_m         this member's secret exponent; H(x) the point of an id (see `privacy.blinding`)
    own set     k_m·H(x) in a secret order of its own, sent to the next member of the ring, which raises it in turn
    at the end  every set is raised by all exponents: equal ids are equal points, and no single member can undo it

The server compares the sets. It cannot link points to ids, because each set's owner keeps the set's order secret. But
the server would know the order of its own set. Therefore every party mixes the server's set again on the way. The
places of the server's points go back the same way, and each party undoes its mixing. So the server learns about its own
ids what every member learns about its own, and nothing more.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from colonnade.algorithms.alignment.messages import Aligned, Invalid, Mail, Own, Places, Points, Secret
from colonnade.algorithms.alignment.ring import Ring
from colonnade.privacy.blinding import Blinder, permutation
from colonnade.privacy.secret import SecretKey
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.events import Effect, Emit, Send, Work
from colonnade.protocol.messages import Array
from colonnade.protocol.role import SERVER
from colonnade.protocol.saved import UNSAVED, Component

__all__ = ["BULK", "CHUNK", "Member", "pieces"]

CHUNK = 16384  # points to raise in one job, 0.5 MB; half a second of work on one core
BULK = 4  # this many times CHUNK go into one message if all are ready, so that few messages wait for one peer
DOMAIN = b"colonnade alignment, version 1\n"


@dataclass(slots=True, eq=False)
class Member(Component):
    """One member that holds ids. Its key, and values made from the key alone, are not saved."""

    name: str = field(metadata=UNSAVED)
    ids: Sequence[str] = field(metadata=UNSAVED)
    rows: Array = field(metadata=UNSAVED)  # row numbers of the ids in the member's own table
    chunk: int = field(metadata=UNSAVED)
    ring: Ring | None = None
    taken: dict[str, int] = field(default_factory=dict)  # points of each owner that have arrived
    queue: list[Own | Points] = field(default_factory=list)  # the driver has the first one
    token: int = 0
    raised: int = 0
    mixing: list[Array] = field(default_factory=list)  # the raised points of the server's set, until all are here
    seed: bytes = b""  # seed of the common order
    size: int = 0
    found: dict[str, list[Array]] = field(default_factory=dict)  # places that have arrived, by owner
    aligned: Aligned | None = None
    _key: SecretKey = field(default_factory=SecretKey, init=False, metadata=UNSAVED)
    _blinder: Blinder | None = field(default=None, init=False, metadata=UNSAVED)
    _order: Array | None = field(default=None, init=False, metadata=UNSAVED)  # of the member's own set, once it is made

    def renew(self, entropy: bytes) -> None:
        """Set the key, from which all other secrets derive."""
        self._key.renew(entropy)
        self._blinder, self._order = Blinder(self._key.seed("exponent")), None

    def _own_order(self) -> Array:
        if self._order is None:
            self._order = permutation(self._key.seed("own order"), len(self.ids))
        return self._order

    # Points

    def begin(self, ring: Ring) -> list[Effect]:
        """All members are here: raise the member's own ids first. The first member draws the secret."""
        self.ring = ring
        stops = range(0, len(self.ids), self.chunk)
        effects = self._add(*(Own(start, min(start + self.chunk, len(self.ids))) for start in stops))
        if ring.members[0] == self.name:
            self.seed = self._key.seed("common order")
            effects += [Send(other, Secret(self.seed)) for other in ring.members[1:]]
        return effects

    def take(self, sender: str, message: Mail) -> list[Effect]:
        """Handle a message from another member; RemoteProtocolError if it is not the next one in order."""
        assert self.ring is not None
        match message:
            case Points():
                taken = self.taken.get(message.owner, 0)
                _refuse(sender, self.ring.wrong_points(sender, self.name, message, taken))
                self.taken[message.owner] = taken + len(message.points)
                return self._add(*self._jobs(message))
            case Places():
                return self._take_places(sender, message)
            case Secret(seed=seed):
                wrong = sender != self.ring.members[0] or self.seed or len(seed) != 32
                _refuse(sender, "sends a secret out of turn" if wrong else "")
                self.seed = seed
                return self._finish()

    def _jobs(self, message: Points) -> list[Points]:
        """The message's points, cut into jobs."""
        return [
            Points(
                message.owner, message.hops, message.start + start, message.last and last, message.points[start:stop]
            )
            for start, stop, last in pieces(len(message.points), self.chunk)
        ]

    def _add(self, *jobs: Own | Points) -> list[Effect]:
        idle = not self.queue
        self.queue.extend(jobs)
        return self._next() if idle else []

    def _next(self) -> list[Effect]:
        if not self.queue:
            return []
        self.token += 1
        return [Work(self.token, "raise", 1.0, self.queue[0])]

    def hashed(self, job: Own) -> Points:
        """The points of some own ids, raised to this member's exponent."""
        assert self._blinder is not None
        texts = [self.ids[place] for place in self._own_order()[job.start : job.stop]]
        return Points(self.name, 1, job.start, job.stop == len(self.ids), self._blinder.hashed(texts))

    def raise_points(self, job: Points) -> Points | Invalid:
        """Another member's points, raised to this member's exponent as well; `Invalid` if one is not a point."""
        assert self._blinder is not None
        try:
            points = self._blinder.raised(job.points)
        except ValueError:
            return Invalid(job.owner, job.hops)
        return Points(job.owner, job.hops + 1, job.start, job.last, points)

    def are_raised(self, result: Points) -> list[Effect]:
        """Pass the points on, and start the next job."""
        self.queue.pop(0)
        self.raised += len(result.points)
        return [*self._pass_on(result), *self._next()]

    def are_none(self, result: Invalid) -> None:
        """Raise RemoteProtocolError against the member that sent invalid points."""
        assert self.ring is not None
        self.queue.pop(0)
        culprit = self.ring.path(result.owner)[result.hops - 1]
        raise RemoteProtocolError(culprit, "sends ids that are not points of the curve")

    def _pass_on(self, result: Points) -> list[Effect]:
        assert self.ring is not None
        path = self.ring.path(result.owner)
        if result.owner != SERVER or self.name == SERVER:
            return [Send(path[result.hops], result)]
        self.mixing.append(result.points)
        if not result.last:
            return []
        points, self.mixing = np.concatenate(self.mixing)[self._mixing_order()], []
        return [
            Send(path[result.hops], Points(SERVER, result.hops, start, last, points[start:stop]))
            for start, stop, last in pieces(len(points), BULK * self.chunk)
        ]

    def _mixing_order(self) -> Array:
        assert self.ring is not None
        return permutation(self._key.seed("mixing"), self.ring.count(SERVER))

    # Places

    def _take_places(self, sender: str, message: Places) -> list[Effect]:
        assert self.ring is not None
        found = self.found.get(message.owner, [])
        wrong = self.ring.wrong_places(sender, self.name, message, sum(map(len, found)))
        _refuse(sender, wrong or ("changes the number of common rows" if self.size not in (0, message.size) else ""))
        self.size = message.size
        self.found[message.owner] = [*found, message.places]
        if not message.last:
            return []
        return self._finish() if message.owner == self.name else self._give_back()

    def _give_back(self) -> list[Effect]:
        """Undo this member's mixing of the server's places, and send them to the member that its points came from."""
        assert self.ring is not None
        mixed = np.concatenate(self.found.pop(SERVER))
        places = np.empty_like(mixed)
        places[self._mixing_order()] = mixed
        path = self.ring.path(SERVER)
        before = path[path.index(self.name, 1) - 1]
        return [
            Send(before, Places(SERVER, self.size, start, last, places[start:stop]))
            for start, stop, last in pieces(len(places), BULK * self.chunk)
        ]

    def _finish(self) -> list[Effect]:
        """Derive the order, once the places of all own points and the secret are here."""
        assert self.ring is not None
        found = self.found.get(self.name, [])
        if not self.seed or self.aligned is not None or sum(map(len, found)) < len(self.ids):
            return []
        places = np.concatenate(found)
        common = places >= 0
        rows = np.full(self.size, -1, np.int64)
        rows[self.final(places[common])] = self.rows[self._own_order()[common]]
        if np.count_nonzero(rows >= 0) != np.count_nonzero(common):
            raise RemoteProtocolError(SERVER, "gives one place to several ids")
        self.aligned = Aligned(rows, self.sha256())
        return [Emit(self.aligned)]

    def final(self, places: Array) -> Array:
        """The server's numbers of common rows as places in the common, secret order."""
        order: Array = permutation(hashlib.sha256(DOMAIN + b"order" + self.seed).digest(), self.size)[places]
        return order

    def sha256(self) -> str:
        """A digest that identifies this alignment and reveals nothing about the ids."""
        assert self.ring is not None
        content = msgspec.msgpack.encode([self.seed, self.size, self.ring.members, self.ring.counts])
        return hashlib.sha256(DOMAIN + content).hexdigest()


def pieces(count: int, chunk: int) -> list[tuple[int, int, bool]]:
    """For each piece: start, stop, and whether it is the last."""
    return [(start, min(start + chunk, count), start + chunk >= count) for start in range(0, count, chunk)]


def _refuse(sender: str, cause: str) -> None:
    if cause:
        raise RemoteProtocolError(sender, cause)
