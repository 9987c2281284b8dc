"""The `[protocol]` fields of `sync`."""

from colonnade.algorithms.method import Options

__all__ = ["SyncOptions"]


class SyncOptions(Options, frozen=True):
    """Lock-step: nothing to choose. It always waits for all parties."""

    def threshold(self, parties: int) -> int:
        """All of them."""
        return parties
