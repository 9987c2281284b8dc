"""A party's audit of the questions that it was asked, in OUT/predict/audit.jsonl: numbers, never ids.

    {"time": "2026-11-16T21:40:03Z", "who": "server 3f2a…", "ids": 5, "answered": 4, "refused": 1, "why": "not aligned"}

`ids - answered - refused` ids are unknown to the party. At `predict.audit_mb` the file becomes audit.1.jsonl. The next
file begins with the totals so far, so that many questions cannot hide the earlier ones.
"""

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from colonnade.algorithms.prediction.messages import MALFORMED, QUOTA, Question
from colonnade.drivers.files import BINARY

__all__ = ["Audit", "Line", "Totals", "read_audit"]

NAME, OLD = "audit.jsonl", "audit.1.jsonl"
STAMP = "%Y-%m-%dT%H:%M:%SZ"
DAY_S = 86_400


class Totals(msgspec.Struct):
    """The sums of all lines so far."""

    since: str = ""  # the time of the first line
    questions: int = 0
    ids: int = 0
    answered: int = 0
    refused: int = 0


class Line(msgspec.Struct, omit_defaults=True):
    """One question; or, as the first line of a file, the totals of the files before it."""

    time: str
    who: str = ""
    ids: int = 0
    answered: int = 0
    refused: int = 0
    why: str = ""
    before: Totals | None = None

    def age_s(self, now: float) -> float:
        """Seconds since the question."""
        return now - datetime.strptime(self.time, STAMP).replace(tzinfo=UTC).timestamp()


class Audit:
    """Writes the lines, each in one write."""

    def __init__(self, folder: Path, who: str, most_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._who, self._most, self._clock = folder, who, most_bytes, clock
        self.totals, lines = read_audit(folder)
        now = clock()
        taken = (line for line in lines if line.why not in (QUOTA, MALFORMED))
        self.rows_of_a_day = sum(line.ids for line in taken if line.age_s(now) < DAY_S)
        self._file: int | None = None  # opened for the first question

    def note(self, question: Question) -> None:
        """Write a line; raises OSError, and then the party must not answer."""
        stamp = time.strftime(STAMP, time.gmtime(self._clock()))
        line = Line(stamp, self._who, question.ids, question.answered, question.refused, question.why)
        file = self._file = self._open() if self._file is None else self._file
        os.write(file, msgspec.json.encode(line) + b"\n")
        _add(self.totals, line)
        if os.fstat(file).st_size >= self._most:
            self.close()
            (self._folder / NAME).replace(self._folder / OLD)
            self._file = self._open()
            os.write(self._file, msgspec.json.encode(Line(stamp, before=self.totals)) + b"\n")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._folder / NAME
        torn = path.is_file() and not (b"\n" + path.read_bytes()).endswith(b"\n")
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | BINARY, 0o600)
        if torn:
            os.write(file, b"\n")
        return file


def read_audit(folder: Path) -> tuple[Totals, list[Line]]:
    """The totals, and the lines that are still there, the oldest first. A line that a kill has torn is left out."""
    totals, lines = Totals(), []
    for name in (OLD, NAME):
        for line in _lines_of(folder / name):
            if line.before is not None:
                totals = line.before
            else:
                _add(totals, line)
                lines.append(line)
    return totals, lines


def _lines_of(path: Path) -> Iterator[Line]:
    if not path.is_file():
        return
    for text in path.read_bytes().splitlines():
        try:
            yield msgspec.json.decode(text, type=Line)
        except msgspec.MsgspecError:
            continue


def _add(totals: Totals, line: Line) -> None:
    totals.since = totals.since or line.time
    totals.questions += 1
    totals.ids += line.ids
    totals.answered += line.answered
    totals.refused += line.refused
