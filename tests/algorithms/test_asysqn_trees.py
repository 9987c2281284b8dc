"""AsySQN Alg. 2: what each party and each coalition learns from the two trees, checked by brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.algorithms.asysqn.trees import Tree, aggregation_trees, colluding_view, leaks, reveals, views
from colonnade.protocol.errors import ConfigError, LocalProtocolError


def star(parties, root):
    return Tree(tuple(None if party == root else root for party in range(parties)))


def chain(*order):
    """The first is the root."""
    parents = dict(itertools.pairwise(order))
    below = {child: parent for parent, child in parents.items()}
    return Tree(tuple(below.get(party) for party in range(len(order))))


def determined(view, own, group):
    """Whether Σθ over the group is in the row space, by ranks over the reals (the oracle)."""
    parties = view.shape[1] // 2
    known = [row for p in own for row in (np.eye(2 * parties)[p], np.eye(2 * parties)[parties + p])]
    rows = np.vstack([view, *known])
    wanted = np.zeros(2 * parties)
    wanted[list(group)] = 1
    return np.linalg.matrix_rank(np.vstack([rows, wanted])) == np.linalg.matrix_rank(rows)


def unions(sets):
    """All sums of disjoint sets, without the empty one."""
    chosen = (c for size in range(1, len(sets) + 1) for c in itertools.combinations(sets, size))
    return {tuple(sorted(itertools.chain(*c))) for c in chosen}


@pytest.mark.parametrize("parties", range(3, 65))
def test_no_party_learns_a_part_of_the_sum_for_any_initiator(parties):
    for initiator in range(parties):
        assert leaks(*aggregation_trees(parties, initiator), initiator) == {}


@pytest.mark.parametrize("fan_out", [3, 4, 8, 100])
@pytest.mark.parametrize("parties", [3, 4, 5, 8, 13, 32, 64])
def test_the_same_with_more_children(parties, fan_out):
    for initiator in (0, 1, parties - 1):
        for broadcast in (False, True):
            assert leaks(*aggregation_trees(parties, initiator, fan_out), initiator, broadcast=broadcast) == {}


@pytest.mark.parametrize("parties", range(3, 12))
@pytest.mark.parametrize("broadcast", [False, True])
def test_which_party_learns_what(parties, broadcast):
    """The initiator learns the sum over the others. The others learn nothing, or the same sum if it is sent to all."""
    initiator = parties // 2
    seen = views(*aggregation_trees(parties, initiator), initiator, broadcast)
    for party in range(parties):
        others = tuple(p for p in range(parties) if p != party)
        assert reveals(seen[party], (party,)) == ((others,) if broadcast or party == initiator else ())


@pytest.mark.parametrize("parties", range(3, 65))
@pytest.mark.parametrize("fan_out", [2, 3, 8])
def test_trees_are_trees_and_shallow(parties, fan_out):
    for initiator in {0, parties // 2, parties - 1}:
        for tree in aggregation_trees(parties, initiator, fan_out):
            assert tree.parents.count(None) == 1 and tree.parents[initiator] is None
            assert tree.subtrees()[initiator].all(), "every party's value arrives"
            assert tree.depth <= 2 + np.log(parties) / np.log(fan_out)
            assert max(len(tree.children(party)) for party in range(parties)) <= fan_out


def test_the_trees_of_eight():
    first, second = aggregation_trees(8, 0)
    assert first.parents == (None, 0, 0, 1, 1, 2, 2, 3)
    assert second.parents == (None, 6, 7, 5, 0, 4, 4, 5)
    inner = [{p for p in range(1, 8) if tree.children(p)} for tree in (first, second)]
    assert not inner[0] & inner[1] and inner[0] | inner[1] == set(range(1, 8))


def test_two_give_each_other_away():
    with pytest.raises(ConfigError, match="by subtracting its own"):
        aggregation_trees(2, 0)
    with pytest.raises(ConfigError, match="at least 2"):
        aggregation_trees(5, 0, fan_out=1)


@pytest.mark.parametrize("parties", [3, 5, 8])
def test_two_stars_with_one_root_leak_everything(parties):
    every = tuple((p,) for p in range(1, parties))
    assert leaks(star(parties, 0), star(parties, 0), 0) == {(0,): every}


@pytest.mark.parametrize("parties", [5, 8, 21])
def test_the_same_tree_twice_leaks_every_subtree(parties):
    first, second = aggregation_trees(parties, 0)
    found = leaks(first, first, 0)
    for (party,), sums in found.items():
        below = [tuple(np.flatnonzero(first.subtrees()[child]).tolist()) for child in first.children(party)]
        assert sums == tuple(sorted(below))
    assert set(found) == {(p,) for p in range(parties) if first.children(p)}
    assert leaks(second, second, 0)


def test_trees_that_merely_look_different_can_leak():
    """The last two of a chain change places: their grandparent still has both values and both masks."""
    assert leaks(chain(0, 1, 2, 3), chain(0, 1, 3, 2), 0) == {(1,): ((2, 3),)}
    assert leaks(chain(0, 1, 2, 3), chain(0, 3, 2, 1), 0) == {}


def test_a_star_and_a_chain_are_safe_alone_and_not_against_two():
    assert leaks(star(4, 0), chain(0, 1, 2, 3), 0) == {}
    assert leaks(star(4, 0), chain(0, 1, 2, 3), 0, colluders=2) == {(0, 2): ((1,), (3,))}


def test_a_root_that_is_not_the_initiator():
    """The initiator receives the totals and may be anywhere below the root."""
    first, second = chain(1, 2, 0), chain(2, 1, 0)
    seen = views(first, second, 0)
    assert reveals(seen[0], (0,)) == ((1, 2),)
    assert leaks(first, second, 0) == {}
    assert leaks(first, first, 0) == {(2,): ((0,),)}


# --- colluders


@pytest.mark.parametrize("parties", range(3, 65))
def test_no_two_learn_more_than_the_initiator_is_to_learn(parties):
    """Every initiator's trees are those of the first with the parties renumbered."""
    assert leaks(*aggregation_trees(parties, 0), 0, colluders=2) == {}


