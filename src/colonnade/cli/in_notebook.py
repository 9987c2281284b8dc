"""Progress in a notebook: one output that is replaced, and removed at the end.

rich draws in notebooks with ipywidgets and a thread, and only warns where these are not installed. An output with a
display id needs neither, and every front end shows it once.
"""

import io
from importlib import import_module
from typing import Any

from rich.console import Console, RenderableType

__all__ = ["NotebookLive", "in_notebook"]

WIDTH = 110


def in_notebook() -> bool:
    """Whether this process is the kernel of one."""
    return Console().is_jupyter


class NotebookLive:
    """What is used of rich's `Live`."""

    def __init__(self) -> None:
        # Not a Jupyter console: that would display by itself what it prints, a second time.
        self.console = Console(file=io.StringIO(), force_jupyter=False, force_terminal=False, width=WIDTH)
        self._handle: Any = None

    def __enter__(self) -> "NotebookLive":
        # By name: it has no types here, and is there only in a notebook.
        display = import_module("IPython.display").display
        self._handle = display({"text/plain": ""}, raw=True, display_id=True)
        return self

    def __exit__(self, *error: Any) -> None:
        self._handle.update({"text/plain": ""}, raw=True)

    def update(self, renderable: RenderableType) -> None:
        """Show this instead of what was shown before."""
        with self.console.capture() as text:
            self.console.print(renderable)
        self._handle.update({"text/plain": text.get()}, raw=True)
