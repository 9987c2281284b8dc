"""Runs many calls of one function in a few processes of this machine, one call at a time in each.

After Ctrl-C this process interrupts every call in progress once, so that the call can save its state, and waits for it.
A terminal sends Ctrl-C to its whole foreground group. The processes leave that group; otherwise Ctrl-C would interrupt
them twice. A process whose parent is gone interrupts itself.
"""

import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from threading import Thread
from typing import Any

from colonnade.protocol.errors import ColonnadeError

__all__ = ["in_turn"]

LOOK_S = 0.5


def in_turn(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], processes: int
) -> Iterator[tuple[int, Any] | None]:
    """Index and result of each call as it ends; for a failed call, the cause in words. None every `LOOK_S` seconds.

    A caller that stops early must close the iterator, which interrupts the calls in progress.
    """
    waiting, team = deque(enumerate(calls)), list[_Worker]()
    try:
        while waiting or team:
            while waiting and len(team) < processes:
                team.append(_Worker(function, *waiting.popleft()))
            heard = wait([worker.connection for worker in team], LOOK_S)
            for worker in [worker for worker in team if worker.connection in heard]:
                try:
                    said = worker.connection.recv()
                except (EOFError, ConnectionError):
                    worker.process.join()
                    said = (f"its process ended with code {worker.process.exitcode}",)
                    team.remove(worker)
                if said is None:
                    worker.is_up = True
                    continue
                ended = worker.call
                if worker in team and waiting:
                    worker.give(*waiting.popleft())
                elif worker in team:
                    team.remove(worker)
                    worker.dismiss()
                yield ended, said[0]
            if not heard:
                yield None
    finally:
        for worker in team:
            worker.interrupt()
        for worker in team:
            worker.process.join()


class _Worker:
    """A process, and the call that it is busy with."""

    def __init__(self, function: Callable[..., Any], call: int, values: tuple[Any, ...]) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy the locks of torch's threads
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(function, theirs), daemon=True)
        with _interrupts_blocked():  # also in the new process, until it can handle them
            self.process.start()
        theirs.close()
        self.is_up = False
        self.give(call, values)

    def give(self, call: int, values: tuple[Any, ...]) -> None:
        self.call = call
        with suppress(ConnectionError):  # the process is gone, which the next `recv` says
            self.connection.send(values)

    def dismiss(self) -> None:
        self.connection.close()
        self.process.join()

    def interrupt(self) -> None:
        """Interrupt the call; a process that is still importing has nothing to save and is ended."""
        if sys.platform == "win32" or not self.is_up or self.process.pid is None:
            self.process.terminate()
        else:
            os.kill(self.process.pid, signal.SIGINT)  # it was not joined yet, so the number is still its own


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(function: Callable[..., Any], connection: Connection) -> None:
    """Call the function with what arrives, until the connection is closed."""
    with suppress(KeyboardInterrupt, EOFError, ConnectionError):
        signal.signal(signal.SIGINT, signal.default_int_handler)  # even if the parent was started with Ctrl-C ignored
        if sys.platform != "win32":
            os.setpgrp()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        Thread(target=_end_with_parent, daemon=True).start()
        connection.send(None)
        while True:
            connection.send((_result(function, connection.recv()),))


def _result(function: Callable[..., Any], values: tuple[Any, ...]) -> Any:
    try:
        return function(*values)
    except ColonnadeError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    if sys.platform == "win32":
        os._exit(1)
    os.kill(os.getpid(), signal.SIGINT)
