"""File operations on POSIX and Windows: atomic replacement, locks, and reads and writes at an offset.

Everything that a role reads back after a restart is written through a `Disk`. Tests replace it with one that loses,
tears and misdirects writes.
"""

import os
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from pathlib import Path

from colonnade.protocol.errors import NotWritable

__all__ = [
    "BINARY",
    "CUT_OFF_S",
    "DISK",
    "Disk",
    "lock_file",
    "locked",
    "make_room",
    "read_at",
    "replace_file",
    "sync_folder",
    "try_lock",
    "write_at",
    "write_beside",
]

PARTS = 512  # written at once; the system takes 1,024
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

    def _set_lock(file: int, held: bool) -> None:
        with _position:
            os.lseek(file, LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(file, msvcrt.LK_LOCK if held else msvcrt.LK_UNLCK, 1)

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

    def _set_lock(file: int, held: bool) -> None:
        fcntl.flock(file, fcntl.LOCK_EX if held else fcntl.LOCK_UN)

    def sync_folder(folder: Path) -> None:
        """Sync the folder, so that renames and new names in it survive a power cut."""
        directory = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


if hasattr(os, "fdatasync"):
    _sync_data = os.fdatasync
elif sys.platform == "darwin":

    def _sync_data(file: int) -> None:
        fcntl.fcntl(file, fcntl.F_FULLFSYNC)  # fsync leaves the data in the disk's own cache

else:
    _sync_data = os.fsync


class Disk:
    """The operations that change files, and the boot id. Each raises OSError as the system does."""

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        """Open a file for writing; returns the descriptor."""
        return os.open(path, flags | BINARY, mode)

    def close(self, file: int) -> None:
        os.close(file)

    def write(self, file: int, parts: Sequence[bytes | memoryview], offset: int) -> int:
        """Write the parts at `offset`; returns the number of bytes written, which may be fewer."""
        return write_at(file, parts, offset)

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def sync(self, file: int) -> None:
        """Make the file's content survive a power cut."""
        os.fsync(file)

    def sync_data(self, file: int) -> None:
        """As `sync`, without times and other properties that no reader needs."""
        _sync_data(file)

    def rename(self, old: Path, new: Path) -> None:
        """Replace `new`, if it is there."""
        old.replace(new)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def sync_folder(self, folder: Path) -> None:
        """Make the names in the folder survive a power cut."""
        sync_folder(folder)

    def boot_id(self) -> bytes:
        """An id that changes when the machine restarts; zeros if the system gives none."""
        try:
            text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
            return bytes.fromhex(text.strip().replace("-", ""))[:16].ljust(16, b"\0")
        except (OSError, ValueError):
            return bytes(16)  # not Linux: a restart cannot be detected, so every boot looks the same


DISK = Disk()


def replace_file(path: Path, chunks: Iterable[bytes | memoryview], mode: int = 0o666, disk: Disk = DISK) -> None:
    """Replace a file in one rename: a kill leaves either the old file or the new one, complete and durable."""
    disk.rename(write_beside(path, chunks, mode, disk), path)
    disk.sync_folder(path.parent)  # makes the rename durable


def write_beside(path: Path, chunks: Iterable[bytes | memoryview], mode: int, disk: Disk) -> Path:
    """Write a complete, durable file beside `path`; returns its path, for a rename."""
    temporary = path.with_name(f".{path.name}.tmp")
    disk.unlink(temporary)
    file = disk.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        size, chunks = 0, iter(chunks)
        while parts := list(islice(chunks, PARTS)):
            size += _write_all(disk, file, parts, size)
        disk.sync(file)
    finally:
        disk.close(file)
    return temporary


def _write_all(disk: Disk, file: int, parts: list[bytes | memoryview], offset: int) -> int:
    wanted, done = sum(map(len, parts)), disk.write(file, parts, offset)
    while done < wanted:  # a call writes at most 2 GB
        done += disk.write(file, [memoryview(b"".join(parts))[done:]], offset + done)
    return done


def lock_file(path: Path, patience_s: float = 0.0) -> int:
    """Lock a file, because two processes would corrupt one state; returns the descriptor.

    Closing the descriptor unlocks, and so does the end of the process. Raises NotWritable if another process still
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
                raise NotWritable(f"{path.parent}: {advice}") from None
        time.sleep(0.2)


class locked:
    """Hold the file's lock while this context is open; waits for a process that holds it.

    A generator as the context would take three times as long after a pause, when its code is not in the cache.
    """

    __slots__ = ("_file",)

    def __init__(self, file: int) -> None:
        self._file = file

    def __enter__(self) -> None:
        _set_lock(self._file, True)

    def __exit__(self, *_: object) -> None:
        _set_lock(self._file, False)


def make_room(path: Path, keep: int) -> None:
    """Rename a full file: NAME.jsonl becomes NAME.1.jsonl, that one NAME.2.jsonl; at most `keep` old files stay."""
    old = [path, *(path.with_name(f"{path.stem}.{number}{path.suffix}") for number in range(1, max(1, keep) + 1))]
    for newer, older in reversed(list(pairwise(old))):
        if newer.exists():
            newer.replace(older)
