"""One role as a process: its event loop, the parent that it ends with, and how it leaves."""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from colonnade.drivers.processes.node import Node

__all__ = ["leave_if_stopped", "run_process"]

T = TypeVar("T")


def run_process(work: Coroutine[Any, Any, T], parent: int | None) -> T:
    """A server or party until its end; if the parent process goes away, it stops as if by SIGTERM.

    On uvloop, which costs less for each message than asyncio's own loop; Windows has only the latter. What the start
    has made stays: walking over all of it would stop the traffic for 90 ms now and then.
    """
    if sys.platform == "win32":
        run = asyncio.run
    else:
        from uvloop import run  # noqa: PLC0415 - `up` needs none

    gc.freeze()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return run(_with_parent(work, parent))
    finally:  # a closed uvloop would go on swallowing signals: the next phase could not be ended
        for number, handler in before.items():
            signal.signal(number, handler)


def leave_if_stopped(node: "Node") -> None:
    """Python would wait for a job that runs, which may take minutes; a node that starts again computes it again."""
    if node.stopped and node.jobs.running:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


async def _with_parent(work: Coroutine[Any, Any, T], parent: int | None) -> T:
    if parent is None:
        return await work

    async def watch() -> None:
        while os.getppid() == parent:
            await asyncio.sleep(1.0)
        signal.raise_signal(signal.SIGTERM)

    watcher = asyncio.ensure_future(watch())
    try:
        return await work
    finally:
        watcher.cancel()
