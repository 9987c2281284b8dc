"""One party's part in every aggregation, its own and others': AsySQN Alg. 2.

A party adds its children's sums to its own contribution and sends the result to its parent: on T1 the masked margins,
on T2 the masks. The initiator is the root of both trees, and its difference of the two sums is θ. Sums may arrive
before the question they belong to, so they wait under the name of their aggregation. An incomplete sum is dropped,
never used.

With `masking = "off"` there is only T1, and the values on it are the margins themselves.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from colonnade.algorithms.asysqn.messages import Ask, MarginsMade, Masked, Masks, digest_of
from colonnade.algorithms.asysqn.trees import aggregation_trees
from colonnade.algorithms.sane import STEPS, is_step
from colonnade.privacy import masking
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.events import Send
from colonnade.protocol.messages import Array
from colonnade.protocol.saved import form_of

__all__ = ["WAITING", "Aggregations", "Key", "Place", "Sum", "Total", "place_of"]

WAITING = 16  # aggregations to keep of another initiator, in addition to those that it may have under way
Key = tuple[int, int]  # initiator, nonce


class Place(NamedTuple):
    """A party's neighbours on one tree."""

    parent: int | None
    children: tuple[int, ...]


class Total(NamedTuple):
    """The result of an aggregation, for its initiator."""

    nonce: int
    theta: Array
    clock: int  # Σ of the others' steps when they contributed
    members: tuple[int, ...]
    steps: int = 0  # the initiator's own steps when it contributed


