"""Files of chained lines (`protocol.chain`) that only grow, in several generations.

    NAME.jsonl      the newest lines; at `most_bytes` it becomes NAME.1.jsonl, and that one NAME.2.jsonl
    "follows"       in the first line of a file: the hash that it follows; the chain goes on over all files
    "torn"          in the line after one that a kill or a full disk has cut off: its size and its sha256

Several processes may append to one file: each line is written under the file's lock, at the end that is found then.
"""

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from colonnade.drivers.files import BINARY, locked, make_room, sync_folder
from colonnade.protocol.chain import START, chained, follows, receipt_of
from colonnade.protocol.strict_json import to_json

__all__ = ["ChainBroken", "ChainedFile", "Verdict", "generations", "read_lines", "utc", "verify"]

MOST_LINE_BYTES = 2**18  # of a line that is read back; lines are far shorter


def utc(now: float) -> str:
    """The time of a line: UTC in ISO 8601, with seconds."""
    return _utc(int(now))


@lru_cache(2)
def _utc(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(second))


class ChainedFile:
    """Appends lines. An OSError leaves the file as it is, and the next line closes off what was written of this one."""

    def __init__(
        self,
        path: Path,
        most_bytes: int,
        keep: int,
        heading: Callable[[], dict[str, Any]] | None = None,  # the first line of a file that follows another one
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path, self._most, self._keep, self._heading, self._clock = path, most_bytes, keep, heading, clock
        self._name = str(path)
        self._file: int | None = None
        self._identity = 0, 0  # of the open file: its number and device
        self._number, self._before, self._end = 0, START, -1  # of the next line; where the file ended last
        self._alone = threading.Lock()

    def append(self, content: dict[str, Any]) -> None:
        """Write a line with the content, its number and its hash; raises OSError."""
        with self._alone:
            try:
                while (full := self._append_unless_full(content)) is not None:
                    self._close()
                    if full and sys.platform == "win32":  # which renames no open file
                        make_room(self.path, self._keep)
            except OSError:
                self._close()  # the next line looks for the end again
                raise

    def _append_unless_full(self, content: dict[str, Any]) -> bool | None:
        """Write the line and return None; else the file must be opened again: True if it was full, False if it moved"""
        file = self._open()
        with locked(file):
            size = self._size_if_current()
            if size is None:
                return False
            if size != self._end and not self._find_end(file, size):
                size = self._most  # no line in it is chained: an earlier release wrote it
            if size >= self._most:
                if sys.platform != "win32":
                    make_room(self.path, self._keep)
                return True
            if not size and self._heading is not None and _earlier(self.path, 1).exists():
                self._write(file, self._heading())
            self._write(file, content)
            return None

    def _write(self, file: int, content: dict[str, Any]) -> None:
        """Write a line at the end of the file, which is at `_end`."""
        first = {} if self._end else {"follows": self._before}
        line = chained(self._number, self._before, content | first)
        data = (to_json(line) + "\n").encode()
        if os.write(file, data) != len(data):
            raise OSError(f"{self.path}: only a part of a line was written")
        self._number, self._before, self._end = self._number + 1, line["hash"], self._end + len(data)

    def _find_end(self, file: int, size: int) -> bool:
        """Find the last line of the chain, and close off what was cut; False if the file holds no chained line."""
        if not size:
            before = _last_line(_earlier(self.path, 1))
            self._number, self._before, self._end = (0, START, 0) if before is None else (*_place(before), 0)
            return True
        found = _end_of(self.path)
        if found is None:
            return False
        line, rest = found
        self._number, self._before = _place(line)
        self._end = size
        if rest:
            closed = rest if rest.endswith(b"\n") else rest + b"\n"
            self._end += os.write(file, closed[len(rest) :])
            torn = {"bytes": len(closed), "sha256": hashlib.sha256(closed).hexdigest()}
            self._write(file, {"time": utc(self._clock()), "event": "torn line", "torn": torn})
        return True

    def _open(self) -> int:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            new = not self.path.exists()
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | BINARY, 0o600)
            self._end = -1
            found = os.fstat(self._file)
            self._identity = found.st_ino, found.st_dev
            if new:
                sync_folder(self.path.parent)
        return self._file

    def _size_if_current(self) -> int | None:
        """The file's size; None if another file, or none, has its name now. An open file keeps its number."""
        try:
            current = os.stat(self._name)  # noqa: PTH116 - half the time of `Path.stat`, for every line
        except FileNotFoundError:
            return None
        return current.st_size if (current.st_ino, current.st_dev) == self._identity else None

    def sync(self) -> None:
        """Make the lines survive a power cut."""
        with self._alone:
            if self._file is not None:
                os.fsync(self._file)

    def close(self) -> None:
        with self._alone:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _earlier(path: Path, generation: int) -> Path:
    return path.with_name(f"{path.stem}.{generation}{path.suffix}")


