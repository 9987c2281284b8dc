"""The `[protocol]` fields of AsySQN's methods, its first-order twins and its synchronous twins."""

from typing import Literal

from colonnade.algorithms.exposure import PLAIN_MARGINS
from colonnade.algorithms.method import Options
from colonnade.data.task import Task
from colonnade.protocol.errors import ConfigError

__all__ = ["AfOptions", "AfSagaOptions", "AfSvrgOptions", "AsyOptions", "AsySagaOptions", "AsySvrgOptions",
           "LinearOptions", "SynOptions", "SynSagaOptions", "SynSvrgOptions"]  # fmt: skip

FEWEST = 3  # parties in a masked sum
SGD, SVRG, SAGA = "sgd", "svrg", "saga"


class LinearOptions(Options, frozen=True, kw_only=True):
    """The options that all these methods share, and the constants that tell them apart."""

    # "auto": logistic for two classes, ridge for numbers
    loss: Literal["auto", "logistic", "ridge", "ls-svm", "huber"] = "auto"
    huber_delta: float = 1.0  # δ of loss = "huber", in standard deviations of the training labels
    l2: float | None = None  # λ; left out: 1/n, or the paper's 1e-4 if train.learning_rate is given
    intercept: bool = True  # held by the first party, without a penalty
    masking: Literal["on", "off"] = "on"
    fan_out: int = 2  # children of a node of the trees
    fraction_bits: int = 32  # fractional bits of a margin in fixed point
    patience_s: float = 60.0  # a batch's aggregation that takes longer is abandoned
    on_lost: Literal["continue", "wait"] = "continue"

    estimator = SGD  # the gradient estimator
    synchronous = False

    @property
    def exposes(self) -> str:
        """What the method reveals if masks are off; "" if they are on, because the method's own text then holds."""
        return PLAIN_MARGINS if self.masking == "off" else ""

    # The following properties are fields in the options of methods that let the user choose them.

    @property
    def memory(self) -> int:
        """m, the number of curvature pairs; with 0, H is the identity."""
        return 0

    @property
    def curvature(self) -> Literal["batch", "printed"]:
        """How ȳ is made."""
        return "batch"

    @property
    def delta(self) -> float:
        """δ: the least scale of H⁻¹."""
        return 1e-3

    @property
    def ahead(self) -> int:
        """The number of aggregations under way while a step is computed."""
        return 0

    @property
    def share(self) -> bool | None:
        """Whether all parties step on each sum; None: see `shares`."""
        return False

    @property
    def snapshot_every(self) -> float:
        """Epochs from one snapshot to the next."""
        return 1.0

    @property
    def extrapolate(self) -> bool | None:
        """Whether snapshots are extrapolated; None: see `extrapolates`."""
        return False

    @property
    def protects(self) -> str:
        """What the masks of Alg. 2 (privacy/masking.py) protect, in words."""
        if self.masking == "off":
            return (
                "protocol.masking is off: parties see partial sums of what the others' columns add to each row's "
                "score, single parties' among them. Nothing is hidden."
            )
        return (
            "Random masks hide what one party's columns add to a row's score: one party alone, or two together, see "
            "masked sums and the sum over all parties. Masks do not protect against three parties that put together "
            "what they saw, against comparing sums of the same rows from one epoch to the next, or against a party "
            "that breaks the protocol. They are no ε: the sums themselves are exact."
        )

    @property
    def task(self) -> Task:
        """The task of the loss. The coordinator has no labels, so it takes "auto" to mean two classes."""
        return Task("regression", ()) if self.loss in ("ridge", "huber") else Task("binary", ("0", "1"))

    def shares(self, measured: bool) -> bool:
        """Whether an asynchronous method's parties share each sum: as given; if not, unless a rate is given."""
        return measured if self.share is None else self.share

    def extrapolates(self, measured: bool) -> bool:
        """Whether the parties extrapolate from SVRG's snapshots: as given; if not, unless a rate is given."""
        return measured if self.extrapolate is None else self.extrapolate

    def threshold(self, parties: int) -> int:
        """How many parties an update takes."""
        return parties if self.synchronous else 1

    def fewest(self, parties: int) -> int:
        """The fewest parties of an aggregation for training."""
        if self.on_lost == "wait":
            return parties
        return FEWEST if self.masking == "on" else 1

    def check(self, parties: int) -> None:
        """Raise ConfigError for options that cannot work."""
        if self.masking == "on" and parties < FEWEST:
            advice = (
                "masked sums need at least 3 parties: with two, each party finds the other's value by subtracting "
                "its own"
            )
            raise ConfigError("data.parties", parties, f"{advice}; protocol.masking = 'off' hides nothing")
        if self.l2 is not None and not 0 <= self.l2 < float("inf"):
            raise ConfigError("protocol.l2", self.l2, "λ must be 0 or more")
        if not 0 < self.huber_delta < float("inf"):
            raise ConfigError("protocol.huber_delta", self.huber_delta, "must be above 0 standard deviations")
        if self.huber_delta != 1.0 and self.loss != "huber":
            raise ConfigError("protocol.huber_delta", self.huber_delta, "needs protocol.loss = 'huber'")
        if self.fan_out < 2:
            raise ConfigError("protocol.fan_out", self.fan_out, "must be 2 or more children")
        if not 0 <= self.fraction_bits <= 62:
            raise ConfigError("protocol.fraction_bits", self.fraction_bits, "must be from 0 to 62")
        if not 0 < self.patience_s < float("inf"):
            raise ConfigError("protocol.patience_s", self.patience_s, "must be above 0 seconds")
        if self.ahead < 0:
            raise ConfigError("protocol.ahead", self.ahead, "must be 0 or more batches")
        if not 0 < self.snapshot_every < float("inf"):
            raise ConfigError("protocol.snapshot_every", self.snapshot_every, "must be above 0 epochs")

    def check_memory(self) -> None:
        """Raise ConfigError for a memory that cannot work; for methods with a memory."""
        if self.memory < 1:
            raise ConfigError("protocol.memory", self.memory, "m must be 1 or more pairs; 5 to 20 are usual")
        if not 0 < self.delta < float("inf"):
            raise ConfigError("protocol.delta", self.delta, "must be above 0")


