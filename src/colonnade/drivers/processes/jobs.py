"""A role's jobs on a real machine: one on the lane, others aside, and none of them blocks the event loop.

A result from the lane may change the model, which a job aside reads. So the driver hands over a result from the lane
only while no job aside runs. Short jobs run in the event loop itself, because a thread costs two context switches.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from time import perf_counter_ns

from colonnade.drivers.processes.timeline import Lane
from colonnade.models.network import draw_in_turn
from colonnade.protocol.errors import LocalProtocolError
from colonnade.protocol.events import NANOSECONDS, Work
from colonnade.protocol.messages import Payload

__all__ = ["Jobs"]

INLINE_S = 0.002
SMOOTHING = 0.2  # weight of the newest duration in the running mean


class Jobs:
    """The jobs that the role asked for and whose results it does not have yet."""

    def __init__(
        self,
        compute: Callable[[Payload], Payload],
        deliver: Callable[[Work, Payload], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._compute, self._deliver, self._fail = compute, deliver, fail
        self.lane = Lane()
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="compute")
        draw_in_turn(Lock())  # the lane and a job aside may both have random layers
        self._loop: asyncio.AbstractEventLoop | None = None
        self.pending: list[Work] = []  # in the order of the requests; a restart runs these again
        self._waiting: deque[Work] = deque()
        self._lane: Work | None = None  # running, or its result waits
        self._next_turn = False  # the lane's job is short, and runs in the next turn of the loop
        self._result: Payload | None = None  # of the lane, while a job aside is running
        self._asides = 0  # running
        self._seconds: dict[str, float] = {}  # mean duration by kind
        self.busy_s = self.aside_s = 0.0

    def submit(self, work: Work) -> None:
        """Add a job, which starts as soon as it may; raises LocalProtocolError if the lane is taken."""
        if not work.aside and any(not other.aside for other in self.pending):
            raise LocalProtocolError(f"asks for {work.kind!r} while a job is running")
        self.pending.append(work)
        self._waiting.append(work)
        self._start()

    def cancel(self, token: int) -> None:
        """Discard the job's result. A running job still runs to its end."""
        self.pending = [work for work in self.pending if work.token != token]
        self._waiting = deque(work for work in self._waiting if work.token != token)

    def settle(self, token: int) -> None:
        """Remove the oldest job with this token, whose result is being handed over."""
        for place, work in enumerate(self.pending):
            if work.token == token:
                del self.pending[place]
                return

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start running jobs. Before this, while the node replays its journal, they only queue up."""
        self._loop = loop
        self._waiting = deque(self.pending)
        self._start()

    @property
    def running(self) -> bool:
        """Whether a thread still computes, or a result waits to be handed over."""
        return self._lane is not None or self._asides > 0

    def close(self) -> None:
        """Start no more jobs."""
        self._loop = None
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        if self._loop is None:
            return
        waiting, self._waiting = self._waiting, deque()
        for work in waiting:
            if work.aside and self._result is None and not self._next_turn:
                self._asides += 1
            elif not work.aside and self._lane is None:
                self._lane = work
            else:
                self._waiting.append(work)
                continue
            self._run(work, self._loop)

    def _run(self, work: Work, loop: asyncio.AbstractEventLoop) -> None:
        alone = self._asides == (1 if work.aside else 0) and (self._lane is None or self._lane is work)
        if alone and self._seconds.get(work.kind, 1.0) < INLINE_S:
            self._next_turn = self._next_turn or not work.aside  # then a job aside that comes now sees what it learned
            loop.call_soon(self._run_here, work)
            return
        future = self._threads.submit(self._timed, work)
        future.add_done_callback(lambda done: _call_on(loop, self._thread_ended, work, done))

    def _run_here(self, work: Work) -> None:
        if not work.aside:
            self._next_turn = False
        try:
            result, start, end = self._timed(work)
        except Exception as error:
            self._fail(error)
            return
        self._ended(work, result, start, end)

    def _timed(self, work: Work) -> tuple[Payload, int, int]:
        start = perf_counter_ns() if work.aside else self.lane.begin()
        return self._compute(work.job), start, perf_counter_ns()

    def _thread_ended(self, work: Work, done: Future[tuple[Payload, int, int]]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self._fail(error if isinstance(error, Exception) else LocalProtocolError(repr(error)))
            return
        self._ended(work, *done.result())

    def _ended(self, work: Work, result: Payload, start: int, end: int) -> None:
        if self._loop is None:
            return
        seconds = (end - start) / NANOSECONDS
        mean = self._seconds.get(work.kind, seconds)
        self._seconds[work.kind] = mean + SMOOTHING * (seconds - mean)
        if work.aside:
            self._asides -= 1
            self.aside_s += seconds
            self._hand_over(work, result)
        else:
            self.busy_s += seconds
            self.lane.end(end)
            self._result = result
        if self._result is not None and not self._asides and self._lane is not None:
            lane, self._lane = self._lane, None
            held, self._result = self._result, None
            self._hand_over(lane, held)
        self._start()

    def _hand_over(self, work: Work, result: Payload) -> None:
        if any(work is other for other in self.pending):
            self._deliver(work, result)


def _call_on(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: object) -> None:
    """Call from another thread; do nothing if the loop has ended."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(call, *arguments)
