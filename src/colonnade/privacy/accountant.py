"""The privacy cost of one party's releases, against a server that sees everything it is sent.

Neighbouring data sets differ in one record, in the training or test rows, that is replaced. The server sees the row
numbers, so subsampling amplifies nothing. A record's own row moves by at most 2C. θ_m was trained on that record, so
other rows may move too:

    local_updates   what may move, and so the sensitivity of a message of r rows
    plain           θ_m saw the record without noise, so EVERY row of every message: 2C√r
    dp-sgd          θ_m is a private release by itself (2G for every step with the record): the record's own row, 2C
    answers         θ_m was made from the server's answers alone (zeroth-order): the record's own row, 2C

A row that is k times in a message, under k noises, counts k times (2C√k). A private step has every row at most once.

Releases are data (events of `dp_accounting`), separate from how they are counted. An unknown event raises. All releases
are Gaussian, so they compose exactly: μ² = Σ (Δ/c)², and (ε, δ) follows from the exact curve of gaussian.py.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from colonnade.privacy.gaussian import epsilon_of
from colonnade.protocol.errors import CheckpointError
from colonnade.protocol.messages import Array

__all__ = ["OWN_ROWS", "THEOREM_6", "Account", "Part", "Spent", "UnknownMechanism", "claim_of_own_rows",
           "claim_of_theorem_6", "most_often", "mu_of", "spent"]  # fmt: skip

GAUSSIAN = "gaussian"
STEP = "step"
THEOREM_6, OWN_ROWS = "claim_of_theorem_6", "claim_of_own_rows"  # what a paper counts, reported beside the account
Part = Literal["train", "test", "any"]  # which rows: training rows, test rows, or unknown


# What an account can hold. NaN is out of every range; μ and ε may be infinite.
Amount = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]  # JSON readers keep such numbers exactly
Kind = Annotated[str, msgspec.Meta(pattern=r"^[ -~]{1,64}\Z")]


class Spent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The totals of a party's account, as it reports them."""

    mu: Amount
    epsilon: Amount
    delta: Annotated[float, msgspec.Meta(ge=0, le=1)]
    releases: Count
    rows: Count
    by_kind: Annotated[dict[Kind, Count], msgspec.Meta(max_length=64)]
    claim_mu: Amount
    claim_epsilon: Amount


class UnknownMechanism(CheckpointError):
    """A release with an unknown mechanism. It has no known cost, and counting it as free would be wrong."""


@dataclass
class Account:
    """Running totals. With `by_record`, a record pays only for the releases that contain its own row."""

    by_record: bool
    train_rows: int
    test_rows: int
    counts: Counter[tuple[float, float]] = field(
        default_factory=Counter
    )  # (Δ, c) of messages; by_record: of part `any`
    square: float = 0.0  # Σ μ² of `counts`

    def __post_init__(self) -> None:
        sizes = {"train": self.train_rows, "test": self.test_rows}
        self._squares = {part: np.zeros(size if self.by_record else 0) for part, size in sizes.items()}
        # How often each record's row was in a release of (Δ, c): enough to list the costliest record's events.
        self._times: dict[tuple[str, float, float], Array] = {}

    def square_with(self, mechanism: str, delta: float, noise: float, part: Part, rows: Array | None) -> float:
        """μ² of all releases so far and this one; for the record that pays most."""
        one = _square(mechanism, delta, noise)
        if not self.by_record or rows is None:
            return self._worst() + one
        squares, (who, times) = self._squares[part], _multiplicity(rows)
        reached = float((squares[who] + times * one).max(initial=0.0)) + self.square
        return max(self._worst(), reached)

    def add(self, mechanism: str, delta: float, noise: float, part: Part, rows: Array | None) -> None:
        one = _square(mechanism, delta, noise)
        if not self.by_record or rows is None:
            self.counts[delta, noise] += 1
            self.square += one
            return
        who, times = _multiplicity(rows)
        self._squares[part][who] += times * one
        counted = self._times.setdefault((part, delta, noise), np.zeros(len(self._squares[part]), np.int64))
        counted[who] += times

    def add_earlier(self, delta: float, noise: float, count: int) -> None:
        """Add releases of an earlier run. Any record of this run may have been in all of them."""
        if not count >= 0 or not delta >= 0:
            raise UnknownMechanism(f"an earlier run cannot have made {count!r} releases of sensitivity {delta!r}")
        self.counts[delta, noise] += count
        self.square += count * _square(GAUSSIAN, delta, noise)

    def _worst(self) -> float:
        return self.square + max(float(squares.max(initial=0.0)) for squares in self._squares.values())

    @property
    def mu(self) -> float:
        """μ of all releases so far; for the record that has paid most."""
        return sqrt(self._worst())

    def squares_by_noise(self, parts: Collection[str] = ("train", "test")) -> dict[float, float]:
        """For each noise c, the largest μ² that its releases cost any record of these parts."""
        found = {noise: 0.0 for _, noise in self.counts} | {noise: 0.0 for _, _, noise in self._times}
        for (delta, noise), count in self.counts.items():
            found[noise] += count * _square(GAUSSIAN, delta, noise)
        of_records: dict[tuple[str, float], Array] = {}
        for (part, delta, noise), times in self._times.items():
            if part not in parts:
                continue
            of_records[part, noise] = of_records.get((part, noise), 0.0) + times * _square(GAUSSIAN, delta, noise)
        for noise in found:
            own = (squares for (_, of), squares in of_records.items() if of == noise)
            found[noise] += max((float(squares.max(initial=0.0)) for squares in own), default=0.0)
        return found

    def since(self, before: "Account") -> "Account":
        """The releases that came after `before`, an earlier copy of this account."""
        later = Account(self.by_record, self.train_rows, self.test_rows, self.counts - before.counts)
        later.square = self.square - before.square
        later._squares = {part: squares - before._squares[part] for part, squares in self._squares.items()}
        later._times = {
            key: times - before._times[key] if key in before._times else times for key, times in self._times.items()
        }
        return later

    def event(self) -> Any:
        """The account as an event of `dp_accounting`: all messages, or those of the record that has paid most."""
        return composed(self.worst())

    def worst(self) -> Counter[tuple[float, float]]:
        """How many releases of each (Δ, c) the record that has paid most was in; all messages, if rows do not count."""
        counts = Counter(self.counts)
        if self.by_record:
            part = max(self._squares, key=lambda name: float(self._squares[name].max(initial=0.0)))
            squares = self._squares[part]
            if len(squares):
                worst = int(squares.argmax())
                for (of, delta, noise), times in self._times.items():
                    if of == part and times[worst]:
                        counts[delta, noise] += int(times[worst])
        return counts


