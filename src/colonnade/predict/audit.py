"""A party's audit of the questions that it was asked, in OUT/predict/audit.jsonl: numbers, never ids.

    {"time": "2026-11-16T21:40:03Z", "who": "server 3f2a…", "ids": 5, "answered": 4, "refused": 1, "why": "not aligned"}

`ids - answered - refused` ids are unknown to the party. At `predict.audit_mb` the file becomes audit.1.jsonl. The next
file begins with the totals so far, so that many questions cannot hide the earlier ones. The lines are chained
(`drivers.chained_file`): `colonnade audit verify` finds an edit.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from colonnade.algorithms.prediction.messages import MALFORMED, QUOTA, Question
from colonnade.drivers.chained_file import ChainedFile, generations, read_lines, utc

__all__ = ["Audit", "Line", "Totals", "read_audit"]

NAME, OLD_FILES = "audit.jsonl", 1
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
    torn: dict[str, int | str] | None = None  # of the line before this one, which a kill has cut off

    def age_s(self, now: float) -> float:
        """Seconds since the question."""
        return now - datetime.strptime(self.time, STAMP).replace(tzinfo=UTC).timestamp()


class Audit:
    """Writes the lines, each in one write."""

    def __init__(self, folder: Path, who: str, most_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self._who, self._clock = who, clock
        self.totals, lines = read_audit(folder)
        now = clock()
        taken = (line for line in lines if line.why not in (QUOTA, MALFORMED))
        self.rows_of_a_day = sum(line.ids for line in taken if line.age_s(now) < DAY_S)
        self._file = ChainedFile(folder / NAME, most_bytes, OLD_FILES, self._heading, clock)

    def note(self, question: Question) -> None:
        """Write a line; raises OSError, and then the party must not answer."""
        now = utc(self._clock())
        line = {
            "time": now,
            "who": self._who,
            "ids": question.ids,
            "answered": question.answered,
            "refused": question.refused,
            "why": question.why,
        }
        self._file.append({key: value for key, value in line.items() if value})  # a `Line`
        _add(self.totals, now, question)

    def _heading(self) -> dict[str, object]:
        found: dict[str, object] = msgspec.to_builtins(Line(utc(self._clock()), before=self.totals))
        return found

    def close(self) -> None:
        self._file.close()


def read_audit(folder: Path) -> tuple[Totals, list[Line]]:
    """The totals, and the lines that are still there, the oldest first. A line that a kill has torn is left out."""
    totals, lines = Totals(), []
    for found in read_lines(generations(folder / NAME)):
        try:
            line = msgspec.convert(found, Line)
        except msgspec.MsgspecError:
            continue
        if line.before is not None:
            totals = line.before
        elif line.torn is None:
            _add(totals, line.time, line)
            lines.append(line)
    return totals, lines


def _add(totals: Totals, when: str, question: Line | Question) -> None:
    totals.since = totals.since or when
    totals.questions += 1
    totals.ids += question.ids
    totals.answered += question.answered
    totals.refused += question.refused
