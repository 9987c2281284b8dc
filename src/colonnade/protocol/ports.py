"""Ports: storage that a role keeps outside its memory. A driver passes them in; a role never sees a path or a file.

`Storage` gives a role tables of rows that are too large for a checkpoint. `Lines` holds a privacy ledger. `Releases` is
the driver's side of a party's guard.
"""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from colonnade.protocol.messages import Array

if TYPE_CHECKING:
    from colonnade.protocol.role import PrivacySpent

__all__ = ["Lines", "Releases", "Rows", "Storage"]


class Rows(Protocol):
    """A table of rows of bytes, zeros at first. It can go back to its content at a checkpoint."""

    def read(self, rows: Array) -> Array:
        """The given rows, which are sorted, as uint8 (rows, bytes)."""

    def replace(self, rows: Array, before: Array, after: Array, spans: list[tuple[int, int]]) -> None:
        """Write sorted rows; `before` and `after` differ only in these spans of bytes."""

    def position(self) -> Any:
        """The current position, as plain values for a checkpoint; `back_to` and `keep_from` take it."""

    def back_to(self, position: Any) -> None:
        """Undo all writes since this position."""

    def keep_from(self, position: Any) -> None:
        """A checkpoint with this position is on the disk, so older positions are no longer needed."""


class Storage(Protocol):
    """Holds a role's tables."""

    def rows(self, name: str, count: int, row_bytes: int, hint: str = "") -> Rows:
        """The table of this name. The error of a full disk ends with `hint`, which says what needs less space."""


class Lines(Protocol):
    """A durable list of lines that one process writes. Every failure is a CheckpointError with the name."""

    name: str  # for messages to the operator
    alone: AbstractContextManager[Any]  # held to read or add lines, because jobs may run on several threads

    def open(self) -> bytes:
        """Lock the lines for this process; returns their content."""

    def read(self) -> bytes:
        """The content of all lines."""

    def append(self, line: bytes) -> None:
        """Write a line, including its line ending; raises if not all of it was written."""

    def sync(self) -> None:
        """Make all lines written so far survive a power cut."""

    def cut_back(self, size: int) -> None:
        """Remove everything after the first `size` bytes."""

    def time(self) -> str:
        """The time of day, for a line."""

    def close(self) -> None:
        """Stop writing, and release the lock."""


class Releases(Protocol):
    """The operations of a party's guard that a driver calls."""

    @property
    def on(self) -> bool:
        """Whether the party perturbs and accounts its releases."""

    @property
    def is_kept(self) -> bool:
        """Whether releases are written to lines that outlive the process."""

    @property
    def epsilon(self) -> float | None:
        """ε spent so far; None if releases are not accounted."""

    @property
    def epsilon_budget(self) -> float | None:
        """The ε of the party's budget; None without a budget."""

    def keep(self, lines: Lines) -> None:
        """Write every release to these lines before it leaves; the releases they already hold count."""

    def cut_back(self) -> None:
        """Remove releases after the checkpoint. For the simulator only: it makes the same releases again."""

    def close(self) -> None:
        """Write no more releases."""

    def summary(self) -> "PrivacySpent | None":
        """The account so far; None if nothing is accounted."""
