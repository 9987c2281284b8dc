"""Logs: one line per change of state, as text or JSON. They never contain a data value.

Some events also go to the audit log, if there is one (see `audit`).
"""

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from io import TextIOBase
from typing import Any, TextIO

from colonnade.drivers.processes.audit import AUDITED, AuditLog
from colonnade.protocol.foreign import harmless
from colonnade.protocol.strict_json import to_json

__all__ = ["Log", "Once"]

LONGEST_LINE = 2000  # characters of an event or a field; an event may quote another member
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_NAMES = {level: name for name, level in _LEVELS.items()}


class Log:
    """Writes lines, for example `log.info("party lost", peer="bank", after_s=10)`."""

    def __init__(
        self, role: str, *, as_json: bool = False, level: str = "info", stream: TextIO | TextIOBase | None = None
    ) -> None:
        self.role, self._json, self._level = role, as_json, _LEVELS[level]
        self.stream: TextIO | TextIOBase = stream or sys.stderr
        self.audit: AuditLog | None = None
        self.limited: list[Once] = []  # those that write here
        self.tap: Callable[[str, str, dict[str, Any]], None] | None = None  # gets each line: level, event and fields

    def debug(self, what: str, **fields: Any) -> None:
        """Log a detail for debugging."""
        self._write(logging.DEBUG, what, fields)

    def info(self, what: str, **fields: Any) -> None:
        """Log a change of state."""
        self._write(logging.INFO, what, fields)

    def warning(self, what: str, **fields: Any) -> None:
        """Log something that the operator may want to look at."""
        self._write(logging.WARNING, what, fields)

    def error(self, what: str, **fields: Any) -> None:
        """Log something that ends this node."""
        self._write(logging.ERROR, what, fields)

    def audited(self, what: str, **fields: Any) -> None:
        """Write only to the audit log."""
        if self.audit is not None:
            self.audit.note(what, fields)

    def close_audit(self) -> None:
        """Write how often audited events were counted but not written, and close the audit log."""
        for once in self.limited:
            for what, count in once.take_unwritten().items():
                if what in AUDITED:
                    self.audited(what, repeated=count)
        if self.audit is not None:
            self.audit.close()
            self.audit = None

    def _write(self, level: int, what: str, fields: dict[str, Any]) -> None:
        if what in AUDITED:
            self.audited(what, **fields)
        name = _NAMES[level]
        if self.tap is not None:
            self.tap(name, what, fields)
        if level < self._level:
            return
        now = time.time()
        if self._json:
            stamp = f"{_date_and_time(int(now))}.{int(now * 1000) % 1000:03d}Z"
            line = to_json(
                {"time": stamp, "level": name, "role": self.role, "event": what, **fields}, default=str, warn=False
            )
        else:
            words = " ".join(f"{key}={_short(value)}" for key, value in fields.items())
            event = harmless(what, LONGEST_LINE)
            line = f"{_clock(int(now))} {name:7} {self.role}: {event} {words}".rstrip()
        self.stream.write(line + "\n")  # at once: a log file may rotate between two writes
        self.stream.flush()


@lru_cache(2)  # a busy process writes many lines within a second
def _date_and_time(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


@lru_cache(2)
def _clock(second: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(second))


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)[:LONGEST_LINE]
    return repr(text) if " " in text or not text.isprintable() else text


class Once:
    """Logs the same complaint once, and then once a minute with its count.

    The number of different complaints per minute is limited, too, so that no peer can fill the log. So is the number of
    lines about changes of one peer.
    """

    MAX_KEYS = 1000
    MAX_LINES = 100  # complaints within `every_s`
    MAX_CHANGES = 20  # of one kind and one peer within `every_s`

    def __init__(self, log: Log, every_s: float = 60.0) -> None:
        self._log, self._every_s = log, every_s
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}
        self._since, self._lines = time.monotonic(), 0
        self._changes: dict[tuple[str, str], tuple[float, int]] = {}  # since when, and how many
        self._unwritten: Counter[str] = Counter()  # complaints for which there was no room
        log.limited.append(self)

    def info(self, what: str, *, peer: str, **fields: Any) -> None:
        """Log a change of a peer, or only count it if there are too many."""
        now = time.monotonic()
        since, count = self._changes.get((what, peer), (now, 0))
        repeated = 0
        if now - since >= self._every_s:
            since, count, repeated = now, 0, max(0, count - self.MAX_CHANGES)
        self._changes[what, peer] = since, count + 1
        if count < self.MAX_CHANGES:
            self._log.info(what, peer=peer, **fields, **({"repeated": repeated} if repeated else {}))
        elif count == self.MAX_CHANGES:
            self._log.warning("many changes of one peer: for a while no more are written", of=what, peer=peer)

    def warning(self, what: str, **fields: Any) -> None:
        """Log the complaint, or only count it."""
        key = what, repr(fields)
        now = time.monotonic()
        written, count = self._seen.get(key, (-self._every_s - 1, 0))
        if now - written < self._every_s:
            self._seen[key] = (written, count + 1)
            return
        if not self._room_for_a_line(now):
            self._unwritten[what] += 1
            return
        if len(self._seen) >= self.MAX_KEYS:
            self._forget_seen()
        self._seen[key] = (now, 0)
        again = {"repeated": count} if count else {}
        self._log.warning(what, **fields, **again)

    def take_unwritten(self) -> Counter[str]:
        """How often each event was counted and not written so far; counts from zero again."""
        self._forget_seen()
        for (what, _), (_, count) in self._changes.items():
            self._unwritten[what] += max(0, count - self.MAX_CHANGES)
        self._changes.clear()
        found, self._unwritten = +self._unwritten, Counter()
        return found

    def _forget_seen(self) -> None:
        for (what, _), (_, count) in self._seen.items():
            self._unwritten[what] += count
        self._seen.clear()

    def _room_for_a_line(self, now: float) -> bool:
        if now - self._since >= self._every_s:
            self._since, self._lines = now, 0
        self._lines += 1
        if self._lines == self.MAX_LINES:
            self._log.warning("many different warnings: further ones are not written for a while")
        return self._lines < self.MAX_LINES
