"""The audit log, OUT/audit.jsonl: which member or caller did what, in lines that are chained by hashes.

    {"n": 7, "time": "2026-11-16T21:40:03Z", "role": "server", "event": "joined", "fields": {"peer": "bank"}, "hash": …}

It takes the events of the log that are in `AUDITED`, whatever the log's level. `Once` has limited their number before,
so an outsider cannot fill the disk. It never holds an id of a row, a token or a data value. Lines are synced at most
once a second: a power cut loses at most the last second.
"""

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

from colonnade.drivers.chained_file import ChainedFile, utc
from colonnade.protocol.foreign import harmless

__all__ = ["AUDITED", "AUDIT_FILE", "AuditLog"]

AUDIT_FILE = "audit.jsonl"
SYNC_AFTER_S = 1.0
LONGEST_TEXT = 300
AUDITED = frozenset(
    {
        # this process
        "started",
        "ended",
        "failed",
        "damaged file",
        # members
        "joined",
        "disconnected",
        "lost",
        "refused",
        "handshake not finished",
        "not connected, trying again",
        "members changed",
        "certificate renewed",
        "aligned",
        # predictions
        "answered",
        "a party declined a question",
        "refused ids of a question",
        "dropped a message of the server",
        "closed a connection",
        "no caller is admitted",
        "token made",
        "token revoked",
        # the limits of the log itself
        "many changes of one peer: for a while no more are written",
        "many different warnings: further ones are not written for a while",
    }
)


class AuditLog:
    """Appends audited events. A disk that cannot be written does not end the process: `fault` says so."""

    def __init__(self, path: Path, role: str, most_bytes: int = 16 * 2**20, keep: int = 32) -> None:
        self._role, self._file = role, ChainedFile(path, most_bytes, keep)
        self.fault = ""  # why the last line could not be written; "" if it was
        self._alone = threading.Lock()
        self._sync: threading.Timer | None = None

    def note(self, event: str, fields: dict[str, Any]) -> None:
        """Write a line. Any thread may call this."""
        plain = {key: _plain(value) for key, value in fields.items()}
        try:
            self._file.append({"time": utc(time.time()), "role": self._role, "event": event, "fields": plain})
            self.fault = ""
        except OSError as error:
            self.fault = f"{self._file.path}: {error.strerror or error}"
            return
        with self._alone:
            if self._sync is None:
                self._sync = threading.Timer(SYNC_AFTER_S, self._sync_now)
                self._sync.daemon = True
                self._sync.start()

    def _sync_now(self) -> None:
        with self._alone:
            self._sync = None
        try:
            self._file.sync()
        except OSError as error:
            self.fault = f"{self._file.path}: {error.strerror or error}"

    def close(self) -> None:
        """Sync and close."""
        with self._alone:
            if self._sync is not None:
                self._sync.cancel()
                self._sync = None
        with contextlib.suppress(OSError):
            self._file.sync()
        self._file.close()


def _plain(value: Any) -> Any:
    """A value as JSON can hold it, and in one line."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in list(value)[:100]]
    return harmless(str(value), LONGEST_TEXT)
