"""The queue of a VAFL server: by arrival, at most one batch and one query of each party."""

import numpy as np
import pytest
from colonnade.algorithms.vafl.line import Line, Request


def request(party: int, step: int = 0, learn: bool = True) -> Request:
    return Request(party, step, np.zeros(0, np.int32), None, learn, reply=True)


def parties(line: Line) -> list[tuple[int, bool]]:
    return [(waiting.party, waiting.learn) for waiting in line]


def test_a_party_waits_for_its_newest_batch_and_one_query():
    line = Line.of(request(1), request(2))
    line.add(request(1, learn=False))
    assert parties(line) == [(1, True), (2, True), (1, False)]
    line.add(request(1, learn=False))
    line.add(request(2, 1))
    assert parties(line) == [(1, True), (1, False), (2, True)]
    line.add(request(1, 1))
    assert parties(line) == [(2, True), (1, True)] and len(line) == 2
    line.drop(2)
    assert parties(line) == [(1, True)]


def test_the_first_of_distinct_parties_are_taken():
    line = Line.of(request(3), request(3, learn=False), request(1))
    assert line.has(2) and not line.has(3)
    assert [(taken.party, taken.learn) for taken in line.take(2)] == [(3, True), (1, True)]
    assert parties(line) == [(3, False)]


@pytest.mark.parametrize(
    ("steps", "round_", "newest", "behind"),
    [
        ([], 3, 3, []),
        ([3, 3, 3], 3, 3, []),
        ([3, 3, 5], 3, 5, [0, 1]),
        ([3, 3, 2], 3, 3, [2]),
        ([3, 3], 4, 4, [0, 1]),
    ],
)
def test_a_request_behind_the_newest_step_leaves(steps: list[int], round_: int, newest: int, behind: list[int]):
    line = Line.of(*(request(party, step) for party, step in enumerate(steps)))
    found, left = line.leave_behind(round_)
    assert (found, [one.party for one in left]) == (newest, behind)
    assert [one.party for one in line] == [party for party in range(len(steps)) if party not in behind]
