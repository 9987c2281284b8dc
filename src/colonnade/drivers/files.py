"""Files that are replaced in one rename, and locks."""

import fcntl
import os
import time
from collections.abc import Iterable
from pathlib import Path

from colonnade.protocol.errors import CheckpointError

__all__ = ["CUT_OFF_S", "lock_file", "replace_file"]

CUT_OFF_S = 600.0  # after so long, a node that was cut off has noticed it (Ray's takes three minutes)


def replace_file(path: Path, chunks: Iterable[bytes | memoryview], mode: int = 0o666) -> None:
    """Write a file beside its place, make it durable, and move it there: a kill leaves the old or the new one whole."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # the rename, too
    finally:
        os.close(directory)


def lock_file(path: Path, patience_s: float = 0.0) -> int:
    """Two processes on one state would ruin it; closing the number unlocks, and so does the end of the process."""
    end = time.monotonic() + patience_s
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except OSError:
            if time.monotonic() >= end:
                os.close(file)
                advice = "another process uses this state; stop it, or choose another folder"
                raise CheckpointError(f"{path.parent}: {advice}") from None
        time.sleep(0.2)
