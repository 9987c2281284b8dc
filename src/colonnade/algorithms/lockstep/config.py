"""The `[protocol]` fields of `sync`."""

from colonnade.algorithms.method import Options

__all__ = ["SyncOptions"]


class SyncOptions(Options, frozen=True):
    """Options of lock-step training, which always waits for all parties."""

    average: bool = False  # evaluation and prediction use an average of the weights

    def threshold(self, parties: int) -> int:
        return parties
