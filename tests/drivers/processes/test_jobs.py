"""One job on the lane, others beside it; no result meets a job that reads what the result changes."""

import asyncio
import subprocess
import sys
import threading
from contextlib import nullcontext

import numpy as np
import pytest

from colonnade.drivers.processes.jobs import INLINE_S, Jobs
from colonnade.models import network
from colonnade.protocol.errors import LocalProtocolError
from colonnade.protocol.events import Work
from colonnade.protocol.messages import Array, Payload

PATIENCE_S = 20.0


class Job(Payload, frozen=True):
    name: str
    values: Array | None = None


class Bench:
    """Jobs that end when the test says so."""

    def __init__(self, quick=()):
        self.gates, self.quick = {}, quick
        self.started, self.delivered, self.failures = [], [], []
        self.threads = {}
        self.jobs = Jobs(self.compute, self.deliver, self.failures.append)
        self.on_delivery = lambda work: None

    def compute(self, job):
        self.started.append(job.name)
        self.threads[job.name] = threading.current_thread()
        if job.name not in self.quick:
            assert self.gate(job.name).wait(PATIENCE_S)
        if job.name.startswith("bad"):
            raise ValueError(job.name)
        return Job(job.name)

    def gate(self, name):
        return self.gates.setdefault(name, threading.Event())

    def deliver(self, work, result):
        self.jobs.settle(work.token)  # as the node does
        self.delivered.append(result.name)
        self.on_delivery(work)

    def ask(self, token, name, aside=False, kind="step"):
        self.gate(name)
        work = Work(token, kind, 1.0, Job(name, np.arange(3)), aside)
        self.jobs.submit(work)
        return work

    def end(self, name):
        self.gate(name).set()

    async def until(self, condition):
        for _ in range(int(PATIENCE_S / 0.002)):
            if condition():
                return
            await asyncio.sleep(0.002)
        raise AssertionError(f"started {self.started}, delivered {self.delivered}, failures {self.failures}")

    async def quiet(self):
        """Wait until everything that can happen by itself has happened."""
        for _ in range(5):
            await asyncio.sleep(0.002)


def play(scene, **options):
    """Run a scene with a bench whose jobs have begun."""

    async def run():
        bench = Bench(**options)
        bench.jobs.begin(asyncio.get_running_loop())
        try:
            await scene(bench)
        finally:
            for gate in bench.gates.values():
                gate.set()
            bench.jobs.close()

    asyncio.run(run())


def test_one_job_at_a_time_on_the_lane():
    async def scene(bench):
        bench.ask(1, "first")
        with pytest.raises(LocalProtocolError, match="asks for 'step' while a job is running"):
            bench.ask(2, "second")
        bench.end("first")
        await bench.until(lambda: bench.delivered == ["first"])
        bench.ask(2, "second")
        bench.end("second")
        await bench.until(lambda: bench.delivered == ["first", "second"])
        assert bench.jobs.pending == []

    play(scene)


def test_a_job_aside_runs_beside():
    async def scene(bench):
        bench.ask(1, "own")
        bench.ask(2, "aside", aside=True)
        await bench.until(lambda: set(bench.started) == {"own", "aside"})
        bench.end("aside")
        await bench.until(lambda: bench.delivered == ["aside"])
        bench.end("own")
        await bench.until(lambda: bench.delivered == ["aside", "own"])
        assert bench.jobs.busy_s > 0 and bench.jobs.aside_s > 0

    play(scene)


def test_a_result_of_the_lane_waits_for_jobs_aside_and_no_more_of_those_begin():
    async def scene(bench):
        bench.ask(1, "own")
        bench.ask(2, "aside", aside=True)
        await bench.until(lambda: len(bench.started) == 2)
        bench.end("own")
        await bench.until(lambda: bench.jobs._result is not None)
        bench.ask(3, "later", aside=True)
        await bench.quiet()
        assert bench.delivered == [] and "later" not in bench.started
        assert [work.token for work in bench.jobs.pending] == [1, 2, 3]
        bench.end("aside")
        bench.end("later")
        await bench.until(lambda: len(bench.delivered) == 3)
        assert bench.delivered == ["aside", "own", "later"]

    play(scene)


def test_jobs_aside_of_one_token_that_wait_together():
    """Arrays in jobs cannot be compared, so the jobs are compared by identity."""

    async def scene(bench):
        bench.ask(1, "own")
        bench.ask(2, "aside", aside=True)
        await bench.until(lambda: len(bench.started) == 2)
        bench.end("own")
        await bench.until(lambda: bench.jobs._result is not None)
        bench.jobs.cancel(1)
        bench.ask(3, "same")
        for _ in range(2):
            bench.ask(3, "same", aside=True)
        bench.end("same")
        bench.end("aside")
        await bench.until(lambda: bench.started.count("same") == 3)

    play(scene)


def test_a_cancelled_result_is_dropped_and_the_next_job_waits_for_the_lane():
    async def scene(bench):
        bench.ask(1, "old")
        await bench.until(lambda: bench.started == ["old"])
        bench.jobs.cancel(1)
        assert bench.jobs.pending == []
        bench.ask(1, "new")  # even under the same number
        await bench.quiet()
        assert bench.started == ["old"]
        bench.end("old")
        bench.end("new")
        await bench.until(lambda: bench.delivered == ["new"])

    play(scene)


def test_a_cancelled_result_that_waits_is_dropped():
    async def scene(bench):
        bench.ask(1, "own")
        bench.ask(2, "aside", aside=True)
        bench.end("own")
        await bench.until(lambda: bench.jobs._result is not None)
        bench.jobs.cancel(1)
        bench.end("aside")
        bench.end("next")
        await bench.until(lambda: bench.delivered == ["aside"])
        bench.ask(3, "next")
        await bench.until(lambda: bench.delivered == ["aside", "next"])

    play(scene)


