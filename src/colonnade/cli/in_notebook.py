"""Progress in a notebook: one output that is replaced, and removed at the end.

rich needs ipywidgets and a thread to draw in notebooks, and only warns if these are missing. An output with a display
id needs neither, and every front end shows it once.
"""

import io
from importlib import import_module
from typing import Any

from rich.console import Console, RenderableType

__all__ = ["NotebookLive", "in_notebook"]

WIDTH = 110


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    return Console().is_jupyter


class NotebookLive:
    """The part of rich's `Live` that Colonnade uses."""

    def __init__(self) -> None:
        # Not a Jupyter console: that would display everything that it prints a second time.
        self.console = Console(file=io.StringIO(), force_jupyter=False, force_terminal=False, width=WIDTH)
        self._handle: Any = None

    def __enter__(self) -> "NotebookLive":
        # Imported by name: it has no types here, and exists only in a notebook.
        display = import_module("IPython.display").display
        self._handle = display({"text/plain": ""}, raw=True, display_id=True)
        return self

    def __exit__(self, *error: Any) -> None:
        self._handle.update({"text/plain": ""}, raw=True)

    def update(self, renderable: RenderableType) -> None:
        """Replace what is shown."""
        with self.console.capture() as text:
            self.console.print(renderable)
        self._handle.update({"text/plain": text.get()}, raw=True)
