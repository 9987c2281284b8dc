"""The file of a privacy ledger: appended, synced and locked. `privacy.ledger` defines the content."""

import os
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from colonnade.drivers.files import BINARY, sync_folder, try_lock
from colonnade.privacy.accountant import Account
from colonnade.privacy.ledger import audit
from colonnade.protocol.errors import CheckpointError, NotWritable

__all__ = ["LedgerFile", "read_ledger"]


class LedgerFile:
    """Implements `protocol.ports.Lines`. `open` creates and locks the file."""

    _file: int | None = None

    def __init__(self, path: Path, alone: AbstractContextManager[Any] | None = None) -> None:
        self.path, self.name = path, str(path)
        self.alone = nullcontext() if alone is None else alone  # a lock, if jobs run on several threads

    def open(self) -> bytes:
        """Lock the file and return its content; raises CheckpointError if another process has it open."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | BINARY, 0o600)
        try:
            self._lock(file)
            if os.fstat(file).st_size:
                return self.read()
            sync_folder(self.path.parent)  # makes the name of a new file durable
            return b""
        except BaseException:
            self.close()
            raise

    def _lock(self, file: int) -> None:
        try:
            try_lock(file)
        except OSError:
            raise NotWritable(f"{self.path}: another process writes this ledger; stop it first") from None

    def read(self) -> bytes:
        return _content(self.path)

    def append(self, line: bytes) -> None:
        """Write the whole line, or raise CheckpointError."""
        try:
            written = os.write(self._number, line)
        except OSError as error:
            raise NotWritable(f"{self.path}: cannot be written ({error.strerror}): nothing is uploaded") from None
        if written != len(line):
            raise NotWritable(f"{self.path}: only {written} of {len(line)} bytes were written: nothing is uploaded")

    def sync(self) -> None:
        """Make all lines so far survive a power cut."""
        try:
            os.fsync(self._number)
        except OSError as error:
            raise NotWritable(f"{self.path}: cannot be synced ({error.strerror}): nothing is uploaded") from None

    def cut_back(self, size: int) -> None:
        """Keep only the first `size` bytes."""
        os.ftruncate(self._number, size)

    def time(self) -> str:
        """UTC in ISO 8601, with seconds."""
        return datetime.now(UTC).isoformat(timespec="seconds")

    @property
    def _number(self) -> int:
        if self._file is None:
            raise CheckpointError(f"{self.path}: is closed: nothing is uploaded")
        return self._file

    def close(self) -> None:
        """Close the file, which unlocks it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __del__(self) -> None:
        self.close()


def read_ledger(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], Account]:
    """The terms, the releases and their total cost; raises CheckpointError with the line if the chain is broken."""
    return audit(_content(path), str(path))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
