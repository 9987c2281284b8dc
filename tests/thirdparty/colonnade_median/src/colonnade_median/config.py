"""The `[protocol]` fields of `median`."""

from colonnade.algorithms.method import Options
from colonnade.protocol.errors import ConfigError

__all__ = ["MedianOptions"]


class MedianOptions(Options, frozen=True):
    """How many of the parties' numbers are averaged."""

    taken: int | None = None  # of the parties' numbers; left out: the median

    def taken_of(self, parties: int) -> int:
        """As configured, or the one or two in the middle."""
        return 2 - parties % 2 if self.taken is None else self.taken

    def check(self, parties: int) -> None:
        """As many are dropped above as below."""
        taken = self.taken_of(parties)
        if not 1 <= taken <= parties or (parties - taken) % 2:
            raise ConfigError(
                "protocol.taken", taken, f"must be {parties}, {parties - 2}, …: as many go above as below"
            )
