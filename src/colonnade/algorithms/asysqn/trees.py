"""Two trees for one aggregation, and what each party learns from it: AsySQN Alg. 2, threat models 1 and 2.

Every party ℓ draws a mask δ_ℓ. Σ(θ+δ) goes up T1, and Σδ goes up T2: a party sends its parent the sum over its own
subtree. Both trees are rooted at the initiator, whose difference of the two sums is θ. A party sees:

- its own θ_ℓ and δ_ℓ;
- from each child c on T1: Σ(θ+δ) over c's subtree in T1; from each child on T2: Σδ over its subtree in T2;
- as the initiator: also Σ(θ+δ) and Σδ over all parties, if a tree were rooted elsewhere and its root sent them on;
- with `broadcast`: every party also sees Σθ over all parties.

It sees no message between two others (channels are sealed), and no mask twice (every aggregation draws new masks).

**The rank condition.** A view is a matrix over the unknowns (θ_1..θ_q, δ_1..δ_q). Strike the columns that the party
knows itself. Masks are uniform, so a combination that keeps a mask reveals nothing. A party learns of the others' θ
exactly the part of the row space without masks. The view is safe if that part has only multiples of the sum over ALL
others. Subtrees of two trees make a totally unimodular matrix: every pivot is ±1. The answer over the reals is
therefore also the answer modulo 2⁶⁴, and sums over disjoint sets of parties span the part without masks. Several
aggregations of the same θ add nothing: masks differ, so the spaces just add up. (Masks do not help against what sums
reveal by themselves: if one party moved between two sums over the same rows, the difference is that party's own.)

**The trees.** The trees are two heaps over the others. Every inner node except the initiator is inner in one tree only,
so such a party sees only masked values, or only masks. On T2 the initiator has a single child, so its view ties all
others together. With fan-out 2 every other party is inner in one of the trees. So there is no party whose two parents
could collude and subtract its mask from its masked value. Then no TWO parties learn more than the initiator is meant to
learn (found by `leaks` for every q from 3 to 64). Three can: all neighbours of a party on both trees together always
learn its θ.

# DEVIATION: the paper wants T2 "totally different" from T1; the rank condition makes that precise.
"""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from colonnade.protocol.errors import ConfigError, LocalProtocolError
from colonnade.protocol.messages import Array

__all__ = ["Parties", "Tree", "aggregation_trees", "colluding_view", "leaks", "reveals", "views"]

Parties = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tree:
    """The parent of every party: each sends its sum to its parent."""

    parents: tuple[int | None, ...]  # None for the root

    def children(self, party: int) -> list[int]:
        """The parties whose sums `party` waits for."""
        return [child for child, parent in enumerate(self.parents) if parent == party]

    def ancestors(self, party: int) -> list[int]:
        """The ancestors from the parent up to the root."""
        found: list[int] = []
        above = self.parents[party]
        while above is not None:
            if len(found) == len(self.parents):
                raise LocalProtocolError(f"not a tree: party {party} is its own ancestor, or below a party that is")
            found.append(above)
            above = self.parents[above]
        return found

    @property
    def depth(self) -> int:
        """The number of messages on the longest way to the root."""
        return max(len(self.ancestors(party)) for party in range(len(self.parents)))

    def subtrees(self) -> Array:
        """Row p has a 1 for every party whose value is in the sum that p sends: (parties, parties)."""
        member = np.eye(len(self.parents), dtype=np.int64)
        for party in range(len(self.parents)):
            member[self.ancestors(party), party] = 1
        return member


def aggregation_trees(parties: int, initiator: int, fan_out: int = 2) -> tuple[Tree, Tree]:
    """T1 and T2 for this initiator; more than two children make them shallower, and pairs of colluders stronger."""
    if parties < 3:
        advice = (
            "masked sums need at least 3 parties: with two, each party finds the other's value by subtracting its own"
        )
        raise ConfigError("parties", parties, advice)
    if fan_out < 2:
        raise ConfigError("fan_out", fan_out, "must be at least 2")
    others = [(initiator + i) % parties for i in range(1, parties)]
    half = len(others) // 2
    relays, leaves = others[:half], others[half:]  # their places on T1; on T2 they change places
    if parties == 4:
        leaves.reverse()  # if not, a pair would have all neighbours of a third party
    shift = (half + 1) // 2  # for the same reason, with more parties
    turned = leaves + relays[shift:] + relays[:shift]
    first = _heap([initiator, *others], fan_out)
    second = _heap(turned, fan_out) | {turned[0]: initiator}
    return _tree(first, parties), _tree(second, parties)


