"""Arrays that stay in their files: looked at through a mapping, in memory only where they were looked at."""

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.data.task import Array

# A row looked at costs up to 64 KiB (the kernel maps what lies around it, if that is at hand): at most 256 MiB of them.
ROWS_BEFORE_RETURN = 4096


class Mapping:
    """A file's bytes, read-only; rows far apart are read without their neighbours."""

    def __init__(self, file: int | Path) -> None:
        handle = os.open(file, os.O_RDONLY) if isinstance(file, Path) else file
        try:
            self.bytes = mmap.mmap(handle, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        finally:
            if handle is not file:
                os.close(handle)
        self._looked_at = 0

    def array(self, dtype: np.dtype[Any], shape: Sequence[int], offset: int = 0) -> Array:
        """A view of a part of the file."""
        count = int(np.prod(shape))
        found: Array = np.frombuffer(self.bytes, dtype, count, offset).reshape(shape)
        return found

    def at_random(self) -> None:
        """From here on single rows are read: do not read ahead."""
        self.bytes.madvise(mmap.MADV_RANDOM)

    def looked_at(self, rows: int) -> None:
        """Give memory back every so many rows; the system keeps what it has room for."""
        self._looked_at += rows
        if self._looked_at >= ROWS_BEFORE_RETURN:
            self.give_back()

    def give_back(self) -> None:
        """Nothing of the file counts as this process's memory until it is looked at again."""
        self._looked_at = 0
        self.bytes.madvise(mmap.MADV_DONTNEED)
