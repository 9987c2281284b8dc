"""Many small jobs over worker processes, one line of a file per result: an interrupted study can continue.

A job is a dictionary of JSON values, and is its own key: a job that the file has a line for is not done again.
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import torch

__all__ = ["Job", "Journal", "OutOfTime", "Result", "add_options", "lines", "study"]

Job = dict[str, Any]
Result = dict[str, Any]
Found = TypeVar("Found")


class OutOfTime(Exception):
    """The given minutes are over; the file has all finished results."""


class Journal:
    """The file of results, and the workers that add to it. Load all data before opening it: workers are forked."""

    def __init__(
        self, path: Path, work: Callable[[Job], Result], workers: int, *, resume: bool, minutes: float | None = None
    ) -> None:
        if path.exists() and not resume:
            raise SystemExit(f"{path} exists: add --resume to continue, or choose another folder")
        self._path, self._found = path, {_key(job): result for job, result in lines(path)}
        self._ends = None if minutes is None else time.monotonic() + 60 * minutes
        torch.set_num_threads(1)
        self._pool = multiprocessing.get_context("fork").Pool(workers)
        self._work = _Work(work)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.terminate()
        self._pool.join()

    def results(self, title: str, jobs: Iterable[Job]) -> list[Result]:
        """The results of these jobs, in their order; new jobs run first."""
        listed = list(jobs)
        new = {key: job for job in listed if (key := _key(job)) not in self._found}
        done = self._pool.imap_unordered(self._work, new.values())
        with self._path.open("a", encoding="utf-8") as file:
            for number in range(len(new)):
                job, result = self._next(done)
                self._found[_key(job)] = result
                file.write("\n" + json.dumps({"job": job, "result": result}))  # a torn line before it stays separate
                file.flush()
                if sys.stderr.isatty() or (number + 1) % 20 == 0 or number + 1 == len(new):
                    print(f"\r{title}: {number + 1} of {len(new)}", end="", file=sys.stderr, flush=True)
        if new:
            print(file=sys.stderr)
        return [self._found[_key(job)] for job in listed]

    def _next(self, done: Any) -> tuple[Job, Result]:
        left = None if self._ends is None else self._ends - time.monotonic()
        if left is not None and left <= 0:
            raise OutOfTime
        try:
            found: tuple[Job, Result] = done.next(left)
        except multiprocessing.TimeoutError:
            raise OutOfTime from None
        return found


class _Work:
    """A job with its result: workers finish in any order."""

    def __init__(self, work: Callable[[Job], Result]) -> None:
        self._work = work

    def __call__(self, job: Job) -> tuple[Job, Result]:
        return job, self._work(job)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every study: its folder, its workers, and when to stop."""
    parser.add_argument("--out", type=Path, required=True, help="the folder for the results")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, help="stop after this many minutes; --resume continues")
    parser.add_argument("--resume", action="store_true", help="continue with the results in the folder")


def study(
    options: argparse.Namespace, name: str, work: Callable[[Job], Result], steps: Callable[[Journal], Found]
) -> Found | None:
    """The results of the steps, with a journal `name` in the folder; None if the minutes are over."""
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / name
    with Journal(path, work, options.workers, resume=options.resume, minutes=options.minutes) as journal:
        try:
            return steps(journal)
        except OutOfTime:
            print("out of time: --resume continues")
            return None


def _key(job: Job) -> str:
    return json.dumps(job, sort_keys=True)


def lines(path: Path) -> Iterable[tuple[Job, Result]]:
    """The jobs that are done, and their results."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):  # the line that was being written when the study was killed
            found = json.loads(line)
            yield found["job"], found["result"]
