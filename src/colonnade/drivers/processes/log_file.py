"""A log file of bounded size: PATH, and at most `keep` older ones, PATH.1 being the newest of them.

logrotate works, too: the file is opened again when its name belongs to another file, or when `reopen` was called
(`serve`, `join` and `align` do so at SIGUSR1). A log that cannot be written does not end the process: its lines go to
the error stream.
"""

import contextlib
import io
import os
import sys
import time
from pathlib import Path

from colonnade.drivers.files import BINARY
from colonnade.protocol.errors import ConfigError

__all__ = ["LogFile"]

LOOK_S = 1.0  # how often it looks whether the file was renamed


class LogFile(io.TextIOBase):
    """Takes lines as a text stream. The first line opens the file; `check` opens it at once and raises ConfigError."""

    def __init__(self, path: Path, most_bytes: int, keep: int) -> None:
        self.path, self._most, self._keep = path, most_bytes, keep
        self._file: int | None = None
        self._size, self._looked_at = 0, 0.0

    def check(self) -> "LogFile":
        """Raise ConfigError now if the file cannot be opened."""
        try:
            self._open()
        except OSError as error:
            raise ConfigError("--log-file", str(self.path), f"cannot be written: {error.strerror}") from None
        return self

    def reopen(self) -> None:
        """Open the file again before the next line. A signal handler may call this."""
        self._looked_at = -LOOK_S
        self._size = -1

    def write(self, text: str) -> int:
        """Write text, which is one line."""
        data = text.encode("utf-8", "backslashreplace")
        try:
            self._look()
            self._size += os.write(self._open(), data)
        except OSError:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(text)
        return len(text)

    def _look(self) -> None:
        now = time.monotonic()
        if self._file is not None and now - self._looked_at >= LOOK_S:
            self._looked_at = now
            if self._size < 0 or not self._is_current(self._file):
                self.close_file()
        if self._file is not None and self._size >= self._most:
            self.close_file()
            self._rotate()

    def _is_current(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), self.path.stat())
        except FileNotFoundError:
            return False

    def _rotate(self) -> None:
        names = [self.path, *(Path(f"{self.path}.{number}") for number in range(1, self._keep + 1))]
        for number in range(self._keep, 0, -1):
            if names[number - 1].exists():
                names[number - 1].replace(names[number])
        if not self._keep:
            self.path.unlink()

    def _open(self) -> int:
        if self._file is None:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | BINARY, 0o640)
            self._size = os.fstat(self._file).st_size
            self._looked_at = time.monotonic()
        return self._file

    def close_file(self) -> None:
        """Close the file; the next line opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def close(self) -> None:
        """Close the file for good."""
        self.close_file()
        super().close()
