"""The recorded trace: a chain h ← sha256(h ‖ record) over every event that a driver delivers.

A record holds time, order, roles, header and length; with `full` also the payload's bytes. Two runs with the same
digest did the same things in the same order.
"""

import hashlib
import struct

__all__ = ["Trace"]

_RECORD = struct.Struct("<qBqiiI")  # time, rank, order, sender, receiver, size
_sha256 = hashlib.sha256
_MANY = 256  # records to hash in one go, while the hashing code is still in the processor's cache


class Trace:
    """The running digest of a trace."""

    __slots__ = ("_digest", "_waiting", "events", "full")

    def __init__(self, full: bool = False) -> None:
        self._digest = bytes(32)
        self._waiting: list[bytes] = []
        self.events = 0
        self.full = full

    def add(self, time: int, rank: int, order: int, sender: int, receiver: int, size: int, header: bytes) -> None:
        self.events += 1
        self._waiting.append(_RECORD.pack(time, rank, order, sender, receiver, size) + header)
        if self.full or len(self._waiting) >= _MANY:  # with `full`, hash at once, so as not to keep whole payloads
            self._hash()

    def _hash(self) -> None:
        digest = self._digest
        for record in self._waiting:
            digest = _sha256(digest + record).digest()
        self._digest = digest
        self._waiting.clear()

    @property
    def digest(self) -> bytes:
        """The digest over all events that were added."""
        self._hash()
        return self._digest

    @digest.setter
    def digest(self, digest: bytes) -> None:
        self._waiting.clear()
        self._digest = digest

    @property
    def hexdigest(self) -> str:
        return self.digest.hex()
