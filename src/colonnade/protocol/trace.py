"""The recorded trace: a chain h ← sha256(h ‖ record) over every event that a driver delivers.

A record holds time, order, roles, header and length; with `full` also the payload's bytes. Two runs with the same
digest did the same things in the same order.

Where this installation and this processor have the compiled chain (`_trace.c`), it computes the same digests faster.
"""

import hashlib
import struct
from collections.abc import Callable

__all__ = ["COMPILED", "Trace", "fixed_part"]

fixed_part = struct.Struct("<qBqiiI").pack  # of a record: time, rank, order, sender, receiver, size
_sha256 = hashlib.sha256
_MANY = 256  # records to hash in one go, while the hashing code is still in the processor's cache


def _one_by_one(digest: bytes, records: list[bytes]) -> bytes:
    """The digest after a digest and a list of records."""
    for record in records:
        digest = _sha256(digest + record).digest()
    return digest


_SIZES = [bytes(size) for size in (0, 23, 24, 31, 32, 87, 88, 200)]  # around the ends of SHA-256's blocks

try:
    from colonnade.protocol import _trace
except ImportError:
    COMPILED = False
else:  # any compiler may have made it
    COMPILED = _trace.supported() and _trace.chained(bytes(32), _SIZES) == _one_by_one(bytes(32), _SIZES)

_chained: Callable[[bytes, list[bytes]], bytes] = _trace.chained if COMPILED else _one_by_one


class Trace:
    """The running digest of a trace.

    `append` takes a whole record (`fixed_part` and header) and hashes nothing yet: a driver that calls it for every
    event also calls `hash_if_many` from time to time.
    """

    __slots__ = ("_digest", "_hashed", "_waiting", "append", "full")

    def __init__(self, full: bool = False) -> None:
        self._digest = bytes(32)
        self._waiting: list[bytes] = []
        self._hashed = 0
        self.full = full
        # With `full`, hash at once, so as not to keep whole payloads.
        self.append: Callable[[bytes], None] = self._append_and_hash if full else self._waiting.append

    def add(self, time: int, rank: int, order: int, sender: int, receiver: int, size: int, header: bytes) -> None:
        self.append(fixed_part(time, rank, order, sender, receiver, size) + header)
        if len(self._waiting) >= _MANY:
            self._hash()

    def hash_if_many(self) -> None:
        """Keep the list of records short."""
        if len(self._waiting) >= _MANY:
            self._hash()

    def _append_and_hash(self, record: bytes) -> None:
        self._waiting.append(record)
        self._hash()

    def _hash(self) -> None:
        self._digest = _chained(self._digest, self._waiting)
        self._hashed += len(self._waiting)
        self._waiting.clear()

    @property
    def events(self) -> int:
        """How many events were added."""
        return self._hashed + len(self._waiting)

    @events.setter
    def events(self, events: int) -> None:
        self._hashed = events - len(self._waiting)

    @property
    def digest(self) -> bytes:
        """The digest over all events that were added."""
        self._hash()
        return self._digest

    @digest.setter
    def digest(self, digest: bytes) -> None:
        self._hashed += len(self._waiting)
        self._waiting.clear()
        self._digest = digest

    @property
    def hexdigest(self) -> str:
        return self.digest.hex()
