"""Parties that may hold up a sum, as far as the coordinator can know.

If a sum is late, its initiator tells all members. Each of them tells the coordinator which of its children on the trees
still owe it their part. The coordinator sees none of these parts, so it cannot check what a party says: the child may
hold its part back, the parent may lie, or the initiator asked the two of them different questions. All three are
suspects. A child that waits for a child of its own in the same sum is excused: that complaint takes its place.

Honest parties answer in time, or complain of a party that did not. If one party lies, it is therefore among the three
suspects of every complaint, whatever it says itself. `suspects` returns the parties whose fault alone explains all
complaints. If there is none, several parties are at fault or slow, and all of them are suspects.

Two parties that lie together can direct the suspicion to a third one.
"""

from dataclasses import dataclass
from typing import Any

from colonnade.protocol.saved import form_of

__all__ = ["Disputes"]


@dataclass(frozen=True, slots=True)
class Complaint:
    """The children that owe a party their part of a sum."""

    nonce: int  # names the initiator's sum
    children: tuple[int, ...]


_FORM = form_of(dict[tuple[int, int], Complaint])


class Disputes:
    """The newest complaint of every party about every initiator's sums."""

    def __init__(self) -> None:
        self._told: dict[tuple[int, int], Complaint] = {}  # by initiator and parent

    def note(self, initiator: int, parent: int, nonce: int, children: tuple[int, ...]) -> None:
        self._told[initiator, parent] = Complaint(nonce, children)

    def settle(self, initiator: int | None = None) -> None:
        """Forget the complaints about this initiator's sums, because one was completed; without a name, all."""
        kept = {} if initiator is None else {key: one for key, one in self._told.items() if key[0] != initiator}
        self._told = kept

    def suspects(self, late: set[int]) -> list[int]:
        """The parties whose fault alone explains all complaints; if there is none, all that may be at fault.

        `late`: if not empty, the coordinator itself knows that one of these parties holds up the others. Without
        complaints no party is a suspect.
        """
        found = [
            {initiator, parent, child}
            for (initiator, parent), told in self._told.items()
            for child in told.children
            if not self._is_excused(initiator, child, told.nonce)
        ]
        if not found:
            return []
        found += [late] if late else []
        return sorted(set.intersection(*found) or set.union(*found))

    def _is_excused(self, initiator: int, child: int, nonce: int) -> bool:
        own = self._told.get((initiator, child))
        return own is not None and own.nonce == nonce

    def save(self) -> Any:
        return _FORM.plain(self._told)

    def load(self, saved: Any) -> None:
        self._told = _FORM.typed(saved)
