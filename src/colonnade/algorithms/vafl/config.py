"""The `[protocol]` fields of `vafl` and `t-sync`."""

from typing import Literal

from colonnade.algorithms.method import Options
from colonnade.protocol.errors import ConfigError

__all__ = ["TSyncOptions", "VaflOptions"]

MOST_IN_FLIGHT = 8  # a party keeps a copy of its network for each batch in flight


class VaflOptions(Options, frozen=True):
    """Algorithm 1 and its † options."""

    batches: Literal["own", "shared"] = "own"
    table: Literal["warm", "zeros", "mean"] = "warm"  # rows before they are sent
    max_delay: int | None = None  # D
    extra_rows: float = 0.0  # further rows with each upload, in batches (†)
    order: Literal["upload-first", "query-first"] = "upload-first"  # "query-first" is lines 6, 7, 4, 5 (†)
    pause_s: float | list[float] = 0.0  # mean of the exponential pause between a party's activations
    on_lost: Literal["continue", "wait"] = "continue"
    in_flight: int = 1  # batches of a party that may be under way
    smaller_batches: bool = False  # half batches for parties that are slow
    average: bool = False  # evaluation and prediction use an average of the weights

    def threshold(self, parties: int) -> int:
        """Return t, the number of distinct parties that an update takes."""
        return 1

    def pause_of(self, party: int) -> float:
        """Return the mean pause of one party in seconds."""
        return self.pause_s[party] if isinstance(self.pause_s, list) else self.pause_s

    def check(self, parties: int) -> None:
        """Raise ConfigError for options that cannot work."""
        if self.max_delay is not None and self.max_delay < 1:
            raise ConfigError("protocol.max_delay", self.max_delay, "must be 1 or more, or left out for no bound")
        if not self.extra_rows >= 0:
            raise ConfigError("protocol.extra_rows", self.extra_rows, "must be 0 or more batches")
        self._check_in_flight()
        if self.smaller_batches and self.extra_rows:
            advice = "extra rows are sent with whole batches only; set protocol.extra_rows = 0"
            raise ConfigError("protocol.smaller_batches", self.smaller_batches, advice)
        pauses = self.pause_s if isinstance(self.pause_s, list) else [self.pause_s]
        if isinstance(self.pause_s, list) and len(self.pause_s) != parties:
            raise ConfigError("protocol.pause_s", self.pause_s, f"a list needs one value for each of {parties} parties")
        if not all(0 <= pause < float("inf") for pause in pauses):
            raise ConfigError("protocol.pause_s", self.pause_s, "must be 0 or more seconds")

    def check_sampling(self, sampling: str | None) -> None:
        """Raise ConfigError for further rows beside independent batches. Called when roles are made."""
        if sampling == "iid" and self.extra_rows:
            advice = "further rows are those that come next on a walk; set train.sampling = 'walk', or extra_rows = 0"
            raise ConfigError("protocol.extra_rows", self.extra_rows, advice)

    def _check_in_flight(self) -> None:
        key, most = "protocol.in_flight", self.in_flight
        if not 1 <= most <= MOST_IN_FLIGHT:
            raise ConfigError(key, most, f"must be between 1 and {MOST_IN_FLIGHT} batches")
        if most == 1:
            return
        if self.order == "query-first":
            raise ConfigError(
                key, most, "a party can only query the batch that it uploaded last; set protocol.order = 'upload-first'"
            )
        if self.pause_s:
            raise ConfigError(key, most, "batches that overlap have no pauses between them; set protocol.pause_s = 0")


class TSyncOptions(VaflOptions, frozen=True, kw_only=True):
    """Options of Algorithm 2."""

    t: int | None = None  # half of the parties, rounded up

    def threshold(self, parties: int) -> int:
        """Return t of Algorithm 2."""
        return (parties + 1) // 2 if self.t is None else self.t

    def check(self, parties: int) -> None:
        """Raise ConfigError unless 1 ≤ t ≤ M and lines 4–7 are in their printed order."""
        super().check(parties)
        if not 1 <= self.threshold(parties) <= parties:
            raise ConfigError("protocol.t", self.t, f"must be between 1 and the number of parties, {parties}")
        if self.order != "upload-first":
            raise ConfigError(
                "protocol.order", self.order, "t-sync answers uploads; set protocol.order = 'upload-first'"
            )
