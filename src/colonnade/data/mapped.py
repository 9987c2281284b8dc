"""Arrays that stay in their files: read through a memory mapping, page by page, when they are used.

The operating system takes that memory back when it needs it; until then it counts as memory of the process.
"""

import mmap
import os
import sys
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.data.task import Array
from colonnade.protocol.errors import DataError

LARGE = 2**26  # bytes: smaller files may be read ahead


class MappedFile:
    """A file's bytes, read-only; rows that are far apart can be read without their neighbours."""

    def __init__(self, file: int | Path) -> None:
        handle = os.open(file, os.O_RDONLY) if isinstance(file, Path) else file
        try:
            self.bytes = mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
        finally:
            if handle is not file:
                os.close(handle)

    def array(self, dtype: np.dtype[Any], shape: Sequence[int], offset: int = 0) -> Array:
        """Return a view of a part of the file; nothing is copied."""
        found: Array = np.frombuffer(self.bytes, dtype, prod(shape), offset).reshape(shape)
        return found

    def at_random(self) -> None:
        """Stop reading ahead, because only single rows are read from here on."""
        if sys.platform != "win32" and len(self.bytes) > LARGE:
            self.bytes.madvise(mmap.MADV_RANDOM)

    def give_back(self) -> None:
        """Release the pages after a pass over the whole file; they no longer count as memory of this process."""
        if sys.platform != "win32":
            self.bytes.madvise(mmap.MADV_DONTNEED)

    def leave_cache(self, path: Path) -> None:
        """Take a large file out of the system's cache after a pass over it.

        The pass read ahead in large pieces. A single row would bring a whole piece into this process's memory.
        """
        if sys.platform == "linux" and len(self.bytes) > LARGE:
            self.give_back()
            handle = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)


class MappedRows:
    """Rows of an array in a file, gathered on access; indexed by rows as the array would be.

    `order` lists the rows of the file that belong to it, and `take` returns the values of given rows of the file.
    Without them, the rows are those of the array.
    """

    def __init__(
        self,
        x: Array,
        order: Array | None = None,
        take: Callable[[Array], Array] | None = None,
        width: int | None = None,
    ) -> None:
        self._x, self._order, self._take = x, order, take
        self.shape: tuple[int, ...] = (
            len(x if order is None else order),
            *(x.shape[1:] if width is None else (width,)),
        )
        self.dtype, self.ndim = np.dtype(np.float32) if take is not None else x.dtype, x.ndim

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Array) -> Array:
        if self._order is None or self._take is None:
            found = self._x[rows]
            return found.copy() if isinstance(rows, slice) else found  # a list of rows is a copy already
        return self._take(self._order[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype)


def map_npy(path: Path) -> tuple[MappedFile, Array]:
    """Map the array of an .npy file; it stays in the file."""
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
        if not found.flags.c_contiguous:
            raise ValueError("it is stored column by column; apply np.ascontiguousarray and save it again")
        mapping = MappedFile(path)
        return mapping, mapping.array(found.dtype, found.shape, found.offset)
    except (OSError, ValueError, EOFError, AttributeError) as error:
        raise DataError(f"{path}: cannot be read as .npy: {error}") from error
