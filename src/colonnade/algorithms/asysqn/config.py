"""The `[protocol]` fields of AsySQN's methods, its first-order twins and its synchronous twins."""

from typing import Literal

from colonnade.algorithms.exposure import PLAIN_MARGINS
from colonnade.algorithms.method import Options
from colonnade.data.task import Task
from colonnade.protocol.errors import ConfigError

__all__ = ["AfOptions", "AfSagaOptions", "AfSvrgOptions", "AsyOptions", "AsySagaOptions", "AsySvrgOptions",
           "LinearOptions", "SynOptions", "SynSagaOptions", "SynSvrgOptions"]  # fmt: skip

FEWEST = 3  # parties of a masked sum
SGD, SVRG, SAGA = "sgd", "svrg", "saga"


class LinearOptions(Options, frozen=True, kw_only=True):
    """What all of them share, and what each of them is."""

    loss: Literal["auto", "logistic", "ridge", "ls-svm"] = "auto"  # logistic for two classes, ridge for numbers
    l2: float | None = None  # λ; left out: 1/n, or the paper's 1e-4 if train.learning_rate is given
    intercept: bool = True  # held by the first party, without a penalty
    masking: Literal["on", "off"] = "on"
    fan_out: int = 2  # of the trees
    fraction_bits: int = 32  # of a margin in fixed point
    patience_s: float = 60.0  # an aggregation of a batch that takes longer is abandoned
    on_lost: Literal["continue", "wait"] = "continue"

    estimator = SGD  # of the gradient
    synchronous = False

    @property
    def exposes(self) -> str:
        """Without masks: not what the method's own words say."""
        return PLAIN_MARGINS if self.masking == "off" else ""

    # What follows is a field of the options whose methods let the user choose it.

    @property
    def memory(self) -> int:
        """m; 0: H is the identity."""
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
        """Aggregations under way while a step is computed."""
        return 0

    @property
    def snapshot_every(self) -> float:
        """Epochs."""
        return 1.0

    @property
    def protects(self) -> str:
        """The masks of Alg. 2 (privacy/masking.py)."""
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
        """What its loss is for; the coordinator has no labels to see it from, and takes "auto" for two classes."""
        return Task("regression", ()) if self.loss == "ridge" else Task("binary", ("0", "1"))

    def threshold(self, parties: int) -> int:
        """How many parties an update takes."""
        return parties if self.synchronous else 1

    def fewest(self, parties: int) -> int:
        """How many parties an aggregation takes."""
        if self.on_lost == "wait":
            return parties
        return FEWEST if self.masking == "on" else 1

    def check(self, parties: int) -> None:
        """Refuse what cannot work."""
        if self.masking == "on" and parties < FEWEST:
            advice = "masked sums need at least 3 parties: of two, each has the other's value as the sum minus its own"
            raise ConfigError("data.parties", parties, f"{advice}; protocol.masking = 'off' hides nothing")
        if self.l2 is not None and not 0 <= self.l2 < float("inf"):
            raise ConfigError("protocol.l2", self.l2, "λ must be 0 or more")
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
        """Of those with one."""
        if self.memory < 1:
            raise ConfigError("protocol.memory", self.memory, "m must be 1 or more pairs; 5 to 20 are usual")
        if not 0 < self.delta < float("inf"):
            raise ConfigError("protocol.delta", self.delta, "must be above 0")


class AfOptions(LinearOptions, frozen=True, kw_only=True):
    """Asynchronous, H = I."""

    ahead: int = 1  # aggregations under way while a step is computed


class AfSagaOptions(AfOptions, frozen=True, kw_only=True):
    """Alg. 5 with H = I."""

    estimator = SAGA


class AfSvrgOptions(AfOptions, frozen=True, kw_only=True):
    """Alg. 4 with H = I."""

    snapshot_every: float = 1.0  # epochs

    estimator = SVRG


class AsyOptions(AfOptions, frozen=True, kw_only=True):
    """Alg. 3."""

    memory: int = 10  # m
    curvature: Literal["batch", "printed"] = "batch"
    delta: float = 1e-3  # δ: the least scale of H⁻¹

    def check(self, parties: int) -> None:
        """Refuse what cannot work."""
        super().check(parties)
        self.check_memory()


class AsySagaOptions(AsyOptions, frozen=True, kw_only=True):
    """Alg. 5."""

    estimator = SAGA


class AsySvrgOptions(AsyOptions, frozen=True, kw_only=True):
    """Alg. 4."""

    snapshot_every: float = 1.0  # epochs

    estimator = SVRG


class SynOptions(LinearOptions, frozen=True, kw_only=True):
    """Lock-step rounds of Alg. 3."""

    memory: int = 10
    curvature: Literal["batch", "printed"] = "batch"
    delta: float = 1e-3

    synchronous = True

    def check(self, parties: int) -> None:
        """Refuse what cannot work."""
        super().check(parties)
        self.check_memory()


class SynSagaOptions(SynOptions, frozen=True, kw_only=True):
    """Lock-step rounds of Alg. 5."""

    estimator = SAGA


class SynSvrgOptions(SynOptions, frozen=True, kw_only=True):
    """Lock-step rounds of Alg. 4."""

    snapshot_every: float = 1.0  # epochs

    estimator = SVRG
