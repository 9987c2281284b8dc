"""Files that are replaced in one rename, and roles that keep files of their own."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

__all__ = ["KeepsFiles", "replace_file"]


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


@runtime_checkable
class KeepsFiles(Protocol):
    """A role with state too large to be copied into every checkpoint: `save` then says where in its files it stands."""

    def open(self, folder: Path, *, anew: bool) -> None:
        """Before `load` and before any event: its files lie in this folder; `anew`: what lies there is of no use."""

    def kept(self, state: Any) -> None:
        """What `save` gave is on the disk, and nobody goes back to before it."""
