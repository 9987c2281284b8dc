"""The two newest checkpoints of a folder. If the newest is damaged, the one before it serves.

    checkpoint.safetensors           the newest
    checkpoint-before.safetensors    the one before it

A checkpoint is complete and durable before it gets its name. A kill between the two renames leaves only the second
name, which then holds the newest checkpoint.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from colonnade.drivers.files import DISK, Disk, write_beside
from colonnade.protocol import state
from colonnade.protocol.errors import CheckpointError, DamagedFile

__all__ = ["BEFORE", "NEWEST", "Checkpoints"]

NEWEST, BEFORE = "checkpoint.safetensors", "checkpoint-before.safetensors"


class Checkpoints:
    """Writes and reads them. The caller holds the folder's lock."""

    def __init__(self, folder: Path, mode: int = 0o666, disk: Disk = DISK) -> None:
        self._newest, self._before = folder / NEWEST, folder / BEFORE
        self._mode, self._disk = mode, disk
        self._usable = True  # the newest on the disk, as far as known
        self.damaged: list[str] = []  # what `recover` found; each names its file

    def exist(self) -> bool:
        """Whether there is any."""
        return self._newest.exists() or self._before.exists()

    def write(self, content: dict[str, Any]) -> int:
        """Write the newest and keep the one before it; returns the size in bytes. Raises CheckpointError."""
        try:
            written = write_beside(self._newest, state.chunks(content), self._mode, self._disk)
            size = written.stat().st_size
            if self._usable and self._newest.exists():  # a damaged one must not replace the one before it
                self._disk.rename(self._newest, self._before)
            self._disk.rename(written, self._newest)
            self._disk.sync_folder(self._newest.parent)
        except OSError as error:
            raise CheckpointError(f"{self._newest}: cannot be written: {error.strerror}") from None
        self._usable = True
        return size

    def recover(self, load: Callable[[Path, Any], None]) -> bool:
        """Load the newest that is whole; returns False if there is none yet.

        `load` raises DamagedFile if a table that belongs to the checkpoint is damaged; then the one before is tried.
        If all fail, this raises DamagedFile with every damaged file.
        """
        self.damaged = []
        for path in (self._newest, self._before):
            if not path.exists():
                continue
            try:
                load(path, _content(path))
            except DamagedFile as error:
                self.damaged.append(str(error))
                self._usable = False
            else:
                self._usable = path == self._newest or self._usable
                return True
        if self.damaged:
            raise DamagedFile("; ".join(self.damaged) + "; no earlier checkpoint can be used: start a new run")
        return False


def _content(path: Path) -> Any:
    try:
        return state.unpack(path.read_bytes())
    except DamagedFile as error:
        raise DamagedFile(f"{path}: {error}") from None
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except OSError as error:  # a sector that the disk cannot read
        raise DamagedFile(f"{path}: cannot be read: {error.strerror}") from None
