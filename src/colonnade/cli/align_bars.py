"""The progress bars of an alignment."""

import asyncio
import time
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID

from colonnade.cli.progress_bars import bar_columns

__all__ = ["Bars"]

SAY_EVERY_S = 10.0  # if there is no terminal for a bar


class Bars:
    """One bar per member: points raised, rate and time left."""

    def __init__(self, shown: bool = True) -> None:
        screen = Console(stderr=True)
        self._shown = shown and screen.is_terminal
        self._progress = Progress(*bar_columns(), console=screen, transient=True, disable=not self._shown)
        self._tasks: dict[str, TaskID] = {}
        self._began = self._said = time.monotonic()

    def __enter__(self) -> "Bars":
        self._progress.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.__exit__(*error)

    def show(self, bars: dict[str, Any]) -> None:
        """Show the progress of all members."""
        for name, (done, whole) in bars.items():
            if not whole:
                self._began = time.monotonic()  # not all members are here yet
                continue
            if name not in self._tasks:
                self._tasks[name] = self._progress.add_task(name, total=whole, text="")
            rate = done / max(time.monotonic() - self._began, 1e-9)
            text = f"{done:,} of {whole:,} points, {rate:,.0f}/s"
            self._progress.update(self._tasks[name], completed=done, text=text)

    async def watch(self, process: Any) -> Any:
        """Run one member under its bars; without a terminal, write a line to the log now and then."""
        running = asyncio.ensure_future(process.run())
        try:
            while not running.done():
                await asyncio.wait([running], timeout=0.25)
                bars = process.application.bars()
                self.show(bars)
                if not self._shown and time.monotonic() - self._said >= SAY_EVERY_S:
                    self._said = time.monotonic()
                    far = {name: f"{done}/{whole}" for name, (done, whole) in bars.items() if whole}
                    if far:
                        process.log.info("raising", **far)
            return running.result()
        finally:
            running.cancel()
