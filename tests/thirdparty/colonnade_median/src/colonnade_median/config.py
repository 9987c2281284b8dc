"""The `[protocol]` fields of `median`."""

from colonnade.algorithms.method import Options
from colonnade.protocol.errors import ConfigError

__all__ = ["MedianOptions"]


class MedianOptions(Options, frozen=True):
    """How many of the parties' numbers are averaged."""

    kept: int | None = None  # how many of the parties' numbers; left out: the median

    def kept_of(self, parties: int) -> int:
        """As configured, or the one or two in the middle."""
        return 2 - parties % 2 if self.kept is None else self.kept

    def check(self, parties: int) -> None:
        """Drops as many numbers above as below."""
        kept = self.kept_of(parties)
        if not 1 <= kept <= parties or (parties - kept) % 2:
            raise ConfigError("protocol.kept", kept, f"must be {parties}, {parties - 2}, …: as many go above as below")
