"""Exact counts of bytes, by direction and by kind of message. Evaluation is counted separately."""

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Traffic"]


@dataclass(slots=True)
class Traffic:
    """What crossed the links. A lost transmission counts, too."""

    messages: int = 0
    bytes_up: int = 0  # towards the server
    bytes_down: int = 0  # towards the parties
    bytes_relayed: int = 0  # the part of bytes_down that goes from party to party
    evaluation_bytes: int = 0
    duplicates_dropped: int = 0
    undeliverable: int = 0
    repeated: int = 0  # transmissions after a loss
    by_kind: dict[str, list[int]] = field(default_factory=dict)  # name → [messages, bytes]

    def count(self, kind: str, up: bool, size: int, transmissions: int = 1) -> None:
        """Count one message of `size` bytes, which was transmitted `transmissions` times."""
        self.repeated += transmissions - 1
        self.count_many(kind, up, 1, size * transmissions)

    def count_many(self, kind: str, up: bool, messages: int, total: int) -> None:
        """Count messages of `total` bytes together."""
        self.messages += messages
        if up:
            self.bytes_up += total
        else:
            self.bytes_down += total
        entry = self.by_kind.get(kind)
        if entry is None:
            entry = self.by_kind[kind] = [0, 0]
        entry[0] += messages
        entry[1] += total

    def count_between(self, kind: str, size: int, transmissions: int = 1) -> None:
        """Count one message from party to party."""
        self.count(kind, False, size, transmissions)
        self.bytes_relayed += size * transmissions

    def count_relayed(self, size: int) -> None:
        """Count a frame that the server carried between parties. The server cannot tell if it holds a message."""
        self.count_between("relayed", size)
        self.messages -= 1

    def save(self) -> dict[str, Any]:
        return asdict(self)

    def load(self, saved: dict[str, Any]) -> None:
        for name, value in saved.items():
            setattr(self, name, value)
