"""Files that are replaced in one rename: a kill at any moment leaves the old or the new one whole."""

import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["replace_file"]


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
