"""The further rows that a party sends with a batch."""

import numpy as np
import pytest

from colonnade.algorithms.batches import Walk


def test_following_rows_are_those_of_the_next_batches():
    walk = Walk(20, 6, 0, "b")  # 6, 6, 6, 2
    expected = np.concatenate([walk.batch(3), walk.batch(4)])[:7]
    np.testing.assert_array_equal(walk.following(2, 7), expected)


@pytest.mark.parametrize("count", [1, 10, 25, 90, 500])
def test_opposite_rows_are_further_rows_of_the_epoch(count):
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
