"""Ports: what a role keeps outside its memory. A driver passes them in; a role never sees a path or a file.

`Storage` gives a role tables of rows that are too large for a checkpoint. `Lines` holds a privacy ledger. `Releases` is
the driver's side of a party's guard.
"""

from contextlib import AbstractContextManager
from typing import Any, Protocol

from colonnade.protocol.messages import Array

__all__ = ["Lines", "Releases", "Rows", "Storage"]


class Rows(Protocol):
    """A table of rows of bytes that can be taken back to a checkpoint; zeros at first."""

    def read(self, rows: Array) -> Array:
        """Sorted rows, uint8 (rows, bytes)."""

    def replace(self, rows: Array, before: Array, after: Array, spans: list[tuple[int, int]]) -> None:
        """Write sorted rows; `before` and `after` differ only in these spans of bytes."""

    def position(self) -> Any:
        """What `back_to` and `keep_from` take: plain values, for a checkpoint."""

    def back_to(self, position: Any) -> None:
        """Undo what was written since."""

    def keep_from(self, position: Any) -> None:
        """A checkpoint with this position is on the disk: no older one is needed any more."""


class Storage(Protocol):
    """Where a role's tables lie."""

    def rows(self, name: str, count: int, row_bytes: int, hint: str = "") -> Rows:
        """The table of this name; `hint` ends the error of a full disk, and says what would need less room."""


class Lines(Protocol):
    """A durable list of lines that one process writes. Every failure is a CheckpointError with the name."""

    name: str  # for people
    alone: AbstractContextManager[Any]  # held while lines are looked at or added: jobs may run on several threads

    def open(self) -> bytes:
        """Lock the lines for this process; returns what they hold."""

    def read(self) -> bytes:
        """What they hold."""

    def append(self, line: bytes) -> None:
        """Write a line, ending included; all of it, or it raises."""

    def sync(self) -> None:
        """Until here they survive a power cut."""

    def cut_back(self, size: int) -> None:
        """Forget all but so many bytes."""

    def time(self) -> str:
        """The time of day, for a line."""

    def close(self) -> None:
        """Write no more, and unlock."""


class Releases(Protocol):
    """What a driver does with a party's guard."""

    @property
    def on(self) -> bool:
        """Whether there is anything to guard."""

    @property
    def is_kept(self) -> bool:
        """Whether releases are written to lines that outlive the process."""

    def keep(self, lines: Lines) -> None:
        """Write every release to these lines before it leaves; what they hold already counts."""

    def cut_back(self) -> None:
        """Forget releases after the checkpoint; only for a simulator, which makes the same ones again."""

    def close(self) -> None:
        """Write no more."""
