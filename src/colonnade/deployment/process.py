"""One role as a process: its event loop, the parent that it ends with, and how it exits."""

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
_HANDLED = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if sys.platform != "win32" else [])]


def run_process(work: Coroutine[Any, Any, T], parent: int | None) -> T:
    """Run a server or party to its end. If the parent process ends, it stops as if by SIGTERM.

    It uses uvloop, which costs less per message than asyncio's own loop; Windows has only asyncio's. `gc.freeze` keeps
    the garbage collector from scanning the objects of the start, which would stop the traffic for 90 ms now and then.
    """
    if sys.platform == "win32":
        run = asyncio.run
    else:
        from uvloop import run  # noqa: PLC0415 - `up` needs none

    gc.freeze()
    before = {number: signal.getsignal(number) for number in _HANDLED}
    try:
        return run(_with_parent(work, parent))
    finally:  # a closed uvloop would still swallow signals, and the next phase could not be ended
        for number, handler in before.items():
            signal.signal(number, handler)


def leave_if_stopped(node: "Node") -> None:
    """Exit without waiting for a running job, which may take minutes. After a restart the node computes it again."""
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