def test_a_job_that_waits_can_be_cancelled():
    async def scene(bench):
        bench.ask(1, "old")
        bench.jobs.cancel(1)
        bench.ask(2, "waiting")
        bench.jobs.cancel(2)
        bench.end("old")
        bench.end("waiting")
        bench.ask(3, "next")
        bench.end("next")
        await bench.until(lambda: bench.delivered == ["next"])
        assert "waiting" not in bench.started

    play(scene)


@pytest.mark.parametrize("aside", [False, True])
def test_what_a_job_raises_reaches_the_node(aside):
    async def scene(bench):
        bench.ask(1, "bad", aside=aside)
        bench.end("bad")
        await bench.until(lambda: bench.failures)
        assert isinstance(bench.failures[0], ValueError) and bench.delivered == []

    play(scene)


def test_what_a_short_job_raises_reaches_the_node_too():
    async def scene(bench):
        bench.jobs._seconds["step"] = INLINE_S / 10
        bench.ask(1, "bad")
        await bench.until(lambda: bench.failures)
        assert bench.threads["bad"] is threading.main_thread()

    play(scene, quick=("bad",))


def test_a_kind_that_proved_short_runs_in_the_event_loop():
    async def scene(bench):
        for number in range(100):
            bench.ask(number, f"quick-{number}")
            await bench.until(lambda number=number: len(bench.delivered) == number + 1)
            if bench.threads[f"quick-{number}"] is threading.main_thread():
                break
        else:
            raise AssertionError("never")
        assert number > 0 and bench.threads["quick-0"] is not threading.main_thread()

    play(scene, quick=[f"quick-{number}" for number in range(100)])


def test_a_job_aside_sees_what_a_short_job_before_it_learned():
    async def scene(bench):
        bench.ask(1, "a")  # proves short
        await bench.until(lambda: bench.delivered == ["a"])
        bench.ask(2, "b")
        bench.ask(3, "c", aside=True)  # in the same turn of the loop
        await bench.until(lambda: len(bench.delivered) == 3)
        assert bench.started == ["a", "b", "c"] and bench.delivered == ["a", "b", "c"]

    play(scene, quick=("a", "b", "c"))


def test_a_short_job_goes_to_a_thread_while_another_one_runs():
    async def scene(bench):
        bench.jobs._seconds["answer"] = INLINE_S / 10
        bench.ask(1, "own")
        bench.ask(2, "aside", aside=True, kind="answer")
        bench.end("aside")
        await bench.until(lambda: bench.delivered == ["aside"])
        assert bench.threads["aside"] is not threading.main_thread()

    play(scene)


def test_a_delivery_may_ask_for_the_next_job():
    async def scene(bench):
        def next_one(work):
            if work.token < 5:
                bench.end(f"job-{work.token + 1}")
                bench.ask(work.token + 1, f"job-{work.token + 1}")

        bench.on_delivery = next_one
        bench.ask(1, "job-1")
        bench.end("job-1")
        await bench.until(lambda: bench.delivered == [f"job-{number}" for number in range(1, 6)])

    play(scene)


def test_before_begin_jobs_only_queue_up_and_pending_is_what_a_restart_runs():
    async def run():
        bench = Bench(quick=("a", "b", "c"))
        bench.ask(1, "a")
        bench.ask(2, "b", aside=True)
        bench.jobs.settle(1)  # a replayed WorkDone
        bench.ask(3, "c")
        assert bench.started == [] and [work.token for work in bench.jobs.pending] == [2, 3]
        again = Bench(quick=("a", "b", "c"))
        again.jobs.pending = list(bench.jobs.pending)
        again.jobs.begin(asyncio.get_running_loop())
        await again.until(lambda: sorted(again.delivered) == ["b", "c"])
        assert again.jobs.pending == []
        for made in (bench, again):
            made.jobs.close()

    asyncio.run(run())


def test_after_close_nothing_is_delivered():
    async def scene(bench):
        bench.ask(1, "own")
        await bench.until(lambda: bench.started == ["own"])
        bench.jobs.close()
        bench.end("own")
        await bench.quiet()
        assert bench.delivered == [] and [work.token for work in bench.jobs.pending] == [1]

    play(scene)


ENDLESS = """
import asyncio, threading
from types import SimpleNamespace
from colonnade.deployment.process import leave_if_stopped
from colonnade.drivers.processes.jobs import Jobs
from colonnade.protocol.events import Work

began = threading.Event()
jobs = Jobs(lambda job: began.set() or threading.Event().wait(), None, None)

async def start():
    jobs.begin(asyncio.get_running_loop())
    jobs.submit(Work(token=1, kind="embed", amount=1.0, job=None))
    began.wait()

asyncio.run(start())
jobs.close()
print("saved")
leave_if_stopped(SimpleNamespace(stopped=True, jobs=jobs))
"""


def test_a_job_that_runs_does_not_keep_a_stopped_process():
    ended = subprocess.run([sys.executable, "-c", ENDLESS], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "saved\n"), ended.stderr


def test_the_lane_and_a_job_aside_draw_one_after_the_other(monkeypatch):
    """Torch has one generator for both threads: with random layers, one pass would take the other's random numbers."""
    monkeypatch.setattr(network, "_turn", nullcontext())  # as in a process that has run nothing else
    Bench()
    assert isinstance(network._turn, type(threading.Lock()))
