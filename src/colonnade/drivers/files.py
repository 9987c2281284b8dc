"""Files that are replaced in one rename (a kill at any moment leaves the old or the new one whole), and locks."""

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

from colonnade.protocol.errors import CheckpointError

__all__ = ["lock_folder", "replace_file"]


def replace_file(path: Path, chunks: Iterable[bytes | memoryview], mode: int = 0o666) -> None:
    """Write a file beside its place, make it durable, and move it there."""
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


def lock_folder(folder: Path) -> int:
    """Two processes on one state would ruin it; closing the number unlocks, and so does the end of the process."""
    file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise CheckpointError(f"{folder}: another process uses this state; stop it, or choose another folder") from None
    return file
