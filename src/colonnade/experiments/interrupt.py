"""Ctrl-C during a run: the current event is finished first, so that a checkpoint can be written."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType

__all__ = ["on_first_interrupt"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_first_interrupt(ask: Callable[[], None]) -> Iterator[None]:
    """Call `ask` at the first SIGINT or SIGTERM; a second one has its usual effect.

    A signal that the process ignores, or that kills it without a Python handler, is left alone. So are all signals in a
    thread that is not the main one: Python handles signals only in the main thread.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS} if current_thread() is main_thread() else {}
    handled = {number: handler for number, handler in before.items() if callable(handler)}

    def restore() -> None:
        for number, handler in handled.items():
            signal.signal(number, handler)

    def first(_number: int, _frame: FrameType | None) -> None:
        restore()
        ask()

    for number in handled:
        signal.signal(number, first)
    try:
        yield
    finally:
        restore()
