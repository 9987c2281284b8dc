"""The `[protocol]` fields of `swift`."""

from typing import Literal

from colonnade.algorithms.vafl.config import VaflOptions

__all__ = ["SwiftOptions"]


class SwiftOptions(VaflOptions, frozen=True):
    """The options of `vafl`, with other defaults."""

    table: Literal["warm", "zeros", "mean"] = "mean"
    in_flight: int = 2
    smaller_batches: bool = True
    average: bool = True