class AfOptions(LinearOptions, frozen=True, kw_only=True):
    """Asynchronous methods with H = I."""

    ahead: int = 1  # aggregations under way while a step is computed
    share: bool | None = None  # all parties step on each sum; left out: true, or false if train.learning_rate is given


class AfSagaOptions(AfOptions, frozen=True, kw_only=True):
    """Alg. 5 with H = I."""

    estimator = SAGA


class AfSvrgOptions(AfOptions, frozen=True, kw_only=True):
    """Alg. 4 with H = I."""

    snapshot_every: float = 1.0  # epochs
    extrapolate: bool | None = None  # from earlier snapshots; left out: true, or false if train.learning_rate is given

    estimator = SVRG


class AsyOptions(AfOptions, frozen=True, kw_only=True):
    """Alg. 3."""

    memory: int = 10  # m
    curvature: Literal["batch", "printed"] = "batch"
    delta: float = 1e-3  # δ: the least scale of H⁻¹

    def check(self, parties: int) -> None:
        """Raise ConfigError for options that cannot work."""
        super().check(parties)
        self.check_memory()


class AsySagaOptions(AsyOptions, frozen=True, kw_only=True):
    """Alg. 5."""

    estimator = SAGA


class AsySvrgOptions(AsyOptions, frozen=True, kw_only=True):
    """Alg. 4."""

    snapshot_every: float = 1.0  # epochs
    extrapolate: bool | None = None  # from earlier snapshots; left out: true, or false if train.learning_rate is given

    estimator = SVRG


class SynOptions(LinearOptions, frozen=True, kw_only=True):
    """Lock-step rounds of Alg. 3."""

    memory: int = 10
    curvature: Literal["batch", "printed"] = "batch"
    delta: float = 1e-3

    synchronous = True

    def check(self, parties: int) -> None:
        """Raise ConfigError for options that cannot work."""
        super().check(parties)
        self.check_memory()


class SynSagaOptions(SynOptions, frozen=True, kw_only=True):
    """Lock-step rounds of Alg. 5."""

    estimator = SAGA


class SynSvrgOptions(SynOptions, frozen=True, kw_only=True):
    """Lock-step rounds of Alg. 4."""

    snapshot_every: float = 1.0  # epochs
    extrapolate: bool | None = None  # from earlier snapshots; left out: true, or false if train.learning_rate is given

    estimator = SVRG
