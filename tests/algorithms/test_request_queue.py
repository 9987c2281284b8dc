"""The queue of a VAFL server: by arrival, at most a batch and a query of each party."""

import numpy as np

from colonnade.algorithms.vafl.request_queue import QueuedRequest, RequestQueue


def request(party: int, step: int = 0, learn: bool = True) -> QueuedRequest:
    return QueuedRequest(party, step, np.zeros(0, np.int32), None, learn, reply=True)


def parties(queue: RequestQueue) -> list[tuple[int, bool]]:
    return [(waiting.party, waiting.learn) for waiting in queue]


def test_a_party_waits_for_its_newest_batch_and_one_query():
    queue = RequestQueue.of(request(1), request(2))
    queue.add(request(1, learn=False))
    assert parties(queue) == [(1, True), (2, True), (1, False)]
    queue.add(request(1, learn=False))
    queue.add(request(2, 1))
    assert parties(queue) == [(1, True), (1, False), (2, True)]
    queue.add(request(1, 1))
    assert parties(queue) == [(2, True), (1, True)] and len(queue) == 2
    queue.drop(2)
    assert parties(queue) == [(1, True)]


def test_the_first_of_distinct_parties_are_taken():
    queue = RequestQueue.of(request(3), request(3, learn=False), request(1))
    assert queue.has(2) and not queue.has(3)
    assert [(taken.party, taken.learn) for taken in queue.take(2)] == [(3, True), (1, True)]
    assert parties(queue) == [(3, False)]


def test_an_emptied_queue_hands_over_all_requests():
    queue = RequestQueue.of(request(2), request(0))
    assert [one.party for one in queue.empty()] == [2, 0] and not queue