def _place(line: dict[str, Any]) -> tuple[int, str]:
    """Number and hash that the next line needs."""
    return line["n"] + 1, line["hash"]


def _end_of(path: Path) -> tuple[dict[str, Any], bytes] | None:
    """The last line that is part of a chain, and the bytes after it; None if there is no such line."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 4 * MOST_LINE_BYTES))
        data = file.read()
    end = data.rfind(b"\n") + 1
    while end > 0:
        begin = data.rfind(b"\n", 0, end - 1) + 1
        line = _decoded(data[begin:end])
        if line is not None:
            return line, data[end:]
        end = begin
    return None


def _last_line(path: Path) -> dict[str, Any] | None:
    found = _end_of(path) if path.is_file() else None
    return None if found is None else found[0]


def _decoded(text: bytes) -> dict[str, Any] | None:
    """A line that has a number and a hash; None for any other bytes."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    fits = isinstance(line, dict) and isinstance(line.get("n"), int) and isinstance(line.get("hash"), str)
    return line if fits else None


# Reading


class ChainBroken(Exception):
    """A line that does not follow from the lines before it."""

    def __init__(self, path: Path, place: int, why: str) -> None:
        super().__init__(f"{path}: line {place}: {why}")
        self.path, self.place, self.why = path, place, why


@dataclass(slots=True)
class Verdict:
    """What `verify` found in an unbroken chain."""

    lines: int = 0
    head: str = ""  # the receipt of the newest line
    holds: bool = False  # whether it has the line that the caller asked for
    notes: list[str] = field(default_factory=list)


def generations(path: Path) -> list[Path]:
    """The files of a chain that are there, the oldest first."""
    names = (name.stem.rpartition(".") for name in path.parent.glob(f"{path.stem}.*{path.suffix}"))
    numbers = sorted(
        (int(number) for stem, _, number in names if stem == path.stem and number.isdecimal()), reverse=True
    )
    files = [_earlier(path, number) for number in numbers]  # a gap between them breaks the chain
    return [*files, path] if path.exists() else files


def read_lines(files: list[Path]) -> Iterator[dict[str, Any]]:
    """All lines that are JSON objects, without a check of the chain; torn ones are left out."""
    for path in files:
        for text in _texts(path):
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(line, dict):
                yield line


def verify(files: list[Path], wanted: str = "") -> Verdict:
    """Check the chain over these files; raises ChainBroken at the first line that does not fit."""
    reader = _Reader(wanted)
    for path in files:
        reader.read(path)
    return reader.found


class _Reader:
    """Follows a chain from file to file."""

    def __init__(self, wanted: str) -> None:
        self.found, self._wanted = Verdict(), wanted
        self._next: tuple[int, str] | None = None  # number and hash of the next line; None: no line so far

    def read(self, path: Path) -> None:
        """Check one file."""
        if self._next is None and path.stat().st_size and not any(b'"hash"' in text for text in _texts(path)):
            self.found.notes.append(f"{path}: holds no chain: an earlier release wrote it, or its first line is torn")
            return
        torn, since = b"", 0
        for place, text in enumerate(_texts(path), start=1):
            line = _decoded(text) if text.endswith(b"\n") else None
            if line is None or not self._fits(path, line):
                since = since if torn else place
                torn += text
                if len(torn) > 4 * MOST_LINE_BYTES:
                    raise ChainBroken(path, since, EDITED)
            elif torn and line.get("torn") != {"bytes": len(torn), "sha256": hashlib.sha256(torn).hexdigest()}:
                raise ChainBroken(path, since, EDITED)
            else:
                torn = b""
                self._take(line)
        if b"\n" in torn:
            raise ChainBroken(path, since, EDITED)
        if torn:
            self.found.notes.append(f"{path}: the last line is torn: the next start closes it off")

    def _fits(self, path: Path, line: dict[str, Any]) -> bool:
        """Whether the line follows. The first line of the oldest file says itself what it follows."""
        if self._next is not None:
            return follows(line, *self._next)
        start = line.get("follows")
        if not isinstance(start, str) or not follows(line, line["n"], start) or (line["n"] == 0) != (start == START):
            return False
        if line["n"]:
            self.found.notes.append(f"{path}: begins with line number {line['n']}: older files were removed")
        return True

    def _take(self, line: dict[str, Any]) -> None:
        self._next = _place(line)
        self.found.lines += 1
        self.found.head = receipt_of(line)
        self.found.holds = self.found.holds or self.found.head == self._wanted


def _texts(path: Path) -> Iterator[bytes]:
    with path.open("rb") as lines:
        while text := lines.readline(MOST_LINE_BYTES):
            yield text


EDITED = "does not follow from the lines before it: it was edited, or a line was removed or added"