def views(first: Tree, second: Tree, initiator: int, broadcast: bool = False) -> list[Array]:
    """What each party sees besides its own values: a matrix (values, 2·parties) over (θ_1..θ_q, δ_1..δ_q)."""
    parties = len(first.parents)
    one, none = np.ones((1, parties), np.int64), np.zeros((1, parties), np.int64)
    totals = np.block([[one, one], [none, one]])
    masked, masks = first.subtrees(), second.subtrees()
    masked, masks = np.hstack([masked, masked]), np.hstack([np.zeros_like(masks), masks])
    seen = []
    for party in range(parties):
        rows = [masked[first.children(party)], masks[second.children(party)]]
        rows += [totals] if party == initiator else []
        rows += [np.hstack([one, none])] if broadcast else []
        seen.append(np.vstack(rows))
    return seen


def colluding_view(seen: Sequence[Array], coalition: Collection[int]) -> Array:
    """What these parties see together (threat model 2)."""
    return np.vstack([seen[party] for party in coalition])


def reveals(view: Array, own: Collection[int]) -> tuple[Parties, ...]:
    """The disjoint sets of other parties whose Σθ a view determines; it determines only sums of these.

    `own` are the parties whose view it is; they know their own θ and δ.
    """
    parties = view.shape[1] // 2
    known = list(own)
    theta, masks = view[:, :parties].copy(), view[:, parties:].copy()
    theta[:, known] = masks[:, known] = 0
    both = np.hstack([masks, theta])
    without_masks = _eliminate(both, parties)[1][:, parties:]
    basis = _eliminate(without_masks, parties)[0]
    if not np.isin(basis, (0, 1)).all():
        raise LocalProtocolError("not the view of two trees: it determines more than sums over disjoint sets")
    return tuple(sorted(tuple(np.flatnonzero(row).tolist()) for row in basis))


def leaks(
    first: Tree, second: Tree, initiator: int, colluders: int = 1, broadcast: bool = False
) -> dict[Parties, tuple[Parties, ...]]:
    """Every coalition of `colluders` parties that learns a sum over some, but not all, of the parties outside it.

    Empty: safe. The sum over all parties outside does not count, because a coalition with the initiator is meant to
    learn it. (If all parties but one collude, it is that party's θ: no trees can help.)
    """
    seen = views(first, second, initiator, broadcast)
    everyone = range(len(seen))
    found = {}
    for coalition in itertools.combinations(everyone, colluders):
        outside = tuple(party for party in everyone if party not in coalition)
        sums = reveals(colluding_view(seen, coalition), coalition)
        if partial := tuple(group for group in sums if group != outside):
            found[coalition] = partial
    return found


def _heap(nodes: list[int], fan_out: int) -> dict[int, int]:
    """The parent of every node but the first, level by level."""
    parents = {node: nodes[(place - 1) // fan_out] for place, node in enumerate(nodes) if place}
    if fan_out == 2 and len(nodes) % 2:  # gives every inner node two children: the first leaf gets one, too
        parents[nodes[-1]] = nodes[len(nodes) // 2]
    return parents


def _tree(parents: dict[int, int], parties: int) -> Tree:
    return Tree(tuple(parents.get(party) for party in range(parties)))


def _eliminate(rows: Array, columns: int) -> tuple[Array, Array]:
    """Gauss and Jordan on the first columns: the rows with a pivot there, and those that became zero there."""
    rows = rows.copy()
    pivoted = np.zeros(len(rows), bool)
    for i in range(len(rows)):
        places = np.flatnonzero(rows[i, :columns])
        if not len(places):
            continue
        pivot = rows[i, places[0]]
        if abs(pivot) != 1:
            raise LocalProtocolError(f"not the view of two trees: a pivot is {pivot}, not ±1")
        rows[i] *= pivot
        factors = rows[:, places[0]].copy()
        factors[i] = 0
        rows -= np.outer(factors, rows[i])
        pivoted[i] = True
    return rows[pivoted], rows[~pivoted]