def test_the_trees_of_any_initiator_are_those_of_the_first_renumbered():
    for parties in (3, 4, 9, 16):
        for initiator in range(parties):
            for tree, of_first in zip(
                aggregation_trees(parties, initiator), aggregation_trees(parties, 0), strict=True
            ):
                shifted = {(p + initiator) % parties: parent for p, parent in enumerate(of_first.parents)}
                expected = tuple(None if shifted[p] is None else (shifted[p] + initiator) % parties for p in shifted)
                assert dict(zip(shifted, expected, strict=True)) == dict(enumerate(tree.parents))


@pytest.mark.parametrize("parties", [4, 8, 16])
def test_what_two_neighbours_see(parties):
    """Together with the initiator, any party learns the sum over the rest. Without it, two neighbours learn nothing."""
    first, second = aggregation_trees(parties, 0)
    seen = views(first, second, 0)
    for tree, child in itertools.product((first, second), range(1, parties)):
        pair = (child, tree.parents[child])
        rest = tuple(p for p in range(parties) if p not in pair)
        assert reveals(colluding_view(seen, pair), pair) == ((rest,) if 0 in pair else ())


def test_with_many_children_the_two_parents_of_a_leaf_learn_its_value():
    first, second = aggregation_trees(16, 0, fan_out=4)
    leaf = next(p for p in range(1, 16) if not first.children(p) and not second.children(p))
    parents = tuple(sorted({first.parents[leaf], second.parents[leaf]}))
    assert (leaf,) in leaks(first, second, 0, colluders=2)[parents]


@pytest.mark.parametrize("parties", [5, 8, 12])
def test_all_neighbours_of_a_party_always_learn_its_value(parties):
    first, second = aggregation_trees(parties, 0)
    seen = views(first, second, 0)
    for party in range(1, parties):
        near = {first.parents[party], second.parents[party], *first.children(party), *second.children(party)}
        sums = unions(reveals(colluding_view(seen, sorted(near)), sorted(near)))
        assert (party,) in sums


def test_which_three_may_learn_something():
    """A party with one child has three neighbours; the ranks agree on every sum."""
    first, second = aggregation_trees(8, 0)
    found = leaks(first, second, 0, colluders=3)
    assert 0 < len(found) <= 5, "of 56"
    for coalition, sums in found.items():
        view = colluding_view(views(first, second, 0), coalition)
        assert all(determined(view, coalition, group) for group in sums)


# --- the elimination against ranks


def random_trees(draw, parties):
    order = draw(st.permutations(range(1, parties)))
    parents = {0: None}
    for place, party in enumerate(order):
        parents[party] = draw(st.sampled_from([0, *order[:place]]))
    return Tree(tuple(parents[party] for party in range(parties)))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_sets_are_exactly_those_that_ranks_find(data):
    parties = data.draw(st.integers(3, 6))
    first, second = random_trees(data.draw, parties), random_trees(data.draw, parties)
    coalition = tuple(sorted(data.draw(st.sets(st.integers(0, parties - 1), min_size=1, max_size=parties - 1))))
    view = colluding_view(views(first, second, 0, data.draw(st.booleans())), coalition)
    outside = [p for p in range(parties) if p not in coalition]
    groups = (g for size in range(1, len(outside) + 1) for g in itertools.combinations(outside, size))
    assert unions(reveals(view, coalition)) == {g for g in groups if determined(view, coalition, g)}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_every_combination_that_is_learned_is_one_of_the_sets(data):
    """Not only sums: the dimension of all mask-free combinations is the number of sets."""
    parties = data.draw(st.integers(3, 12))
    first, second = random_trees(data.draw, parties), random_trees(data.draw, parties)
    coalition = tuple(sorted(data.draw(st.sets(st.integers(0, parties - 1), min_size=1, max_size=parties - 1))))
    view = colluding_view(views(first, second, 0), coalition)
    outside = [p for p in range(parties) if p not in coalition]
    both = view[:, outside + [parties + p for p in outside]]
    masks = view[:, [parties + p for p in outside]]
    rank = [int(np.linalg.matrix_rank(part)) if part.size else 0 for part in (both, masks)]
    assert len(reveals(view, coalition)) == rank[0] - rank[1]


def test_what_is_no_view_of_trees_is_not_judged():
    with pytest.raises(LocalProtocolError, match="a pivot is 2"):
        reveals(np.array([[0, 0, 0, 0, 2, 0]]), (0,))
    with pytest.raises(LocalProtocolError, match="disjoint sets"):
        reveals(np.array([[0, 1, 2, 0, 0, 0]]), (0,))
    with pytest.raises(LocalProtocolError, match="not a tree"):
        Tree((1, 0, None)).subtrees()
