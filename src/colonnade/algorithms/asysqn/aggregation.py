"""One party's part in every aggregation, its own and others': AsySQN Alg. 2.

A party adds its children's sums to its own contribution and sends the result to its parent, on T1 the masked margins,
on T2 the masks. The initiator is the root of both; its difference of the two is θ. Sums may come before the question
they belong to, so they wait under the name of their aggregation. Whatever is incomplete is dropped, never used.

With `masking = "off"` there is T1 alone, and the values on it are the margins themselves.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from colonnade.algorithms.asysqn.messages import Ask, MarginsMade, Masked, Masks, digest_of
from colonnade.algorithms.asysqn.trees import aggregation_trees
from colonnade.privacy import masking
from colonnade.protocol.errors import RemoteProtocolError
from colonnade.protocol.events import Send
from colonnade.protocol.messages import Array
from colonnade.protocol.saved import form_of

__all__ = ["WAITING", "Aggregations", "Key", "Place", "Sum", "Total", "place_of"]

WAITING = 16  # aggregations of another initiator that are kept, beside those that it may have under way
Key = tuple[int, int]  # initiator, nonce


class Place(NamedTuple):
    """A party's neighbours on one tree."""

    parent: int | None
    children: tuple[int, ...]


class Total(NamedTuple):
    """What an initiator has learnt."""

    nonce: int
    theta: Array
    clock: int  # Σ of the others' steps when they contributed
    members: tuple[int, ...]


@lru_cache(maxsize=4096)
def place_of(party: int, initiator: int, members: tuple[int, ...], masked: bool, fan_out: int) -> tuple[Place, Place]:
    """Where a party is on T1 and T2 of an aggregation; without masking nobody is on T2."""
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
    """What is here of one aggregation."""

    members: tuple[int, ...] = ()  # none: not yet asked
    asked: bytes = b""  # digest of the question
    said: dict[int, bytes] = field(default_factory=dict)  # the same, by senders whose sums came before it
    rows: int = 0
    tests: bool = False
    own: bool = False  # the own contribution is among the parts
    clock: int = 0
    masked: dict[int, Array] = field(default_factory=dict)  # parts by sender
    masks: dict[int, Array] = field(default_factory=dict)
    left: tuple[bool, bool] = (False, False)  # sent on T1, on T2


_FORM = form_of(dict[Key, Sum])


