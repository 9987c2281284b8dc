"""Walks that begin with a small working set, and the rows that are sent beside a batch."""

import numpy as np
import pytest

from colonnade.algorithms.batches import Walk


def passes(walk, sizes):
    """The rows of consecutive passes of so many batches."""
    position, found = 0, []
    for size in sizes:
        found.append([walk.batch(position + place) for place in range(size)])
        position += size
    return [np.concatenate(batches) for batches in found]


def test_passes_double_until_all_rows_take_part():
    one, other = (Walk(100, 7, 3, "batches", party, first_pass=3) for party in (0, 1))
    assert one.per_epoch == 15
    first, second, third, whole, again = passes(one, [3, 6, 12, 15, 15])
    assert [len(set(rows.tolist())) for rows in (first, second, third, whole, again)] == [21, 42, 84, 100, 100]
    assert set(first) < set(second) < set(third), "the working set grows"
    assert not np.array_equal(whole, again)
    theirs = passes(other, [3, 6])
    assert set(theirs[0]) == set(first) and set(theirs[1]) == set(second), "everybody works on the same rows"
    assert not np.array_equal(theirs[0], first), "each in its own order"


@pytest.mark.parametrize("first_pass", [1, 4, 15, 400])
def test_position_alone_determines_a_batch_in_growing_passes_too(first_pass):
    forward, jumping = (Walk(100, 7, 3, "batches", first_pass=first_pass) for _ in range(2))
    expected = [forward.batch(position).copy() for position in range(60)]
    for position in np.random.default_rng(0).permutation(60):
        np.testing.assert_array_equal(jumping.batch(int(position)), expected[position])


def test_a_first_pass_of_everything_is_no_first_pass():
    plain, full = Walk(100, 7, 3, "b"), Walk(100, 7, 3, "b", first_pass=15)
    for position in range(40):
        np.testing.assert_array_equal(plain.batch(position), full.batch(position))


def test_following_rows_are_those_of_the_next_batches():
    walk = Walk(20, 6, 0, "b")  # 6, 6, 6, 2
    expected = np.concatenate([walk.batch(3), walk.batch(4)])[:7]
    np.testing.assert_array_equal(walk.following(2, 7), expected)


@pytest.mark.parametrize("count", [1, 10, 25, 90, 500])
def test_opposite_rows_are_further_rows_of_the_pass(count):
    walk = Walk(100, 10, 0, "b")
    for position in range(20):
        rows = walk.opposite(position, count)
        assert len(rows) == len(set(rows.tolist())) == min(count, 90)
        assert not set(rows.tolist()) & set(walk.batch(position).tolist())


def test_one_batch_beside_each_halves_the_age_of_a_row():
    walk = Walk(100, 10, 0, "b")
    walk.batch(0)
    for start in range(6):
        half = [np.concatenate([walk.batch(p), walk.opposite(p, 10)]) for p in range(start, start + 5)]
        assert len(set(np.concatenate(half).tolist())) == 100
