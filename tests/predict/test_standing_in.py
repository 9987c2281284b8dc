"""What replaces an absent party: cached, then fallback, then nothing; by the policy and in its order."""

import numpy as np
import pytest

from colonnade.algorithms.prediction.standing_in import (
    AWAY,
    CACHED,
    FALLBACK,
    LACKS,
    SENT,
    Cache,
    StandIns,
    why_refused,
)

PARTIES = ("bank", "shop")


def stand_ins(*policy, least=1, rows=10):
    made = StandIns((*policy, "refuse"), (1, 2), rows, least)
    made.learned({1: np.array([7.0, 8.0], np.float32)})
    return made


def filled(made, codes, ids=("a",)):
    h, what = np.zeros((len(ids), 3), np.float32), np.array(codes, np.uint8)
    made.fill(h, what, ids)
    return h.tolist(), what.tolist()


def test_nothing_is_touched_where_all_have_sent():
    assert filled(stand_ins("cached", "fallback"), [[SENT, SENT]]) == ([[0, 0, 0]], [[SENT, SENT]])


def test_a_cached_block_comes_before_the_fallback_and_the_fallback_for_other_ids():
    made = stand_ins("cached", "fallback")
    made.sent(1, ["a"], np.array([True]), np.array([[1.0, 2.0]], np.float32))
    h, what = filled(made, [[SENT, AWAY], [SENT, AWAY]], ["a", "b"])
    assert h == [[0, 1, 2], [0, 7, 8]] and what == [[SENT, CACHED], [SENT, FALLBACK]]


def test_the_order_is_the_policys():
    made = stand_ins("fallback", "cached")
    made.sent(1, ["a"], np.array([True]), np.array([[1.0, 2.0]], np.float32))
    assert filled(made, [[SENT, AWAY]])[1] == [[SENT, FALLBACK]]


def test_a_party_that_no_longer_has_an_id_is_not_remembered_by_the_cache():
    made = stand_ins("cached")
    made.sent(1, ["a"], np.array([True]), np.array([[1.0, 2.0]], np.float32))
    assert filled(made, [[SENT, LACKS]])[1] == [[SENT, LACKS]]
    made.sent(1, ["a"], np.array([False]), np.zeros((0, 2), np.float32))
    assert filled(made, [[SENT, AWAY]])[1] == [[SENT, AWAY]]


def test_refuse_alone_fills_nothing():
    assert filled(stand_ins(), [[SENT, AWAY]]) == ([[0, 0, 0]], [[SENT, AWAY]])


def test_an_answer_rests_on_as_many_parties_as_it_must():
    assert filled(stand_ins("fallback", least=2), [[SENT, AWAY]])[1] == [[SENT, AWAY]]
    assert filled(stand_ins("fallback", least=1), [[LACKS, AWAY]])[1] == [[LACKS, AWAY]], "no party has sent anything"


def test_the_cache_forgets_the_oldest():
    cache = Cache(1, 2)
    for id in ("a", "b", "a", "c"):
        cache.update(0, [id], np.array([True]), np.zeros((1, 1), np.float32))
    assert cache.get(0, "b") is None and cache.get(0, "a") is not None and cache.get(0, "c") is not None


@pytest.mark.parametrize(
    ("codes", "away", "words"),
    [
        ([SENT, FALLBACK], ["shop"], ""),
        ([LACKS, LACKS], [], "no party has this id"),
        ([LACKS, AWAY], ["shop"], "no party that answered has this id; away: shop"),
        ([SENT, AWAY], ["shop"], "nothing replaces shop"),
        ([SENT, LACKS], [], "nothing replaces shop"),
    ],
)
def test_a_refusal_says_why(codes, away, words):
    found = why_refused(np.array(codes), PARTIES, away)
    assert words in found and bool(words) == bool(found)
