"""A node that remembers nothing: no log, no checkpoint. Whoever starts it again starts afresh, and its peers learn so.

For roles whose work ends with an answer, about data that should not lie on a disk: predictions, by ids.
"""

import asyncio
import os
import time

from colonnade.drivers.processes.journal import Record
from colonnade.drivers.processes.node import Node
from colonnade.protocol.events import Started

__all__ = ["FleetingNode"]


class _NoJournal:
    """In the place of a log."""

    size = 0

    def append(self, record: Record, frame: bytes | memoryview = b"") -> None:
        """Forget it."""

    def mark_closed(self) -> None:
        """Nothing is missing."""

    def close(self) -> None:
        """Nothing is open."""


class FleetingNode(Node):
    """Runs one role until it is stopped."""

    def open(self) -> None:
        """Begin; from here on events are handled."""
        self._loop = asyncio.get_running_loop()
        self._began = time.monotonic()
        self._journal = _NoJournal()  # type: ignore[assignment]
        self._give(Record(0, Started(os.urandom(32))))
        self.jobs.begin(self._loop)

    def tell(self, event: object) -> None:
        """The door for what comes from neither a peer nor a clock: an event that only this role knows."""
        self._give(Record(self.clock(), event))  # type: ignore[arg-type]

    def checkpoint(self) -> None:
        """There is none."""
        self._plan_checkpoint(0)
