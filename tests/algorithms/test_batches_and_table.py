"""Which rows come next, how old a row is, and how ages are summarised."""

import numpy as np
import pytest

from colonnade.algorithms.batches import Walk, rows_per_message
from colonnade.algorithms.table import EmbeddingTable, Staleness


@pytest.mark.parametrize(("rows", "size"), [(10, 3), (12, 4), (5, 1), (5, 50)])
def test_every_row_once_per_epoch(rows, size):
    walk = Walk(rows, size, 0, "batches", 1)
    orders = []
    for epoch in range(3):
        batches = [walk.batch(epoch * walk.per_epoch + place) for place in range(walk.per_epoch)]
        assert [len(batch) for batch in batches[:-1]] == [min(size, rows)] * (walk.per_epoch - 1)
        orders.append(np.concatenate(batches))
        assert orders[-1].dtype == np.int32
        assert sorted(orders[-1].tolist()) == list(range(rows))
    assert walk.per_epoch == -(-rows // min(size, rows))
    assert not np.array_equal(orders[0], orders[1]), "a new permutation in every epoch"


def test_position_alone_determines_a_batch():
    forward, jumping = Walk(20, 3, 5, "batches"), Walk(20, 3, 5, "batches")
    expected = [forward.batch(position) for position in range(30)]
    for position in np.random.default_rng(0).permutation(30):
        np.testing.assert_array_equal(jumping.batch(int(position)), expected[position])


def test_a_walk_is_shared_by_its_path_and_private_by_its_path():
    one, same, other, reseeded = (
        Walk(50, 5, seed, *path) for seed, path in [(0, ("b",)), (0, ("b",)), (0, ("b", 1)), (1, ("b",))]
    )
    np.testing.assert_array_equal(one.batch(3), same.batch(3))
    assert not np.array_equal(one.batch(3), other.batch(3))
    assert not np.array_equal(one.batch(3), reseeded.batch(3))


def test_ages_by_hand():
    """Eq. (3): τ is 0 when the pair is renewed and grows by one with every update."""
    table = EmbeddingTable(4, (1, 2))
    table.write(0, np.array([0, 1], np.int32), np.array([[1.0], [2.0]], np.float32), k=0)
    table.write(1, np.array([1, 2], np.int32), np.array([[3.0, 4.0], [5.0, 6.0]], np.float32), k=2)
    table.write(0, np.array([1], np.int32), np.array([[7.0]], np.float32), k=3)
    rows = np.array([0, 1, 2, 3])
    assert table.ages(rows, 3).tolist() == [[3, 3], [0, 1], [3, 1], [3, 3]]
    assert table.ages(np.array([2, 1]), 5).tolist() == [[5, 3], [2, 3]]
    assert table.values.tolist() == [[1, 0, 0], [7, 3, 4], [0, 5, 6], [0, 0, 0]]
    assert table.blocks == (slice(0, 1), slice(1, 3))
    again = EmbeddingTable(4, (1, 2))
    again.load(table.save())
    assert again.values.tolist() == table.values.tolist() and again.renewed.tolist() == table.renewed.tolist()


def test_table_memory_is_what_the_design_allows():
    table = EmbeddingTable(1000, (8, 8))
    assert table.values.nbytes == 1000 * 16 * 4 and table.renewed.nbytes == 1000 * 2 * 4


def test_staleness_by_hand():
    staleness = Staleness(3)
    staleness.add(np.array([[0, 2, 4], [0, 3, 5]], np.int32), [1, 2])
    staleness.add(np.array([[1, 9, 100]], np.int32), [0])
    assert staleness.take_means() == [1.0, 2.5, 4.5]
    assert staleness.take_means() == [0.0, 0.0, 0.0]
    staleness.add(np.array([[0, 100, 0]], np.int32), [1])  # beyond the first 64 counts
    summary = staleness.summary()
    assert summary == {"mean": (2 + 3 + 4 + 5 + 1 + 100) / 6, "p95": 100.0, "max": 100.0}
    again = Staleness(3)
    again.load(staleness.save())
    assert again.summary() == summary


def test_p95_is_the_smallest_age_that_95_percent_do_not_exceed():
    staleness = Staleness(1)
    staleness.add(np.arange(1, 101, dtype=np.int32)[:, None], [0])
    assert staleness.summary() == {"mean": 50.5, "p95": 95.0, "max": 100.0}


def test_staleness_of_nothing():
    staleness = Staleness(2)
    staleness.add(np.zeros((3, 2), np.int32), [])
    assert staleness.summary() == {"mean": 0.0, "p95": 0.0, "max": 0.0}


def test_wide_rows_are_sent_fewer_at_a_time():
    assert [rows_per_message(width) for width in (1, 1024, 2048, 32768, 10**8)] == [8192, 8192, 4096, 256, 1]


def test_staleness_of_all_but_the_uploaders():
    ages = np.array([[0, 2, 4, 0], [0, 3, 5, 0]], np.int32)
    some, others = Staleness(4), Staleness(4)
    some.add(ages, [1, 2])
    others.add_others(ages, [0, 3])
    assert others.histogram() == some.histogram() and others.summary() == some.summary()
    assert others.take_means() == some.take_means() == [0.0, 2.5, 4.5, 0.0]


def test_old_ages_are_counted_in_wider_bins_and_mean_and_maximum_stay_exact():
    staleness = Staleness(2)
    staleness.add(np.array([[3, 5]], np.int32), [0, 1])
    staleness.add(np.array([[40_000, 7]], np.int32), [0, 1])
    histogram = staleness.histogram()
    assert histogram["width"] == 4 and len(histogram["counts"]) <= 2**14
    assert histogram["counts"][:2] == [1, 2] and histogram["counts"][10_000] == 1
    assert staleness.summary() == {"mean": (3 + 5 + 40_000 + 7) / 4, "p95": 40_000.0, "max": 40_000.0}
    again = Staleness(2)
    again.load(staleness.save())
    assert again.histogram() == histogram and again.summary() == staleness.summary()


def test_sums_of_very_old_ages_do_not_overflow():
    staleness = Staleness(1)
    staleness.add_others(np.full((1000, 1), 2**30, np.int32), [])
    assert staleness.take_means() == [2.0**30] and staleness.summary()["mean"] == 2.0**30


def test_with_many_rows_of_many_parties_a_sample_of_the_updates_is_counted():
    assert [Staleness(parties).every(64) for parties in (4, 256, 257, 1000)] == [1, 1, 2, 4]


def test_walks_on_one_path_share_their_memory():
    one, other, own = Walk(100, 10, 7, "batches"), Walk(100, 10, 7, "batches"), Walk(100, 10, 7, "batches", 1)
    assert np.shares_memory(one.batch(3), other.batch(3))
    assert not np.array_equal(one.batch(3), own.batch(3))
    assert np.array_equal(Walk(100, 10, 7, "batches").batch(3), one.batch(3))
    with pytest.raises(ValueError, match="read-only"):
        one.batch(3)[0] = 1
