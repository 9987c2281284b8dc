"""A node without journal and checkpoint. After a restart it begins from nothing, and its peers are told so.

It serves roles that only answer questions about data that should not be on a disk, such as predictions by id.
"""

import asyncio
import os
import time

from colonnade.drivers.processes.journal import Record
from colonnade.drivers.processes.node import Node
from colonnade.protocol.events import Started

__all__ = ["NodeWithoutJournal"]


class _NoJournal:
    """Takes the place of a journal and stores nothing."""

    size = 0

    def append(self, record: Record, frame: bytes | memoryview = b"") -> None:
        """Discard the record."""

    def mark_closed(self) -> None:
        """Do nothing: there is nothing to sync."""

    def close(self) -> None:
        """Do nothing: no file is open."""


class NodeWithoutJournal(Node):
    """Runs one role until it is stopped."""

    def open(self) -> None:
        """Start the role; from here on events are handled."""
        self._loop = asyncio.get_running_loop()
        self._began = time.monotonic()
        self._journal = _NoJournal()  # type: ignore[assignment]
        self._give(Record(0, Started(os.urandom(32))))
        self.jobs.begin(self._loop)

    def tell(self, event: object) -> None:
        """Give the role an event that comes from neither a peer nor a clock, and that only this role knows."""
        self._give(Record(self.clock(), event))  # type: ignore[arg-type]

    def checkpoint(self) -> None:
        """Only plan the next one: there is nothing to save."""
        self._plan_checkpoint(0)