def _square(mechanism: str, delta: float, noise: float) -> float:
    if mechanism != GAUSSIAN:
        raise UnknownMechanism(
            f"unknown mechanism {mechanism!r}: its privacy cost cannot be computed, so it is refused"
        )
    if not noise > 0:
        raise UnknownMechanism(f"a release with noise {noise!r} has no bound")
    return (delta / noise) ** 2


def _multiplicity(rows: Array) -> tuple[Array, Array]:
    """The distinct rows, and how often each occurs."""
    who, times = np.unique(rows, return_counts=True)
    return who, times


def most_often(rows: Array) -> int:
    """How often the most frequent row occurs; 0 if there are no rows."""
    return int(_multiplicity(rows)[1].max(initial=0))


def composed(counts: Mapping[tuple[float, float], int]) -> Any:
    """Gaussian releases as an event of `dp_accounting`; `counts` maps (Δ, c) to a number of releases."""
    from dp_accounting import ComposedDpEvent, GaussianDpEvent, NoOpDpEvent, SelfComposedDpEvent  # takes a second

    events = [
        SelfComposedDpEvent(GaussianDpEvent(noise / delta), count)
        for (delta, noise), count in counts.items()
        if delta > 0  # an empty message moves nothing
    ]
    return ComposedDpEvent(events) if events else NoOpDpEvent()


def mu_of(event: Any) -> float:
    """μ of an event of `dp_accounting` that is made of Gaussian releases (Dong et al., Cor. 3.3); others raise."""
    import dp_accounting

    def square(part: Any) -> float:
        match part:
            case dp_accounting.NoOpDpEvent():
                return 0.0
            case dp_accounting.GaussianDpEvent(noise_multiplier=multiplier) if multiplier > 0:
                return float(multiplier) ** -2
            case dp_accounting.SelfComposedDpEvent(event=inner, count=count):
                return int(count) * square(inner)
            case dp_accounting.ComposedDpEvent(events=parts):
                return sum(map(square, parts))
        raise UnknownMechanism(f"no μ is known for {part!r:.120}: it is not accounted for, which does not mean ε = 0")

    return sqrt(square(event))


def spent(event: Any, delta: float) -> dict[str, float]:
    """μ of the event, and the smallest ε for this δ."""
    mu = mu_of(event)
    return {"mu": mu, "epsilon": epsilon_of(mu, delta), "delta": delta}


def claim_of_own_rows(times: int, delta: float, noise: float) -> float:
    """μ of the releases of one row alone: each is calibrated by itself, and they compose.

    FedVS's `wait-dp` states an ε′ for one release. This claim does not hold against the server: θ_m was trained on the
    record without noise, so all other rows depend on the record too.
    """
    return sqrt(times) * delta / noise


def claim_of_theorem_6(batches: int, rows: float, of: int, delta: float, noise: float) -> float:
    """μ as VAFL's Thm 6 reads: c = (N_m/N)·√K·Δ/μ, K batches of N_m rows of N; its constant is taken as 1.

    The claim does not hold against the server. It counts each row by itself, and it assumes that the drawn rows are
    secret. It leaves out θ_m, the warm-up, fresh rows and evaluation.
    """
    return rows / of * sqrt(batches) * delta / noise