@lru_cache(maxsize=4096)
def place_of(party: int, initiator: int, members: tuple[int, ...], masked: bool, fan_out: int) -> tuple[Place, Place]:
    """A party's place on T1 and T2 of an aggregation; without masking no party is on T2."""
    own, root, q = members.index(party), members.index(initiator), len(members)
    if not masked:
        at = (own - root) % q
        parent = None if at == 0 else members[(root + (at - 1) // fan_out) % q]
        below = range(at * fan_out + 1, min(at * fan_out + fan_out, q - 1) + 1)
        return Place(parent, tuple(members[(root + child) % q] for child in below)), Place(None, ())
    places = []
    for tree in aggregation_trees(q, root, fan_out):
        above = tree.parents[own]
        children = tuple(members[child] for child in tree.children(own))
        places.append(Place(None if above is None else members[above], children))
    return places[0], places[1]


@dataclass(slots=True)
class Sum:
    """The parts of one aggregation that this party has."""

    members: tuple[int, ...] = ()  # empty: no question yet
    asked: bytes = b""  # digest of the question
    said: dict[int, bytes] = field(default_factory=dict)  # digests by sender, of sums that arrived before the question
    rows: int = 0
    tests: bool = False
    own: bool = False  # whether the party's own contribution is among the parts
    clock: int = 0
    steps: int = 0  # this party's own steps when it contributed
    masked: dict[int, Array] = field(default_factory=dict)  # parts by sender
    masks: dict[int, Array] = field(default_factory=dict)
    left: tuple[bool, bool] = (False, False)  # whether this party has sent its sum on T1, on T2
    late: bool = False  # whether the sum, an own one, has taken too long
    missing: tuple[int, ...] = ()  # the children that it has named to the coordinator, because the sum was late


_FORM = form_of(dict[Key, Sum])


class Aggregations:
    """All aggregations in which one party takes part."""

    def __init__(
        self, index: int, names: tuple[str, ...], masked: bool, fan_out: int, bits: int, waiting: int, most: int
    ) -> None:
        self._index, self._names, self._masked, self._fan_out, self._bits = index, names, masked, fan_out, bits
        self.waiting, self._most = waiting, most  # aggregations to keep of another initiator; rows of a sum
        self.sums: dict[Key, Sum] = {}

    def open(self, initiator: int, ask: Ask, rows: int, asked: bytes = b"") -> None:
        """Note the question of an aggregation. Sums that came earlier stay if they fit it, and are dropped if not."""
        entry = self.sums.get((initiator, ask.nonce)) or self._new(initiator, ask.nonce)
        entry.members, entry.rows, entry.tests = tuple(ask.members), rows, ask.tests
        entry.asked = asked or digest_of(ask)
        if entry.masked or entry.masks:
            fits = [c for c, said in entry.said.items() if said == entry.asked]
            first, second = (set(fits) & set(place.children) for place in self._places(initiator, entry))
            entry.masked = {c: part for c, part in entry.masked.items() if c in first and len(part) == rows}
            entry.masks = {c: part for c, part in entry.masks.items() if c in second and len(part) == rows}

    def contribute(self, initiator: int, nonce: int, made: MarginsMade) -> list[Send]:
        """Alg. 2 l. 2: add this party's own term."""
        entry = self.sums.get((initiator, nonce))
        if entry is None or not entry.members:
            return []  # abandoned meanwhile; a child's sum may have come after that
        entry.own, entry.steps = True, made.steps
        entry.masked[self._index], entry.masks[self._index] = made.masked, made.masks
        entry.clock += made.steps if initiator != self._index else 0
        return self._pass_on(initiator, nonce, entry)

    def receive(self, sender: int, message: Masked | Masks) -> list[Send]:
        """Alg. 2 l. 4, 5: add a child's sum.

        Drop a second sum, and a sum over other rows or parties than this party was asked for: either the child lies, or
        the initiator asked it twice, or asked the two of them different questions.
        """
        key = message.initiator, message.nonce
        self._check(sender, message, self.sums.get(key))
        entry = self.sums.get(key) or self._new(*key, sender)
        known = entry.masked if isinstance(message, Masked) else entry.masks
        expected = entry.asked if entry.members else entry.said.get(sender, message.asked)
        if sender in known or message.asked != expected:
            return []
        if not entry.members:
            entry.said[sender] = message.asked
        if isinstance(message, Masked):
            entry.masked[sender] = message.values
            entry.clock += message.clock
        else:
            entry.masks[sender] = message.values
        return self._pass_on(message.initiator, message.nonce, entry)

    def _check(self, sender: int, message: Masked | Masks, entry: Sum | None) -> None:
        """Raise RemoteProtocolError for an impossible sum, before any state changes."""
        name, values, on_first = self._names[sender], message.values, isinstance(message, Masked)
        if not 0 <= message.initiator < len(self._names) or values.ndim != 1 or values.dtype != np.uint64:
            raise RemoteProtocolError(name, f"sends an impossible sum: {message!r:.120}")
        if len(values) > self._most or (isinstance(message, Masked) and not is_step(message.clock)):
            raise RemoteProtocolError(name, f"sends an impossible sum: {message!r:.120}")
        if not on_first and not self._masked:
            raise RemoteProtocolError(name, "sends masks, although protocol.masking = 'off'")
        if entry is None:
            return
        if not entry.members or message.asked != entry.asked:
            return
        if len(values) != entry.rows:
            raise RemoteProtocolError(name, f"sends a sum of {len(values)} rows, expected {entry.rows}")
        if sender not in self._places(message.initiator, entry)[0 if on_first else 1].children:
            raise RemoteProtocolError(name, "sends a sum, although it is not a child in this tree")

    def _new(self, initiator: int, nonce: int, sender: int | None = None) -> Sum:
        """A new entry, for a question or for a sum that came before it.

        Too many entries of one other initiator are leftovers, and so are too many early sums of one sender: a sender
        does not displace the sums of others.
        """
        theirs = [(key, entry) for key, entry in self.sums.items() if key[0] == initiator != self._index]
        if sender is None:
            old = [key for key, entry in theirs if entry.members]
        else:
            old = [key for key, entry in theirs if not entry.members and sender in entry.said]
        if len(old) >= self.waiting:
            self._forget(old[0], sender)
        entry = self.sums[initiator, nonce] = Sum()
        return entry

    def _forget(self, key: Key, sender: int | None) -> None:
        """Drop an entry, or one sender's early sums in it."""
        entry = self.sums[key]
        if sender is not None:
            del entry.said[sender]
            entry.masked.pop(sender, None)
            entry.masks.pop(sender, None)
        if not entry.said or sender is None:
            del self.sums[key]

    def late(self, initiator: int, nonce: int, again: bool = False) -> list[int]:
        """The children whose parts of a sum are missing. `again`: also if this party has named the same ones before."""
        entry = self.sums.get((initiator, nonce))
        if entry is None or not entry.members:
            return []
        first, second = self._places(initiator, entry)
        found = {child for child in first.children if child not in entry.masked}
        found |= {child for child in second.children if child not in entry.masks}
        before, entry.missing = entry.missing, tuple(sorted(found))
        return list(entry.missing) if again or entry.missing != before else []

    def _places(self, initiator: int, entry: Sum) -> tuple[Place, Place]:
        return place_of(self._index, initiator, entry.members, self._masked, self._fan_out)

    def _pass_on(self, initiator: int, nonce: int, entry: Sum) -> list[Send]:
        """Send this party's sum once all of its parts are here; the root keeps its sum."""
        if not entry.own or initiator == self._index:
            return []
        first, second = self._places(initiator, entry)
        sends: list[Send] = []
        on_first, on_second = entry.left
        if not on_first and len(entry.masked) == len(first.children) + 1:
            # At most what a receiver takes: this party is not to blame for the absurd number of a child.
            clock = min(entry.clock, STEPS - 1)
            masked = Masked(initiator, nonce, entry.asked, clock, masking.total(entry.masked.values()))
            sends.append(Send(self._to(first), masked, entry.tests))
            on_first = True
        if self._masked and not on_second and len(entry.masks) == len(second.children) + 1:
            masks = Masks(initiator, nonce, entry.asked, masking.total(entry.masks.values()))
            sends.append(Send(self._to(second), masks, entry.tests))
            on_second = True
        entry.left = on_first, on_second
        if on_first and (on_second or not self._masked):
            del self.sums[initiator, nonce]
        return sends

    def _to(self, place: Place) -> str:
        assert place.parent is not None
        return self._names[place.parent]

    def take_total(self, nonce: int) -> Total | None:
        """θ = ϕ1 − ϕ2 of an own aggregation, once all parts are here; this ends the aggregation."""
        entry = self.sums.get((self._index, nonce))
        if entry is None or not entry.own:
            return None
        first, second = self._places(self._index, entry)
        if len(entry.masked) <= len(first.children):
            return None
        value = masking.total(entry.masked.values())
        if self._masked:
            if len(entry.masks) <= len(second.children):
                return None
            value = masking.subtract(value, masking.total(entry.masks.values()))
        del self.sums[self._index, nonce]
        return Total(nonce, masking.decode(value, self._bits), entry.clock, entry.members, entry.steps)

    def drop(self, initiator: int, nonce: int) -> None:
        self.sums.pop((initiator, nonce), None)

    def drop_of(self, initiators: set[int]) -> None:
        """Drop what these parties asked for, except over test rows: the coordinator decides on those."""
        gone = [key for key, entry in self.sums.items() if key[0] in initiators and entry.members and not entry.tests]
        for key in gone:
            del self.sums[key]

    def save(self) -> Any:
        return _FORM.plain(self.sums)

    def load(self, saved: Any) -> None:
        self.sums = _FORM.typed(saved)
