"""The guard between a party's network and the wire: it perturbs, accounts, and stops when the budget is spent.

A role plans a release in `handle`, and the release's number is part of the role's state. The role makes the release in
`compute`, through `released`. There the guard writes and syncs the ledger's line first, then draws noise and does the
job. This order has three effects:

- the ledger has the release before any message can leave;
- replaying the journal draws no noise again;
- a job that runs again after a crash is another release with its own noise, and the ledger counts it.

The result carries the line's receipt into the role's state.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf, sqrt
from typing import Any, TypeVar, cast

import msgspec
import numpy as np
from torch import nn

from colonnade.privacy.accountant import (
    GAUSSIAN,
    OWN_ROWS,
    STEP,
    THEOREM_6,
    Part,
    claim_of_own_rows,
    claim_of_theorem_6,
    most_often,
    spent,
)
from colonnade.privacy.gaussian import epsilon_of, mu_for
from colonnade.privacy.ledger import Earlier, Ledger
from colonnade.privacy.perturb import PerturbedFunction, Stream, drawing, output_noise, random_neurons
from colonnade.privacy.secret import SecretKey
from colonnade.privacy.settings import Budget, PrivacySettings
from colonnade.protocol.errors import ConfigError, LocalProtocolError, ModelError
from colonnade.protocol.messages import Array, Payload
from colonnade.protocol.ports import Lines
from colonnade.protocol.role import PrivacySpent

__all__ = ["Guard", "Receipted", "Release", "Released", "Withheld", "check_budget"]

P = TypeVar("P", bound=Payload)
J = TypeVar("J")


class Release(Payload, frozen=True):
    """A planned release: part of a job."""

    draw: int  # names its noise, under the current key
    what: str  # "warm-up", "batch", "fresh rows", "evaluation", "prediction"; or a "step" of θ_m
    rows: Array  # the rows of the release; a row that is in it k times leaves under k noises
    part: str = "train"
    copies: int = 1  # how often each row is in it, with fresh noise each time


class Released(Payload, frozen=True, kw_only=True):
    """A job that the guard has to approve: its result leaves the party, or steps θ_m."""

    release: Release | None = None


class Receipted(Payload, frozen=True, kw_only=True):
    """The result of a `Released` job."""

    receipt: str = ""  # names a line of the privacy ledger


class Withheld(Payload, frozen=True):
    """The result of a job whose release would exceed the budget."""

    why: str


class Guard:
    """The guard of one party; without a mechanism it passes everything through unchanged."""

    def __init__(
        self,
        settings: PrivacySettings,
        budget: Budget | None,
        who: str,
        train_rows: int,
        test_rows: int,
        claim: str = THEOREM_6,
        earlier: Earlier | None = None,
    ) -> None:
        self.settings, self._budget, self._who = settings, budget, who
        self.on = settings.on
        self.key = SecretKey()
        self._most = mu_for(budget.epsilon, budget.delta) if budget is not None else inf
        self._train_rows = train_rows
        self.draws = 0  # releases planned so far
        self._receipt = ""  # of the newest line that the role knows of
        terms: dict[str, Any] = {"party": who, "train_rows": train_rows, "test_rows": test_rows}
        self._by_own_rows = claim == OWN_ROWS
        terms |= {"claim": claim} if self._by_own_rows else {}
        terms |= {"earlier": earlier.terms()} if earlier is not None and self.on else {}
        self.ledger = Ledger(terms | msgspec.to_builtins(settings))

    # Build the network.

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module with the mechanism's noise inside; raises if the mechanism does not fit the module."""
        settings = self.settings
        if not self.on:
            return module
        assert settings.clip is not None
        if settings.by_record and any(True for _ in module.buffers()):
            raise ModelError(
                f"model.party of {self._who}: keeps running averages (BatchNorm), which a private step does not "
                f"cover; privacy.local_updates = {settings.local_updates!r} needs a network without them"
            )
        if settings.mechanism == "neurons":
            return random_neurons(module, settings.clip, settings.noise, settings.inner, self._who)
        return output_noise(module, settings.clip, settings.noise)

    def wrap_function(self, function: Any) -> Any:
        """The same as `wrap`, for a black-box function."""
        settings = self.settings
        if not self.on:
            return function
        if settings.mechanism == "neurons":
            raise ModelError(
                f"model.party of {self._who}: a black box has no layers for privacy.mechanism = 'neurons'; use 'output'"
            )
        assert settings.clip is not None
        return PerturbedFunction(function, settings.clip, settings.noise)

    def try_out(self, network: Any, columns: int, width: int) -> None:
        """With "dp-sgd", run two rows through `Network.private_gradient`, to refuse a module before training starts."""
        if self.settings.dp_sgd is None or not self.on:
            return
        rows, answers = np.zeros((2, columns), np.float32), np.zeros((2, width), np.float32)
        try:
            with drawing(Stream(bytes(32), keep=True)):
                network.private_gradient(rows, 0, answers, self.settings.dp_sgd.clip, np.zeros)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise ModelError(
                f"model.party of {self._who}: has no gradient for each record, which privacy.local_updates = "
                f"'dp-sgd' needs: {str(error).splitlines()[0]}"
            ) from None

    # Plan releases, in `handle`.

    def plan(self, what: str, rows: Array, part: Part = "train", copies: int = 1) -> Release | None:
        """Plan a release with its own noise; None if nothing is perturbed."""
        if not self.on:
            return None
        self.draws += 1
        return Release(self.draws, what, rows, part, copies)

    def again(self, draw: int, what: str, rows: Array) -> Release | None:
        """Use an earlier release again, with exactly the same noise (while the key is the same)."""
        return Release(draw, what, rows) if self.on else None

    def note(self, result: Payload) -> None:
        """Keep the receipt that a result carries."""
        receipt = result.receipt if isinstance(result, Receipted) else ""
        if receipt and (not self._receipt or _number(receipt) > _number(self._receipt)):
            self._receipt = receipt

    def resume(self) -> None:
        """After checkpoint and journal are loaded, require every ledger line that they name."""
        if self._receipt:
            self.ledger.require(self._receipt)

    # Make releases, in `compute`.

    def released(self, release: Release | None, make: Callable[[J], P], job: J) -> P | Withheld:
        """Enter the release into the ledger, then do the job that makes it; `Withheld` if the budget has no room."""
        if release is None:
            return make(job)
        receipt = self._enter(release)
        if receipt is None:
            return Withheld(self.why())
        with self.drawing(release):
            result = make(job)
        return msgspec.structs.replace(result, receipt=receipt)

    def stepped(
        self, release: Release | None, plain: Callable[[], P], private: Callable[[float, Callable[[int], Array]], P]
    ) -> P | Withheld:
        """A step of θ_m: unchanged or, with "dp-sgd", clipped and perturbed, which is itself a release.

        `private` gets the clip and a source of noise that is already scaled to the standard deviation.
        """
        if release is None:
            return plain()
        dp_sgd = self.settings.dp_sgd
        if dp_sgd is None:
            with self.drawing(release):
                return plain()
        receipt = self._enter(release)
        if receipt is None:
            return Withheld(self.why())
        stream, deviation = Stream(self.key.seed("step", release.draw)), np.float32(dp_sgd.noise)
        with self.drawing(release, keep=True):
            result = private(dp_sgd.clip, lambda count: deviation * stream.numbers(count))
        return msgspec.structs.replace(result, receipt=receipt)

    @contextmanager
    def drawing(self, release: Release, keep: bool = False) -> Iterator[None]:
        """Inside this context, perturbed networks draw the noise of this release."""
        with drawing(Stream(self.key.seed("noise", release.draw), keep)):
            yield

    def _enter(self, release: Release) -> str | None:
        settings, rows, part = self.settings, release.rows, cast(Part, release.part)
        assert settings.clip is not None
        of = rows if (settings.by_record or self._by_own_rows) and part != "any" else None
        if release.what == STEP:
            assert settings.dp_sgd is not None
            if most_often(rows) > 1:
                raise LocalProtocolError(
                    f"{self._who}: a row occurs twice in a step: the sum would change by more than 2G"
                )
            sensitivity, noise = 2 * settings.dp_sgd.clip, settings.dp_sgd.noise
        elif settings.by_record:
            # One record moves as many rows of the message as it is in; for `of`, the account counts them itself.
            often = most_often(rows) if of is None else 1
            sensitivity, noise = 2 * settings.clip * sqrt(release.copies * often), settings.noise
        else:
            sensitivity, noise = 2 * settings.clip * sqrt(release.copies * len(rows)), settings.noise
        # A step alone reveals nothing: the next upload's line is synced, and it follows this line in the same file.
        durable = release.what != STEP
        return self.ledger.enter(
            release.what, GAUSSIAN, sensitivity, noise, part, release.copies * len(rows), of, self._most, durable
        )

    def why(self) -> str:
        """The reason for a withheld release, in words."""
        assert self._budget is not None
        budget = self._budget
        used = epsilon_of(self.ledger.account.mu, budget.delta)
        used_of = f"ε = {used:.4g} of {budget.epsilon:g} at δ = {budget.delta:g}"
        return f"its privacy budget does not allow another upload ({used_of})"

    # State and summary.

    def save(self) -> dict[str, Any]:
        """The state without key and noise. The receipt is the ledger's, which may be ahead of the role's."""
        return {"draws": self.draws, "receipt": self.ledger.head if self.on else ""}

    def load(self, saved: dict[str, Any]) -> None:
        self.draws, self._receipt = saved["draws"], saved["receipt"]

    def keep(self, lines: Lines) -> None:
        """Write the ledger to these lines, which outlive the process."""
        if self.on:
            self.ledger.keep(lines)
        elif self._budget is not None:
            raise LocalProtocolError(f"{self._who}: a budget without a mechanism")

    def cut_back(self) -> None:
        """Cut the ledger back to the checkpoint. For the simulator only: its resumed run repeats the same releases."""
        if self.on and self._receipt:
            self.ledger.cut_back(self._receipt)

    @property
    def is_kept(self) -> bool:
        """Whether the ledger is written to lines that outlive the process."""
        return self.ledger.is_open

    def close(self) -> None:
        self.ledger.close()

    @property
    def epsilon(self) -> float | None:
        """ε spent so far, at the budget's δ or, without a budget, at privacy.delta; None if nothing is accounted."""
        if not self.on:
            return None
        delta = self.settings.delta if self._budget is None else self._budget.delta
        return float(epsilon_of(self.ledger.account.mu, delta))

    @property
    def epsilon_budget(self) -> float | None:
        """The ε of the budget; None without one."""
        return None if self._budget is None else self._budget.epsilon

    def summary(self) -> PrivacySpent | None:
        """μ, ε and δ, and the paper's claim beside them; None if nothing is accounted."""
        if not self.on:
            return None
        settings, account, kinds = self.settings, self.ledger.account, self.ledger.kinds
        paid, claim = spent(account.event(), settings.delta), self._claim(*kinds.get("batch", (0, 0)))
        return {
            "mu": paid["mu"],
            "epsilon": paid["epsilon"],
            "delta": paid["delta"],
            "releases": sum(times for times, _ in kinds.values()),
            "rows": sum(count for what, (_, count) in kinds.items() if what != STEP),
            "by_kind": {what: times for what, (times, _) in sorted(kinds.items())},
            "claim_mu": claim,
            "claim_epsilon": epsilon_of(claim, settings.delta),
        }

    def _claim(self, batches: int, rows: int) -> float:
        """μ as the method's paper claims it."""
        assert self.settings.clip is not None
        reach, noise = 2 * self.settings.clip, self.settings.noise
        if self._by_own_rows:
            return claim_of_own_rows(self.ledger.most_of_a_row, reach, noise)
        return claim_of_theorem_6(batches, rows / max(batches, 1), self._train_rows, reach, noise)


def _number(receipt: str) -> int:
    return int(receipt.partition(":")[0])


def check_budget(settings: PrivacySettings, budget: Budget | None) -> None:
    """Raise if there is a budget but no mechanism: releases that are not accounted have no bound."""
    if budget is not None and not settings.on:
        advice = "needs a mechanism, because uploads without noise have no ε; set privacy.mechanism, clip and noise"
        raise ConfigError("party.budget", msgspec.structs.asdict(budget), advice)
