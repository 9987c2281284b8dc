"""`table = "mean"`: rows that a party has not sent yet are the running mean of its embeddings."""

import copy

import numpy as np
import pytest

from colonnade.algorithms.table_file import Tables
from colonnade.algorithms.vafl.config import VaflOptions
from colonnade.algorithms.vafl.messages import Embeddings
from colonnade.drivers.row_file import FileStorage
from colonnade.protocol.events import Received, Work


@pytest.fixture(params=[("memory", "float32"), ("memory", "float16"), ("file", "float32"), ("file", "float16")])
def table(request, tmp_path):
    made = Tables(*request.param).to_train(6, (2, 1), fill=True)
    made.open(FileStorage(tmp_path), "train")
    return made


def rows(*numbers):
    return np.array(numbers, np.int32)


def values(*numbers):
    return np.array(numbers, np.float32)


def test_by_hand(table):
    """n = 1: μ is the mean of the upload; n = 2: μ moves by 1/2; each block by itself."""
    assert table.gather(rows(0, 5)).tolist() == [[0, 0, 0], [0, 0, 0]]
    table.write(0, rows(0, 1), values([1, 2], [3, 6]), 0)  # mean (2, 4)
    assert table.gather(rows(1, 2)).tolist() == [[3, 6, 0], [2, 4, 0]]
    table.write(0, rows(2, 0), values([4, 4], [6, 4]), 1)  # mean (5, 4): μ = (2, 4) + (3, 0)/2
    table.write(1, rows(3), values([8]), 1)
    expected = [[6, 4, 8], [3.5, 4, 8], [3.5, 4, 8]]
    assert table.gather(rows(0, 3, 5)).tolist() == expected
    assert table.ages(rows(0, 1, 3), 4).tolist() == [[3, 5], [4, 5], [5, 3]], "never sent: older than update 0"
    assert table.ages_of(1, rows(3, 0), 4).tolist() == [3, 5] and table.newest() == 1


def test_a_share_never_falls_below_two_percent(table):
    for upload in range(60):
        table.write(0, rows(0), values([upload == 59, 0]), 0)
    assert table.gather(rows(1))[0, 0] == pytest.approx(0.02)


def test_once_all_rows_were_sent_nothing_is_replaced(table):
    table.write(0, rows(0, 1, 2, 2), np.ones((4, 2), np.float32), 0)
    assert table.fill.missing.tolist() == [3, 6]
    table.write(0, rows(3, 4, 5), np.zeros((3, 2), np.float32), 0)
    uploads = table.fill.uploads.copy()
    table.write(0, rows(3), np.full((1, 2), 9, np.float32), 1)
    assert table.fill.missing.tolist() == [0, 6] and table.fill.uploads.tolist() == uploads.tolist()
    assert table.gather(rows(0, 3, 4))[:, 0].tolist() == [1, 9, 0]


def test_rows_that_a_party_lacks_stay_absent_and_out_of_the_mean(table):
    absent = np.zeros((6, 2), bool)
    absent[1, 0] = absent[4, 0] = True
    table.mark_absent(absent)
    table.write(0, rows(0, 1), values([1, 2], [100, 100]), 0)
    found = table.gather(rows(0, 1, 2, 4))[:, 0]
    assert found[[0, 2]].tolist() == [1, 1] and np.isnan(found[[1, 3]]).all()
    assert table.fill.missing.tolist() == [3, 6]


def test_a_checkpoint_keeps_the_means(table):
    table.write(0, rows(0, 1), values([1, 2], [3, 6]), 0)
    saved = copy.deepcopy(table.save())
    before = table.gather(rows(0, 5))
    if "values" in saved:  # in memory: another table takes over
        other = Tables("memory", str(table.dtype)).to_train(6, (2, 1), fill=True)
    else:  # in a file: the table goes back
        table.write(0, rows(5), values([7, 7]), 3)
        other = table
    other.load(saved)
    np.testing.assert_array_equal(other.gather(rows(0, 5)), before)
    assert other.fill.missing.tolist() == [4, 6]


def test_a_server_steps_with_the_mean_and_parties_do_not_warm_up(tiny, regression):
    x = [[1.0, -2.0, 0.5], [0.3, 0.7, -1.0]]
    run = tiny(VaflOptions(table="mean"), x, np.zeros(3), [1.0, 2.0], 0.5, regression)
    uploads = []
    for m in (0, 1):
        (send,) = run.start(m)
        assert isinstance(send.message, Embeddings) and send.message.batch == 2, "no warm-up"
        uploads.append(send.message)
        effects = run.told(run.server, Received(run.names[m], send.message))
        (work,) = [effect for effect in effects if isinstance(effect, Work)]
        run.work(run.server, effects)
    met = np.isin(uploads[1].rows, uploads[0].rows)
    assert met.any() and not met.all(), "the case is about rows of both kinds"
    mean = uploads[0].values.mean()
    own = dict(zip(uploads[0].rows.tolist(), uploads[0].values[:, 0].tolist(), strict=True))
    expected = [own.get(row, mean) for row in uploads[1].rows.tolist()]
    np.testing.assert_allclose(work.job.batches[0].h[:, 0], expected, rtol=1e-6)
