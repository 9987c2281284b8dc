"""What every holder of ids does: raise one's own and everybody else's, and make an order of what comes back.

    k_m         this member's secret exponent; H(x) the point of an id (see `privacy.blinding`)
    own set     k_m·H(x) in a secret order of its own, to the next of the ring, which raises it in turn
    at the end  every set is raised by all exponents: equal ids are equal points, and nobody can undo it alone

The server compares. It can link nothing to ids, since the order of each set is its owner's secret. Of its own ids it
would know the order: its set alone is mixed anew by every party on the way, and what it finds about it goes back the
same way, each party undoing its mixing. So it learns about its own ids what everybody learns, and nothing more.
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

CHUNK = 4096  # points that are raised at a time, about 135 kB; half a second of work
BULK = 16  # times as many are sent at once where they are all ready: few messages wait for one peer
DOMAIN = b"colonnade alignment, version 1\n"


@dataclass(slots=True, eq=False)
class Member(Component):
    """One holder of ids. Neither the key nor what is made from it alone is saved."""

    name: str = field(metadata=UNSAVED)
    ids: Sequence[str] = field(metadata=UNSAVED)
    rows: Array = field(metadata=UNSAVED)  # of the ids, in the own table
    chunk: int = field(metadata=UNSAVED)
    ring: Ring | None = None
    taken: dict[str, int] = field(default_factory=dict)  # points of each owner that came
    queue: list[Own | Points] = field(default_factory=list)  # the first is with the driver
    token: int = 0
    raised: int = 0
    mixing: list[Array] = field(default_factory=list)  # the server's set, raised, until it is whole
    seed: bytes = b""  # of the common order
    size: int = 0
    found: dict[str, list[Array]] = field(default_factory=dict)  # places that came, by owner
    aligned: Aligned | None = None
    _key: SecretKey = field(default_factory=SecretKey, init=False, metadata=UNSAVED)
    _blinder: Blinder | None = field(default=None, init=False, metadata=UNSAVED)
    _order: Array | None = field(default=None, init=False, metadata=UNSAVED)  # of the own set, once it is made

    def renew(self, entropy: bytes) -> None:
        """The key, from which all other secrets are made."""
        self._key.renew(entropy)
        self._blinder, self._order = Blinder(self._key.seed("exponent")), None

    def _own_order(self) -> Array:
        if self._order is None:
            self._order = permutation(self._key.seed("own order"), len(self.ids))
        return self._order

    # Points

    def begin(self, ring: Ring) -> list[Effect]:
        """All are here: raise one's own ids first; the first member draws the secret."""
        self.ring = ring
        stops = range(0, len(self.ids), self.chunk)
        effects = self._add(*(Own(start, min(start + self.chunk, len(self.ids))) for start in stops))
        if ring.members[0] == self.name:
            self.seed = self._key.seed("common order")
            effects += [Send(other, Secret(self.seed)) for other in ring.members[1:]]
        return effects

    def take(self, sender: str, message: Mail) -> list[Effect]:
        """Something from another member; RemoteProtocolError if it is not what comes next."""
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
        """Points that are raised at a time."""
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
        """Points of some own ids, raised."""
        assert self._blinder is not None
        texts = [self.ids[place] for place in self._own_order()[job.start : job.stop]]
        return Points(self.name, 1, job.start, job.stop == len(self.ids), self._blinder.hashed(texts))

    def raise_points(self, job: Points) -> Points | Invalid:
        """Points of another member, raised."""
        assert self._blinder is not None
        try:
            points = self._blinder.raised(job.points)
        except ValueError:
            return Invalid(job.owner, job.hops)
        return Points(job.owner, job.hops + 1, job.start, job.last, points)

    def are_raised(self, result: Points) -> list[Effect]:
        """Pass the points on, and go on with the next."""
        self.queue.pop(0)
        self.raised += len(result.points)
        return [*self._pass_on(result), *self._next()]

    def are_none(self, result: Invalid) -> None:
        """Raises RemoteProtocolError against the member that sent them."""
        assert self.ring is not None
        self.queue.pop(0)
        culprit = self.ring.path(result.owner)[result.hops - 1]
        raise RemoteProtocolError(culprit, "sends ids that are no points of the curve")

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
        _refuse(sender, wrong or ("changes its mind" if self.size not in (0, message.size) else ""))
        self.size = message.size
        self.found[message.owner] = [*found, message.places]
        if not message.last:
            return []
        return self._finish() if message.owner == self.name else self._give_back()

    def _give_back(self) -> list[Effect]:
        """The server's places, unmixed, to whom its points came from."""
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
        """With the places of all own points and the secret there is an order."""
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
        """What tells this alignment from every other, and says nothing of the ids."""
        assert self.ring is not None
        content = msgspec.msgpack.encode([self.seed, self.size, self.ring.members, self.ring.counts])
        return hashlib.sha256(DOMAIN + content).hexdigest()


def pieces(count: int, chunk: int) -> list[tuple[int, int, bool]]:
    """start, stop and whether it is the last."""
    return [(start, min(start + chunk, count), start + chunk >= count) for start in range(0, count, chunk)]


def _refuse(sender: str, cause: str) -> None:
    if cause:
        raise RemoteProtocolError(sender, cause)
