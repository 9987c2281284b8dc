"""Threads that compute the roles' jobs.

The jobs of one role run one after the other, in a lane. Among the lanes with a job to run, the one due first is next.
The clock's thread is one of the workers: while it waits for a result, it computes as the others do.
"""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from threading import Condition, Thread
from typing import Any

import torch

from colonnade.protocol.events import Promised
from colonnade.protocol.messages import Payload

__all__ = ["Lanes", "Promise"]

Compute = Callable[[Any], Payload]
NOBODY_WAITS = 2**62  # due time of a job whose result the clock never waits for


class Promise(Promised):
    """The result of a job that is being computed or will be."""

    def __init__(self, lanes: "Lanes", lane: int, due: int, compute: Compute, job: Payload) -> None:
        self._lanes, self.lane, self.due = lanes, lane, due
        self.task: tuple[Compute, Payload] | None = (compute, job)
        self.uses: list[Callable[[Any], None]] = []
        self.done = False
        self.made: Any = None
        self.error: BaseException | None = None

    def result(self) -> Payload:
        """Wait for the result; raises what the job raised."""
        self._lanes.wait(self)
        if self.error is not None:
            raise self.error
        result: Payload = self.made
        return result

    def then(self, use: Callable[[Any], None]) -> None:
        """Call `use` with the result before the role's next job runs."""
        if not self._lanes.add_use(self, use):
            use(self.result())


class Lanes:
    """Runs jobs on other threads between `submit` and `wait`. After a failure in a lane, all later jobs there fail."""

    def __init__(self, workers: int) -> None:
        self._changed = Condition()
        self._waiting: dict[int, deque[Promise]] = {}
        self._busy: set[int] = set()
        self._failed: dict[int, BaseException] = {}
        self._ready: list[tuple[int, int, int]] = []  # (due, running number, lane); some entries are out of date
        self._numbers = count()
        self._closed = False
        self._threads = [Thread(target=self._work, name=f"worker-{n}", daemon=True) for n in range(1, workers)]
        for thread in self._threads:
            thread.start()

    def submit(self, lane: int, due: int | None, compute: Compute, job: Payload) -> Promise:
        """Append a job to its lane. `due` is the clock time at which the clock will wait for it; None: never."""
        promise = Promise(self, lane, NOBODY_WAITS if due is None else due, compute, job)
        with self._changed:
            self._waiting.setdefault(lane, deque()).append(promise)
            self._offer(lane)
            self._changed.notify()
        return promise

    def wait(self, promise: Promise) -> None:
        """Wait for a promise. Meanwhile this thread computes: the promise's lane if it is free, else the next job."""
        while not promise.done:
            with self._changed:
                lane = self._take(promise.lane)
                if lane is None and not promise.done:
                    self._changed.wait()
            if lane is not None:
                self._run(lane)

    def add_use(self, promise: Promise, use: Callable[[Any], None]) -> bool:
        """Add a use of the result; False if the promise is done, so the caller must use the result itself."""
        with self._changed:
            if not promise.done:
                promise.uses.append(use)
            return not promise.done

    def close(self) -> None:
        """End the threads. Jobs that are left run in the thread that waits for them."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _offer(self, lane: int) -> None:
        waiting = self._waiting[lane]
        if waiting and lane not in self._busy:
            heappush(self._ready, (min(promise.due for promise in waiting), next(self._numbers), lane))

    def _take(self, wanted: int | None = None) -> int | None:
        """Choose a free lane and mark it busy; the calling thread must then `_run` it. None if no lane has a job."""
        lane = wanted
        while lane is None or lane in self._busy or not self._waiting.get(lane):
            if not self._ready:
                return None
            lane = heappop(self._ready)[2]
        self._busy.add(lane)
        return lane

    def _work(self) -> None:
        torch.set_num_threads(1)
        while True:
            with self._changed:
                while (lane := self._take()) is None and not self._closed:
                    self._changed.wait()
            if lane is None:
                return
            self._run(lane)
            if self._closed:
                return

    def _run(self, lane: int) -> None:
        promise = self._waiting[lane].popleft()
        try:
            if lane in self._failed:
                raise self._failed[lane]
            assert promise.task is not None
            compute, job = promise.task
            promise.made = compute(job)
            while use := self._next_use(promise):
                use(promise.made)
        except BaseException as error:
            promise.error = self._failed[lane] = error  # raised again in `Promise.result`
            if not isinstance(error, Exception):
                raise  # Ctrl-C
        finally:
            with self._changed:
                promise.done, promise.task = True, None
                self._busy.remove(lane)
                self._offer(lane)
                self._changed.notify_all()

    def _next_use(self, promise: Promise) -> Callable[[Any], None] | None:
        """The next use. If there is none, the promise becomes done under the lock, so that no use is missed."""
        with self._changed:
            if promise.uses:
                return promise.uses.pop(0)
            promise.done = True
            return None
