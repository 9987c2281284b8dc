"""File operations on POSIX and Windows: atomic replacement, locks, and reads and writes at an offset."""

import os
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from colonnade.protocol.errors import CheckpointError

__all__ = ["BINARY", "CUT_OFF_S", "lock_file", "read_at", "replace_file", "sync_folder", "try_lock", "write_at"]

CUT_OFF_S = 600.0  # within this time a node that was cut off has noticed it (Ray takes three minutes)


if sys.platform == "win32":
    import msvcrt

    BINARY = os.O_BINARY  # flag for os.open: without it Windows translates line ends
    LOCKED_BYTE = 2**31 - 16  # far beyond the end: Windows lets no other descriptor read a locked byte
    _position = threading.Lock()

    def try_lock(file: int) -> None:
        """Lock the file for this process; raises OSError if another process holds the lock."""
        with _position:
            os.lseek(file, LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)

    def read_at(file: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Fill the buffers from `offset` on; returns the number of bytes read."""
        found = 0
        with _position:
            os.lseek(file, offset, os.SEEK_SET)
            for buffer in buffers:
                part = os.read(file, len(buffer))
                buffer[: len(part)] = part
                found += len(part)
        return found

    def write_at(file: int, parts: Sequence[bytes | memoryview], offset: int) -> int:
        """Write the parts at `offset`; returns the number of bytes written."""
        with _position:
            os.lseek(file, offset, os.SEEK_SET)
            return os.write(file, b"".join(parts))

    def sync_folder(folder: Path) -> None:
        """Do nothing: Windows cannot open a folder, so the file system decides when a rename is durable."""

else:
    import fcntl

    BINARY = 0
    read_at, write_at = os.preadv, os.pwritev

    def try_lock(file: int) -> None:
        """Lock the file for this process; raises OSError if another process holds the lock."""
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def sync_folder(folder: Path) -> None:
        """Sync the folder, so that renames and new names in it survive a power cut."""
        directory = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def replace_file(path: Path, chunks: Iterable[bytes | memoryview], mode: int = 0o666) -> None:
    """Replace a file in one rename: a kill leaves either the old file or the new one, complete and durable."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, mode), "wb") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)  # makes the rename durable


def lock_file(path: Path, patience_s: float = 0.0) -> int:
    """Lock a file, because two processes would corrupt one state; returns the descriptor.

    Closing the descriptor unlocks, and so does the end of the process. Raises CheckpointError if another process still
    holds the lock after `patience_s`.
    """
    end = time.monotonic() + patience_s
    file = os.open(path, os.O_RDWR | os.O_CREAT | BINARY, 0o600)
    while True:
        try:
            try_lock(file)
            return file
        except OSError:
            if time.monotonic() >= end:
                os.close(file)
                advice = "another process uses this folder; stop it, or choose another folder"
                raise CheckpointError(f"{path.parent}: {advice}") from None
        time.sleep(0.2)
