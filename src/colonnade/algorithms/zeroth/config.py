"""The `[protocol]` fields of the zeroth-order methods."""

from collections.abc import Callable
from typing import Literal

import numpy as np

from colonnade.algorithms.method import Options
from colonnade.algorithms.zeroth.directions import directions as drawn
from colonnade.algorithms.zeroth.directions import estimate as two_point
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.messages import Array

__all__ = ["CascadedOptions", "FrozenOptions", "SynZooOptions", "TableOptions", "ZerothOptions", "ZooOptions"]

MAX_DIRECTIONS = 64  # each direction tells a party more about the same rows
# For a server that estimates its own step. They cost it forward passes, no upload, and tell the parties nothing.
SERVER_DIRECTIONS = 16


class ZerothOptions(Options, frozen=True, kw_only=True):
    """What all zeroth-order methods share: the rules for questions to the server."""

    min_batch: int = 8  # the server answers no smaller batch, which would reveal the labels
    extra_queries: int = 8  # how much more often than an even walk a party may ask about one row

    # Fixed for methods without these options:
    smoothing = 1e-3
    directions = 0
    distribution = "gaussian"
    server_directions = 0
    server_zeroth = ""  # the method's name, if the server estimates its step too

    def check(self, parties: int) -> None:
        """Raise ConfigError for options that cannot work."""
        if self.min_batch < 1:
            raise ConfigError("protocol.min_batch", self.min_batch, "must be 1 row or more")
        if self.extra_queries < 0:
            raise ConfigError("protocol.extra_queries", self.extra_queries, "must be 0 or more")

    @property
    def estimates(self) -> bool:
        """See `Options.estimates`: parties without directions never learn."""
        return self.directions > 0

    def estimate(self, party: int, rise: Callable[[Array], float], dimension: int, seed: bytes) -> Array:
        """Eq. (3), averaged over the directions."""
        u = drawn(seed, self.directions, dimension, self.distribution)
        differences = np.array([rise(np.float32(self.smoothing) * one) for one in u])
        return two_point(differences, u, self.smoothing, self.distribution)

    def check_estimate(self) -> None:
        """Raise ConfigError for a useless μ, or for no direction (nothing is learned) or too many (memory)."""
        if not 0 < self.smoothing < float("inf"):
            raise ConfigError("protocol.smoothing", self.smoothing, "must be above 0; the paper uses 0.001")
        if not 1 <= self.directions <= MAX_DIRECTIONS:
            raise ConfigError("protocol.directions", self.directions, f"must be between 1 and {MAX_DIRECTIONS}")
        if self.server_zeroth and not 1 <= self.server_directions <= MAX_DIRECTIONS:
            advice = f"must be between 1 and {MAX_DIRECTIONS}"
            raise ConfigError("protocol.server_directions", self.server_directions, advice)

    def check_batch(self, size: int) -> None:
        """Raise ConfigError for batches that the server would not answer. Called when roles are made and rows known."""
        if size < self.min_batch:
            advice = (
                f"the server refuses batches of fewer than protocol.min_batch = {self.min_batch} rows; raise "
                "train.batch_size"
            )
            raise ConfigError("train.batch_size", size, advice)


class TableOptions(ZerothOptions, frozen=True, kw_only=True):
    """Asynchronous training with VAFL's table. t and the bounded delay work here too."""

    batches: Literal["own", "shared"] = "own"
    table: Literal["warm", "zeros"] = "warm"
    max_delay: int | None = None
    t: int = 1
    pause_s: float | list[float] = 0.0
    on_lost: Literal["continue", "wait"] = "continue"

    def threshold(self, parties: int) -> int:
        """Return t, the number of distinct parties that an update takes."""
        return self.t

    def pause_of(self, party: int) -> float:
        """Return the mean pause of one party in seconds."""
        return self.pause_s[party] if isinstance(self.pause_s, list) else self.pause_s

    def check(self, parties: int) -> None:
        """Raise ConfigError for options that cannot work."""
        super().check(parties)
        if self.max_delay is not None and self.max_delay < 1:
            raise ConfigError("protocol.max_delay", self.max_delay, "must be 1 or more, or left out for no bound")
        if not 1 <= self.t <= parties:
            raise ConfigError("protocol.t", self.t, f"must be between 1 and the number of parties, {parties}")
        pauses = self.pause_s if isinstance(self.pause_s, list) else [self.pause_s] * parties
        if len(pauses) != parties or not all(0 <= pause < float("inf") for pause in pauses):
            raise ConfigError(
                "protocol.pause_s", self.pause_s, f"give one value, or {parties} values, of 0 or more seconds"
            )


class FrozenOptions(TableOptions, frozen=True, kw_only=True):
    """Options of parties that never learn. They estimate nothing, so there are no directions to choose."""


class CascadedOptions(TableOptions, frozen=True, kw_only=True):
    """Algorithm 1: parties step by Eq. (3)."""

    smoothing: float = 1e-3  # μ
    directions: int = 1  # per upload; the party averages their estimates
    distribution: Literal["gaussian", "sphere"] = "gaussian"  # of u

    def check(self, parties: int) -> None:
        """Raise ConfigError for options that cannot work."""
        super().check(parties)
        self.check_estimate()


class ZooOptions(CascadedOptions, frozen=True, kw_only=True):
    """Both the server and the parties step by Eq. (3)."""

    server_directions: int = SERVER_DIRECTIONS

    server_zeroth = "zoo"


class SynZooOptions(ZerothOptions, frozen=True, kw_only=True):
    """App. B Algorithm 2: lock-step, every step waits for all parties."""

    smoothing: float = 1e-3
    directions: int = 1
    server_directions: int = SERVER_DIRECTIONS
    distribution: Literal["gaussian", "sphere"] = "gaussian"

    server_zeroth = "syn-zoo"

    def threshold(self, parties: int) -> int:
        return parties

    def check(self, parties: int) -> None:
        """Raise ConfigError for options that cannot work."""
        super().check(parties)
        self.check_estimate()