class Aggregations:
    """All that one party takes part in."""

    def __init__(
        self, index: int, names: tuple[str, ...], masked: bool, fan_out: int, bits: int, waiting: int = WAITING
    ) -> None:
        self._index, self._names, self._masked, self._fan_out, self._bits = index, names, masked, fan_out, bits
        self.waiting = waiting  # aggregations of another initiator that are kept
        self.sums: dict[Key, Sum] = {}

    def open(self, initiator: int, ask: Ask, rows: int, asked: bytes = b"") -> None:
        """An aggregation is asked for; what came of it before fits, or is dropped."""
        entry = self.sums.get((initiator, ask.nonce)) or self._new(initiator, ask.nonce)
        entry.members, entry.rows, entry.tests = tuple(ask.members), rows, ask.tests
        entry.asked = asked or digest_of(ask)
        if entry.masked or entry.masks:
            fits = [c for c, said in entry.said.items() if said == entry.asked]
            first, second = (set(fits) & set(place.children) for place in self._places(initiator, entry))
            entry.masked = {c: part for c, part in entry.masked.items() if c in first and len(part) == rows}
            entry.masks = {c: part for c, part in entry.masks.items() if c in second and len(part) == rows}

    def contribute(self, initiator: int, nonce: int, made: MarginsMade) -> list[Send]:
        """Alg. 2 l. 2: the own term."""
        entry = self.sums.get((initiator, nonce))
        if entry is None or not entry.members:
            return []  # abandoned meanwhile; a child's sum may have come after that
        entry.own = True
        entry.masked[self._index], entry.masks[self._index] = made.masked, made.masks
        entry.clock += made.steps if initiator != self._index else 0
        return self._pass_on(initiator, nonce, entry)

    def receive(self, sender: int, message: Masked | Masks) -> list[Send]:
        """Alg. 2 l. 4, 5: a child's sum."""
        key = message.initiator, message.nonce
        self._check(sender, message, self.sums.get(key))
        entry = self.sums.get(key) or self._new(*key)
        if not entry.members:
            entry.said[sender] = message.asked
        if isinstance(message, Masked):
            entry.masked[sender] = message.values
            entry.clock += message.clock
        else:
            entry.masks[sender] = message.values
        return self._pass_on(message.initiator, message.nonce, entry)

    def _check(self, sender: int, message: Masked | Masks, entry: Sum | None) -> None:
        """Refuse what cannot be, before anything is changed."""
        name, values, on_first = self._names[sender], message.values, isinstance(message, Masked)
        if not 0 <= message.initiator < len(self._names) or values.ndim != 1 or values.dtype != np.uint64:
            raise RemoteProtocolError(name, f"a sum that cannot be: {message!r:.120}")
        if not on_first and not self._masked:
            raise RemoteProtocolError(name, "masks, though protocol.masking = 'off'")
        if entry is None:
            return
        if sender in (entry.masked if on_first else entry.masks):
            raise RemoteProtocolError(name, f"a {type(message).__name__} sum twice")
        if entry.said.get(sender, message.asked) != message.asked:
            raise RemoteProtocolError(name, "two answers to different questions under one name")
        if not entry.members:
            return
        if message.asked != entry.asked:
            raise RemoteProtocolError(name, "a sum over other rows or parties than this party was asked for")
        if len(values) != entry.rows:
            raise RemoteProtocolError(name, f"a sum of {len(values)} rows, {entry.rows} were asked for")
        if sender not in self._places(message.initiator, entry)[0 if on_first else 1].children:
            raise RemoteProtocolError(name, "a sum, though it is no child in this tree")

    def _new(self, initiator: int, nonce: int) -> Sum:
        """A new entry; too many of another initiator are leftovers: first go those that nobody has asked for."""
        theirs = [key for key in self.sums if key[0] == initiator != self._index]
        if len(theirs) >= self.waiting:
            unasked = [key for key in theirs if not self.sums[key].members]
            del self.sums[(unasked or theirs)[0]]
        entry = self.sums[initiator, nonce] = Sum()
        return entry

    def _places(self, initiator: int, entry: Sum) -> tuple[Place, Place]:
        return place_of(self._index, initiator, entry.members, self._masked, self._fan_out)

    def _pass_on(self, initiator: int, nonce: int, entry: Sum) -> list[Send]:
        """A party sends its sum when all of it is there; the root keeps it."""
        if not entry.own or initiator == self._index:
            return []
        first, second = self._places(initiator, entry)
        sends: list[Send] = []
        on_first, on_second = entry.left
        if not on_first and len(entry.masked) == len(first.children) + 1:
            masked = Masked(initiator, nonce, entry.asked, entry.clock, masking.total(entry.masked.values()))
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
        """θ = ϕ1 − ϕ2 of an own aggregation, once everything is there; it is over then."""
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
        return Total(nonce, masking.decode(value, self._bits), entry.clock, entry.members)

    def drop(self, initiator: int, nonce: int) -> None:
        """Forget an aggregation."""
        self.sums.pop((initiator, nonce), None)

    def drop_of(self, initiators: set[int]) -> None:
        """Forget what these asked for; of tests the coordinator decides, and it may know better already."""
        gone = [key for key, entry in self.sums.items() if key[0] in initiators and entry.members and not entry.tests]
        for key in gone:
            del self.sums[key]

    def save(self) -> Any:
        """All of them."""
        return _FORM.plain(self.sums)

    def load(self, saved: Any) -> None:
        """The reverse of `save`."""
        self.sums = _FORM.typed(saved)
