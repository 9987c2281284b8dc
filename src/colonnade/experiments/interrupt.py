"""Ctrl-C while a run computes: the event at hand is finished first, so that a checkpoint can be written."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType

__all__ = ["on_first_interrupt"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_first_interrupt(ask: Callable[[], None]) -> Iterator[None]:
    """Call `ask` at the first SIGINT or SIGTERM; a second one does what it does without this.

    A signal that the process ignores, or that kills it without a handler of Python, is left alone. So are all signals
    in a thread that is not the main one: Python lets only that one handle them.
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
