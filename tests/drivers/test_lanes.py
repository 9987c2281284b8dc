"""Lanes: a role's jobs run in turn, the job due first goes first, and a failure loses no other job."""

from collections.abc import Iterator
from contextlib import closing
from threading import Event, Thread, get_ident
from typing import Any

import pytest

from colonnade.drivers.simulator.lanes import Lanes


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    with closing(Lanes(3)) as made:
        yield made


def test_a_lane_is_worked_off_in_turn_and_what_follows_from_a_result_comes_first(lanes: Lanes) -> None:
    seen: list[Any] = []

    def compute(job: Any) -> Any:
        seen.append(job)
        return job

    for lane in range(4):
        for step in range(20):
            lanes.submit(lane, None, compute, (lane, step)).then(lambda made: seen.append(("then", *made)))
    for lane in range(4):
        lanes.submit(lane, lane, compute, (lane, 20)).result()
        own = [entry for entry in seen if lane in (entry[0], entry[1] if entry[0] == "then" else None)]
        assert own == [entry for step in range(20) for entry in ((lane, step), ("then", lane, step))] + [(lane, 20)]


def test_the_next_job_is_the_one_that_is_due_first() -> None:
    """The earliest job of a lane counts, since later ones wait for it."""
    with closing(Lanes(1)) as lanes:  # no other thread
        for lane, due in ((1, 30), (2, None), (3, 10), (4, None), (4, 20)):
            lanes.submit(lane, due, lambda job: job, None)
        assert [lanes._take() for _ in range(5)] == [3, 4, 1, 2, None]


def test_a_waiting_thread_computes() -> None:
    with closing(Lanes(1)) as lanes:
        promises = [lanes.submit(lane, lane, lambda job: get_ident(), None) for lane in range(3)]
        assert {promise.result() for promise in promises} == {get_ident()}


def test_a_thread_waiting_for_another_takes_the_next_job(lanes: Lanes) -> None:
    """The first job ends only after the third, and there are two threads besides this one."""
    begun, done = Event(), Event()

    def first(job: Any) -> Any:
        begun.set()
        assert done.wait(60)
        return job

    def second(job: Any) -> Any:
        assert done.wait(60)
        return job

    promises = [lanes.submit(1, 1, first, "a"), lanes.submit(2, 2, second, "b")]
    assert begun.wait(60)
    lanes.submit(3, 3, lambda job: done.set(), None)
    assert [promise.result() for promise in promises] == ["a", "b"]


def test_what_fails_fails_all_that_follows_in_its_lane(lanes: Lanes) -> None:
    def fail(job: Any) -> Any:
        raise ValueError(job)

    learnt: list[Any] = []
    failing = lanes.submit(1, None, fail, "no numbers")
    following = lanes.submit(1, 5, learnt.append, "too late")
    other = lanes.submit(2, 6, lambda job: job, "fine")
    for promise in (failing, following):
        with pytest.raises(ValueError, match="no numbers"):
            promise.result()
    with pytest.raises(ValueError, match="no numbers"):
        failing.then(learnt.append)
    assert other.result() == "fine" and not learnt


def test_what_is_left_at_the_end_is_computed_by_the_caller() -> None:
    lanes = Lanes(2)
    lanes.close()
    assert lanes.submit(1, 1, lambda job: job + 1, 1).result() == 2  # type: ignore[arg-type, comparison-overlap]
    assert not any(isinstance(thread, Thread) and thread.is_alive() for thread in lanes._threads)
