"""The `[protocol]` fields of the zeroth-order methods."""

from collections.abc import Callable
from typing import Literal

import numpy as np

from colonnade.algorithms.method import Options
from colonnade.algorithms.zeroth.directions import differences, signed
from colonnade.algorithms.zeroth.directions import directions as drawn
from colonnade.algorithms.zeroth.directions import estimate as two_point
from colonnade.protocol.errors import ConfigError
from colonnade.protocol.messages import Array

__all__ = ["CascadedOptions", "FrozenOptions", "SynZooOptions", "TableOptions", "ZerothOptions", "ZooOptions"]

MAX_DIRECTIONS = 64  # losses that an upload asks for, beside that of c
PAPERS_MU = 1e-3
# For a server that estimates its own step. They cost it forward passes, no upload, and tell the parties nothing.
SERVER_DIRECTIONS = 16


class ZerothOptions(Options, frozen=True, kw_only=True):
    """What all zeroth-order methods share: the rules for questions to the server."""

    min_batch: int = 8  # the server answers no smaller batch, which would reveal the labels
    extra_queries: int = 8  # how much more often than an even walk a party may ask about one row

    # Fixed for methods without these options:
    directions = 0
    difference = "forward"
    distribution = "gaussian"
    server_directions = 0
    server_zeroth = ""  # the method's name, if the server estimates its step too

    @property
    def smoothing(self) -> float | list[float]:
        """μ, or one for each party; a field of methods whose parties estimate."""
        return PAPERS_MU

    @property
    def server_smoothing(self) -> float | None:
        """μ of the server; a field of methods whose server estimates."""
        return None

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
        u, mu = drawn(seed, self.directions, dimension, self.distribution), self.mu_of(party)
        rises = [rise(np.float32(mu) * one) for one in signed(u, self.difference == "central")]
        return two_point(differences(np.array([0.0, *rises]), len(u)), u, mu, self.distribution)

    @property
    def probes(self) -> int:
        """How many perturbed embeddings an upload has, and how many losses answer them."""
        return self.directions * (2 if self.difference == "central" else 1)

    def mu_of(self, party: int | None) -> float:
        """Return μ of one party, or of the server (None)."""
        given = self.smoothing
        if party is not None:
            return given[party] if isinstance(given, list) else given
        if self.server_smoothing is not None:
            return self.server_smoothing
        return PAPERS_MU if isinstance(given, list) else given

    def check_estimate(self, parties: int) -> None:
        """Raise ConfigError for a useless μ, or for no direction (nothing is learned) or too many (memory)."""
        given = self.smoothing
        if isinstance(given, list) and len(given) != parties:
            raise ConfigError("protocol.smoothing", given, f"a list needs one value for each of {parties} parties")
        for mu in given if isinstance(given, list) else [given]:
            if not 0 < mu < float("inf"):
                raise ConfigError("protocol.smoothing", given, "must be above 0; the paper uses 0.001")
        if not 0 < self.mu_of(None) < float("inf"):
            raise ConfigError("protocol.server_smoothing", self.server_smoothing, "must be above 0")
        # Each direction tells a party more about the same rows, and each central one as much as two.
        most = MAX_DIRECTIONS // (self.probes // self.directions) if self.directions > 0 else MAX_DIRECTIONS
        if not 1 <= self.directions <= most:
            raise ConfigError("protocol.directions", self.directions, f"must be between 1 and {most}")
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

    smoothing: float | list[float] = PAPERS_MU  # μ, or one for each party
    directions: int = 1  # per upload; the party averages their estimates
    difference: Literal["forward", "central"] = "forward"  # ĥ(w + μu) − h(w), or half of ĥ(w + μu) − ĥ(w − μu)
    distribution: Literal["gaussian", "sphere"] = "gaussian"  # of u

    def check(self, parties: int) -> None:
        """Raise ConfigError for options that cannot work."""
        super().check(parties)
        self.check_estimate(parties)


class ZooOptions(CascadedOptions, frozen=True, kw_only=True):
    """Both the server and the parties step by Eq. (3)."""

    server_directions: int = SERVER_DIRECTIONS
    server_smoothing: float | None = None  # μ of the server; left out: as `smoothing`, or 0.001 if that is a list

    server_zeroth = "zoo"


class SynZooOptions(ZerothOptions, frozen=True, kw_only=True):
    """App. B Algorithm 2: lock-step, every step waits for all parties."""

    smoothing: float | list[float] = PAPERS_MU
    directions: int = 1
    difference: Literal["forward", "central"] = "forward"
    server_directions: int = SERVER_DIRECTIONS
    server_smoothing: float | None = None
    distribution: Literal["gaussian", "sphere"] = "gaussian"

    server_zeroth = "syn-zoo"

    def threshold(self, parties: int) -> int:
        return parties

    def check(self, parties: int) -> None:
        """Raise ConfigError for options that cannot work."""
        super().check(parties)
        self.check_estimate(parties)
