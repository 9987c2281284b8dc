"""Exact bytes: by direction and by kind of message, evaluation apart."""

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Traffic"]


@dataclass(slots=True)
class Traffic:
    """What crossed the links."""

    messages: int = 0
    bytes_up: int = 0  # towards the server
    bytes_down: int = 0  # towards the parties
    bytes_relayed: int = 0  # of those, from party to party
    evaluation_bytes: int = 0
    duplicates_dropped: int = 0
    undeliverable: int = 0
    repeated: int = 0  # transmissions after a loss
    by_kind: dict[str, list[int]] = field(default_factory=dict)  # name → [messages, bytes]

    def count(self, kind: str, up: bool, size: int, transmissions: int = 1) -> None:
        """One message, transmitted so many times."""
        total = size * transmissions
        self.messages += 1
        self.repeated += transmissions - 1
        if up:
            self.bytes_up += total
        else:
            self.bytes_down += total
        entry = self.by_kind.get(kind)
        if entry is None:
            entry = self.by_kind[kind] = [0, 0]
        entry[0] += 1
        entry[1] += total

    def count_between(self, kind: str, size: int, transmissions: int = 1) -> None:
        """One message from party to party."""
        self.count(kind, False, size, transmissions)
        self.bytes_relayed += size * transmissions

    def count_relayed(self, size: int) -> None:
        """The server carried a frame from party to party; whether there is a message in it, it does not know."""
        self.count_between("relayed", size)
        self.messages -= 1

    def save(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    def load(self, saved: dict[str, Any]) -> None:
        """The reverse of `save`."""
        for name, value in saved.items():
            setattr(self, name, value)
