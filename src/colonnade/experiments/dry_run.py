"""Count what every party releases in a run of a config: the simulator's event loop and clock, without the learning.

Real roles run under the config's method, length, seed and evaluations, with the privacy guard on and no budget. The
guard's own account gives the cost of the releases, so every upload of a role is counted. Networks do not change when a
role uploads what: parties are linear and rates are 0.

How often a party uploads depends on its speed compared with the others. In an asynchronous method the fastest party may
make almost all uploads. `count` therefore repeats the dry run with other speeds and takes the largest cost of any party
in any of them:

    speeds       which party is fast
    clock        as [clock] says
    equal        all parties
    one fast     one party, and all others are a million times slower
    one slow     all parties but one, which is a million times slower: it may be asked for rows again (max_delay)

Only the first part of a long run is simulated. Each later stretch as long as the second half of that part adds the cost
of that half; evaluations are added by their number.

If the server asks for rows again (`max_delay`), speeds in between may cost more than these. Then the bound is a sum: a
party sends a row for its own batches or because another party's batch has it, so it sends no more rows for both than
all parties together process.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Literal

import msgspec

from colonnade.algorithms.training import Every, Training
from colonnade.config.resolve import make_plan, privacy_of
from colonnade.config.schema import Config
from colonnade.config.settle import LIMITS, settled
from colonnade.data import Partition
from colonnade.drivers.simulator import ClockConfig
from colonnade.drivers.simulator.clock import Compute, Link, ServerClock
from colonnade.experiments.run import Run, prepare
from colonnade.privacy.accountant import STEP, Account
from colonnade.privacy.guard import Guard
from colonnade.privacy.plan import Needs
from colonnade.protocol.errors import ConfigError

__all__ = ["ROWS_NOISE", "STEPS_NOISE", "Counted", "Noises", "Part", "Speeds", "count", "fastest_s", "one_fast_clock"]

ROWS_NOISE, STEPS_NOISE = 1.0, 2.0  # different, so that the account distinguishes them
SLOWER = 1e6  # times: the other parties do almost nothing meanwhile
COUNTED = 1000  # updates of a dry run, at most
PASSES, MOST_COUNTED = 4, 5000  # passes (fewer would overstate the cost) and most updates, if records are counted
LOOKS = 2  # evaluations in that part
GROWTH = 4  # factor for a part that is too short
EVALUATION, BATCH, FRESH = "evaluation", "batch", "fresh rows"  # kinds of releases (privacy/guard.py)
SHORTEST_S = 1e-4  # of a step, if [clock] says that steps take no time

Speeds = Literal["clock", "any"]
Show = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Noises:
    """The noise of rows and of private steps in a dry run, by which its account distinguishes them."""

    rows: float = ROWS_NOISE
    steps: float = STEPS_NOISE


@dataclass(frozen=True, slots=True)
class Counted:
    """What the parties release."""

    by_clock: list[Needs]  # each party's, with the speeds of [clock]: an estimate unless all was counted
    most: Needs | None  # no party releases more than this, whatever the speeds; None: only [clock] was counted
    whole: bool  # whether the whole run was counted; otherwise the rest is extrapolated
    assumed: tuple[str, ...]

    @property
    def needs(self) -> list[Needs]:
        """What every party must be prepared for."""
        if self.most is None:
            return self.by_clock
        return [replace(self.most, party=need.party) for need in self.by_clock]


def count(config: Config, data: Partition, show: Show, speeds: Speeds = "any", noises: Noises | None = None) -> Counted:
    """Make the dry runs of a config that has its mechanism on, learns nothing and has no budgets."""
    noises = Noises() if noises is None else noises
    privacy, parties = privacy_of(config), len(data.parties)
    if privacy.by_record and config.train.sampling == "iid":
        advice = (
            "chance decides how often a record is drawn, so a plan could promise too little noise; plan with "
            "train.sampling = 'walk'. A run with 'iid' is accounted exactly, and party.budget ends it in time"
        )
        raise ConfigError("train.sampling", "iid", advice)
    if speeds == "clock":
        part = Part.of(config, data, inf)
    else:
        part = Part.of(config, data, COUNTED, MOST_COUNTED if privacy.by_record else COUNTED).beyond_the_start(data)
    clocks = [config.clock]
    if speeds == "any":
        fastest = fastest_s(config, parties)
        clocks += [equal_clock(fastest, parties), one_fast_clock(fastest, parties), one_slow_clock(fastest, parties)]
    unit = (2 * (privacy.clip or 0.0)) ** 2  # Δ² of one row
    runs: list[tuple[_DryRun, list[_Whole]]] = []
    for number, clock in enumerate(clocks):

        def share(done: float, number: int = number) -> None:
            show((number + done) / len(clocks))

        dry = _DryRun(prepare(msgspec.structs.replace(part.config, clock=clock), data), part, noises, unit, share)
        runs.append((dry, dry.count()))
    by_clock = [whole.needs for whole in runs[0][1]]
    if speeds == "clock":
        return Counted(by_clock, None, part.more == 0, ("the speeds of [clock]",))
    most = _most(runs, data, unit, privacy.by_record)
    return Counted(by_clock, most, part.more == 0, _assumed(config, parties, part))


# Clocks.


def equal_clock(step_s: float, parties: int) -> ClockConfig:
    """All parties are as fast as the fastest, and nothing else takes time."""
    return _clock([step_s] * parties)


def one_fast_clock(step_s: float, parties: int) -> ClockConfig:
    """The first party makes as many steps as it can, the others almost none."""
    return _clock([step_s] + [SLOWER * step_s] * (parties - 1))


def one_slow_clock(step_s: float, parties: int) -> ClockConfig:
    """The first party makes almost no steps, the others all."""
    return _clock([SLOWER * step_s] + [step_s] * (parties - 1))


def _clock(steps_s: list[float]) -> ClockConfig:
    quick = Link(latency_s=0.0, bandwidth_mbps=float("inf"))
    server = ServerClock(compute=Compute(mean_s=0.0), network=quick)
    return ClockConfig(compute=[Compute(mean_s=step_s) for step_s in steps_s], network=quick, server=server)


def fastest_s(config: Config, parties: int) -> float:
    """Return a lower bound of the seconds of a step, for all parties.

    A random step may take less than its mean. The case that many of them take less than half on average is ignored.
    """
    steps = [config.clock.compute_of(party) for party in range(parties)]
    return max(SHORTEST_S, min(step.mean_s if step.kind in ("fixed", "trace") else step.mean_s / 2 for step in steps))


def _assumed(config: Config, parties: int, part: "Part") -> tuple[str, ...]:
    limit, every = part.training.limit, part.training.eval_every
    words = ["parties may have any speed: one party may make nearly all uploads"]
    if limit.unit == "seconds":
        words = [f"no party makes a step in less than {fastest_s(config, parties):g} s ([clock])"]
    words.append("no party is restarted or lost for a while: repeated uploads would be further releases")
    if every.unit == "seconds" and limit.unit != "seconds":
        words.append(
            f"the run takes no longer than with the speeds of [clock]: it evaluates every {every.amount:g} s, and "
            "every evaluation is a release; set train.eval_every in updates or epochs for a bound"
        )
    return tuple(words)


# The part of a run that is counted.


@dataclass(frozen=True, slots=True)
class Part:
    """The first part of a run, short enough to be simulated."""

    config: Config
    more: float  # length of the rest of the run, in such parts; 0: this is the whole run
    training: Training  # of the whole run
    whole: Config
    updates: float  # about so many are in the part, if steps are quick

    @classmethod
    def of(cls, config: Config, data: Partition, updates: float, most: int = 0) -> "Part":
        """Return the whole run, or its first `updates` updates with two evaluations; up to `most` for a few passes."""
        rows, parties = len(data.y_train), len(data.parties)
        config = settled(config, rows, data.validation)
        plan = make_plan(config, data.parties, rows, data.task, data.validation)
        training = plan.training
        updates = max(updates, min(most, ceil(PASSES * rows / training.batch_size)))
        limit, per_update = training.limit, plan.options.threshold(parties) * training.batch_size
        in_unit = {
            "updates": updates,
            "epochs": updates * per_update / training.rows_per_epoch,
            "seconds": updates * fastest_s(config, parties) / parties,
        }
        longest = Every(limit.unit, in_unit[limit.unit])
        if limit.amount <= longest.amount:
            return cls(config, 0.0, training, config, updates)
        every = f"{longest.amount / LOOKS:.9g} {limit.unit}"
        train = msgspec.structs.replace(config.train, eval_every=every, patience=0, **_limits(longest))
        short = msgspec.structs.replace(config, train=train)
        return cls(short, limit.amount / longest.amount - 1, training, config, updates)

    def beyond_the_start(self, data: Partition) -> "Part":
        """Return a longer part if the limit is in seconds and the start of the run fills most of this part."""
        if not self.more or self.training.limit.unit != "seconds":
            return self
        parties = len(data.parties)
        clock = equal_clock(fastest_s(self.config, parties), parties)
        run = prepare(msgspec.structs.replace(self.config, clock=clock), data)
        run.execute()
        if run.standing.updates >= self.updates / 2:
            return self
        return Part.of(self.whole, data, GROWTH * self.updates).beyond_the_start(data)

    def evaluations(self, run: Run) -> int:
        """Return how many more evaluations the whole run has, estimated from the speeds of this run of the part."""
        if not self.more:
            return 0
        every, whole = self.training.eval_every, 1 + self.more
        reached = {"updates": run.standing.updates, "epochs": run.epochs, "seconds": run.clock_s}
        reached[self.training.limit.unit] = self.training.limit.amount / whole
        return ceil(reached[every.unit] * whole / every.amount) - LOOKS


def _limits(limit: Every) -> dict[str, float | int | None]:
    amount = int(limit.amount) if limit.unit == "updates" else limit.amount
    return {**dict.fromkeys(LIMITS), limit.unit: amount}


# Counting.


@dataclass(frozen=True, slots=True)
class _Released:
    """What a party has released so far."""

    kinds: dict[str, tuple[int, int]]  # per kind: number of releases, and rows in them
    account: Account

    def since(self, before: "_Released | None") -> "_Released":
        if before is None:
            return self
        later = {
            what: (count - before.kinds.get(what, (0, 0))[0], rows - before.kinds.get(what, (0, 0))[1])
            for what, (count, rows) in self.kinds.items()
        }
        return _Released(later, self.account.since(before.account))

    def of_training(self, noise: float) -> float:
        """Return Σ Δ² of the training row that pays most, for releases with this noise."""
        return self.account.squares_by_noise(("train",)).get(noise, 0.0) * noise**2

    def rows(self, *but: str) -> int:
        return sum(rows for what, (_, rows) in self.kinds.items() if what not in (STEP, *but))


@dataclass(frozen=True, slots=True)
class _Whole:
    """What a party releases in a whole run, separate for training and evaluation, in rows and in Σ Δ²."""

    needs: Needs
    fresh: bool  # whether the server has asked for rows again
    beside: float  # Σ Δ² of releases that are neither a batch nor asked for
    batch_rows: float


class _DryRun:
    """One run of the part, and its extrapolation to the whole run."""

    def __init__(self, run: Run, part: Part, noises: Noises, unit: float, show: Show) -> None:
        self.run, self.part, self._noises, self._unit, self._show = run, part, noises, unit, show
        nodes = run.simulator.nodes
        self._guards = {node.role.name: node.guard for node in nodes if isinstance(node.guard, Guard)}
        self._half: dict[str, _Released] = {}
        self._rest = 1.0  # share of the part that came after its half was measured

    def count(self) -> list[_Whole]:
        ended = self.run.execute(self._look)
        if ended["status"] != "finished":
            advice = f"a run of this config does not reach its end: {ended['note']}"
            raise ConfigError("CONFIG", ended["status"], advice)
        return [self._whole(name, guard) for name, guard in self._guards.items()]

    @property
    def processed(self) -> float:
        """Rows of all parties together, in the whole run."""
        return self.run.epochs * self.part.training.rows_per_epoch * (1 + self.part.more)

    def _look(self, run: Run) -> None:
        self._show(run.fraction)
        if self.part.more and not self._half and 0.5 <= run.fraction < 1.0:
            self._rest = 1.0 - run.fraction
            self._half = {name: self._released(guard) for name, guard in self._guards.items()}

    @staticmethod
    def _released(guard: Guard) -> _Released:
        return _Released(guard.ledger.kinds, deepcopy(guard.ledger.account))

    def _whole(self, name: str, guard: Guard) -> _Whole:
        part = self._released(guard)
        later, stretches = part.since(self._half.get(name)), ceil(self.part.more / self._rest)
        times = stretches * (1 + 1 / max(1, later.kinds.get(BATCH, (0, 0))[0]))  # a stretch may have one more batch
        training, evaluations = self.part.training, max(0, self.part.evaluations(self.run))
        judged = evaluations * (training.validation or guard.ledger.terms["test_rows"])

        def total(of: Callable[[_Released], float]) -> float:
            return of(part) + times * of(later)

        train_rows = total(lambda one: one.rows(EVALUATION))
        held_out = part.rows() - part.rows(EVALUATION) + judged
        if part.account.by_record:
            of_train = total(lambda one: one.of_training(self._noises.rows))
            of_steps = total(lambda one: one.of_training(self._noises.steps))
            of_test = part.account.squares_by_noise(("test",)).get(self._noises.rows, 0.0) * self._noises.rows**2
            of_rows, beside = max(of_train, of_test + self._unit * evaluations), self._unit
        else:
            of_rows, of_steps = self._unit * (train_rows + held_out), 0.0
            beside = self._unit * (held_out + total(lambda one: one.rows(EVALUATION, BATCH, FRESH)))
        uploads = total(lambda one: sum(count for what, (count, _) in one.kinds.items() if what != STEP)) + evaluations
        steps = total(lambda one: one.kinds.get(STEP, (0, 0))[0])
        needs = Needs(name, ceil(uploads), ceil(train_rows + held_out), ceil(steps), of_rows, of_steps)
        return _Whole(needs, FRESH in part.kinds, beside, total(lambda one: one.kinds.get(BATCH, (0, 0))[1]))


def _most(runs: list[tuple[_DryRun, list[_Whole]]], data: Partition, unit: float, by_record: bool) -> Needs:
    """Return the largest of each number: a party that pays most for its uploads and for its steps."""
    every = [whole for _, wholes in runs for whole in wholes]
    of_rows, rows = max(one.needs.of_rows for one in every), max(one.needs.rows for one in every)
    if any(one.fresh for one in every):
        asked, copies = map(max, zip(*(_asked_again(dry, wholes) for dry, wholes in runs), strict=True))
        beside = max(one.beside for one in every)
        passes = ceil(asked / len(data.y_train)) + copies * len(data.parties)  # the last pass of each may be incomplete
        sent = unit * (passes if by_record else asked)
        of_rows, rows = max(of_rows, beside + sent), max(rows, ceil(asked + beside / unit))
    return Needs(
        "any",
        max(one.needs.uploads for one in every),
        rows,
        max(one.needs.steps for one in every),
        of_rows,
        max(one.needs.of_steps for one in every),
    )


def _asked_again(dry: _DryRun, wholes: list[_Whole]) -> tuple[float, float]:
    """Return the most rows that a party sends, for its own and the others' batches, and how often each row."""
    processed, training = dry.processed, dry.part.training
    copies = max(1.0, sum(one.batch_rows for one in wholes) / max(processed, 1.0))  # of a row: ĉ, or further rows
    return copies * (processed + len(wholes) * training.batch_size), copies  # each party may have a batch under way
