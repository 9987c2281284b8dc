"""The recorded trace: a chain h ← sha256(h ‖ record) over every event that a driver delivers.

A record holds time, order, roles, header and length; with `full` also the payload's bytes. Two runs with the
same digest did the same things in the same order.
"""

import hashlib
import struct

__all__ = ["Trace"]

_RECORD = struct.Struct("<qBqiiI")  # time, rank, order, sender, receiver, size
_sha256 = hashlib.sha256


class Trace:
    """The running digest."""

    __slots__ = ("digest", "events", "full")

    def __init__(self, full: bool = False) -> None:
        self.digest = bytes(32)
        self.events = 0
        self.full = full

    def add(self, time: int, rank: int, order: int, sender: int, receiver: int, size: int, header: bytes) -> None:
        """Append one delivered event."""
        self.events += 1
        self.digest = _sha256(self.digest + _RECORD.pack(time, rank, order, sender, receiver, size) + header).digest()

    @property
    def hexdigest(self) -> str:
        """The digest as text."""
        return self.digest.hex()
