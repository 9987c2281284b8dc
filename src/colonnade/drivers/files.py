"""Files that are replaced in one rename, locks, and reads and writes at a place: on Windows, too."""

import os
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from colonnade.protocol.errors import CheckpointError

__all__ = ["BINARY", "CUT_OFF_S", "lock_file", "read_at", "replace_file", "sync_folder", "try_lock", "write_at"]

CUT_OFF_S = 600.0  # after so long, a node that was cut off has noticed it (Ray's takes three minutes)


if sys.platform == "win32":
    import msvcrt

    BINARY = os.O_BINARY  # a flag of os.open: without it Windows changes the bytes of line ends
    LOCKED_BYTE = 2**31 - 16  # far behind the end: a locked byte cannot be read through another descriptor
    _position = threading.Lock()

    def try_lock(file: int) -> None:
        """Lock a file for this process; OSError if another process has it."""
        with _position:
            os.lseek(file, LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)

    def read_at(file: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Fill the buffers from this place; how many bytes there were."""
        found = 0
        with _position:
            os.lseek(file, offset, os.SEEK_SET)
            for buffer in buffers:
                part = os.read(file, len(buffer))
                buffer[: len(part)] = part
                found += len(part)
        return found

    def write_at(file: int, parts: Sequence[bytes | memoryview], offset: int) -> int:
        """Write the parts at this place; how many bytes were written."""
        with _position:
            os.lseek(file, offset, os.SEEK_SET)
            return os.write(file, b"".join(parts))

    def sync_folder(folder: Path) -> None:
        """Windows opens no folders: a rename is durable when the file system says so."""

else:
    import fcntl

    BINARY = 0
    read_at, write_at = os.preadv, os.pwritev

    def try_lock(file: int) -> None:
        """Lock a file for this process; OSError if another process has it."""
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def sync_folder(folder: Path) -> None:
        """Make the names in a folder durable."""
        directory = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def replace_file(path: Path, chunks: Iterable[bytes | memoryview], mode: int = 0o666) -> None:
    """Write a file beside its place, make it durable, and move it there: a kill leaves the old or the new one whole."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, mode), "wb") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)  # the rename, too


def lock_file(path: Path, patience_s: float = 0.0) -> int:
    """Two processes on one state would ruin it; closing the number unlocks, and so does the end of the process."""
    end = time.monotonic() + patience_s
    file = os.open(path, os.O_RDWR | os.O_CREAT | BINARY, 0o600)
    while True:
        try:
            try_lock(file)
            return file
        except OSError:
            if time.monotonic() >= end:
                os.close(file)
                advice = "another process uses this state; stop it, or choose another folder"
                raise CheckpointError(f"{path.parent}: {advice}") from None
        time.sleep(0.2)
