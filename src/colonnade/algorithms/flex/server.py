"""The Flex-VFL server: Alg. 1 l. 3, 8–15 for k = 0, Alg. 2 l. 17. Rounds do not wait for a party that misses the bell.

In a round the server gathers the parties' embeddings. One pass over the snapshot gives what the parties need. Then all
roles, the server too, step until the bell. The next round does not wait for a party that was late or is gone. Its rows
stay in the table as last seen, and it joins the newest round with its next message.

The server's round counts, whatever a party says: a party at another round is told to move to it, forward or back. A
report cannot claim more than the phase allowed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import isfinite
from typing import Final, Literal, NamedTuple

import numpy as np

from colonnade.algorithms.batches import walk_of
from colonnade.algorithms.chassis import (
    PARTY,
    Coordinator,
    CoordinatorState,
    done,
    evaluation_of,
    job,
    on,
    timer,
)
from colonnade.algorithms.evaluation import Rounds
from colonnade.algorithms.flex.config import RoundOptions
from colonnade.algorithms.flex.local import BELL, LOWER, LocalPhase, Report, local_rule
from colonnade.algorithms.flex.messages import (
    BeginWithGradient,
    BeginWithSnapshot,
    Late,
    LocalStepped,
    Open,
    Opened,
    Ready,
    ServerStep,
    Snapshot,
)
from colonnade.algorithms.flex.pacing import Pacing, PhaseSettings, useful_steps
from colonnade.algorithms.flex.round_log import LOGGED_PARTIES, RoundLog
from colonnade.algorithms.method import SERVER, ServerSetup
from colonnade.algorithms.networks import server_network
from colonnade.algorithms.sane import LARGEST, STEPS, are_sane, is_step
from colonnade.algorithms.table_file import TablesInFiles
from colonnade.algorithms.vafl.messages import Skip
from colonnade.models import ServerNetwork, block_of
from colonnade.protocol.errors import ConfigError, LocalProtocolError, RemoteProtocolError, TrainingDiverged
from colonnade.protocol.events import NANOSECONDS
from colonnade.protocol.messages import Array
from colonnade.protocol.role import RoleSummary
from colonnade.protocol.seeds import derive

__all__ = ["Server"]

GATHERING: Final = "gathering"
OPENING: Final = "opening"
LOCAL: Final = "local"
PATIENCE_TIMER = "patience"
PATIENCE_S = 0.1  # how long to wait for silent parties, in addition to a timeout and two round trips
TRIES = 10  # phases in which no party is in time: the first ones may be slow, while everything is loaded
LONGEST_S = 1e9  # the longest time that a party may report
ROUNDING = 1e-6  # by which w̄ and sums of times may be off


class Begun(NamedTuple):
    """A phase that a party has begun."""

    phase: int
    round: int
    timeout_s: float
    limit: int  # steps; 0: as many as fit
    learns: bool


@dataclass(slots=True, kw_only=True)
class State(CoordinatorState):
    """The newest round, and the round that is gathered meanwhile."""

    doing: Literal["gathering", "opening", "local"] = GATHERING
    absent: dict[str, bool] = field(default_factory=dict)  # parties that the server does not wait for: late or silent
    line: dict[str, bool] = field(default_factory=dict)  # parties whose next embeddings are here, in order of arrival
    taken: dict[str, bool] = field(default_factory=dict)  # parties in this phase
    late: dict[str, bool] = field(default_factory=dict)  # those of `taken` that had not done a step at the bell
    unreported: dict[str, Begun] = field(default_factory=dict)  # the newest phase of each party, until its report
    round: int = 0  # the newest round that was opened
    following: int = 0  # the round that is gathered
    phase: int = 0
    opened: Opened | None = None  # the pass at the start of this phase
    opened_at: int = 0
    h: Array = field(default_factory=lambda: np.zeros((0, 0), np.float32))  # Φ^r: later uploads do not change it
    measures: bool = False  # no role learns in the running phase
    working: bool = False  # a local step of the server is running
    in_time: bool = False  # whether any party was ever in time
    steps: dict[str, tuple[int, int]] = field(default_factory=dict)  # of every role: local steps so far, in n rounds
    late_uploads: int = 0


class Server(TablesInFiles, Coordinator[State]):
    """Holds θ_0, the labels, the newest embeddings and the measured speed of every role."""

    def __init__(self, setup: ServerSetup[RoundOptions]) -> None:
        training, options = setup.training, setup.options
        super().__init__(setup, State(), evaluation_of(setup), everyone=options.on_lost == "wait")
        optimiser, rule = local_rule(training.server_optimiser, options, None)
        for index, spec in enumerate(training.party_optimisers):
            local_rule(spec, options, index)  # raises here, before parties on other machines meet the error
        self.network = server_network(setup, ServerNetwork, optimiser)
        self.options, self._task = options, setup.task
        self._targets = self.network.objective.targets_in(setup.y_train)
        self.walk = walk_of(training, None)
        self._layers = derive(training.seed, "layers", SERVER)
        given = options.a_of(None)
        self._rate = training.server_rate if given is None else given
        self.table = setup.tables.to_train(len(setup.y_train), setup.widths)
        worth = useful_steps(options, (training.server_optimiser, *training.party_optimisers))
        self.pacing = Pacing(options, worth)
        self.local = LocalPhase(self.network, rule)
        self.log = RoundLog((SERVER, *setup.parties[:LOGGED_PARTIES]))

    # Gathering: Alg. 1 l. 4–8.

    @on(Ready, PARTY)
    def ready(self, sender: str, message: Ready) -> None:
        """Store a party's embeddings and the report of its last phase."""
        message = self.decoded(sender, message)
        self._check(sender, message)
        s = self.state
        if message.round <= s.following:
            self.table.write(self.index[sender], self.walk.batch(message.round), message.values, self.k)
        begun = s.unreported.get(sender)
        if begun is not None and begun.phase == message.phase:  # else one of the two has forgotten its phase
            del s.unreported[sender]
            self._take_report(sender, message, begun)
        if message.round != s.following:  # it was late, or one of the two lost its state
            s.late_uploads += message.round < s.following
            self.send(sender, Skip(s.following))
            return
        s.line.pop(sender, None)
        s.line[sender] = True
        s.absent.pop(sender, None)
        self.advance()

    def _check(self, sender: str, message: Ready) -> None:
        """Raise RemoteProtocolError for an upload that cannot be. Call it before changing state."""
        if not is_step(message.round):
            raise RemoteProtocolError(sender, f"embeddings of round {message.round}")
        values = message.values
        expected = (self.walk.size(message.round), self.table.widths[self.index[sender]])
        if values.shape != expected or values.dtype != np.float32:
            raise RemoteProtocolError(sender, f"embeddings of shape {values.shape}, expected {expected} float32")
        if not are_sane(values):
            raise RemoteProtocolError(sender, f"embeddings that are not finite, or beyond ±{LARGEST:g}")
        if message.phase:
            self._check_report(sender, message)

    def _check_report(self, sender: str, message: Ready) -> None:
        steps, step_s, held_s, begun = message.steps, message.step_s, message.held_s, self.state.unreported.get(sender)
        most = begun.limit if begun is not None and begun.phase == message.phase and begun.limit else STEPS
        if not 1 <= steps <= most:
            raise RemoteProtocolError(
                sender, f"reports τ = {steps} local steps; it must be 1 or more, and at most {most}"
            )
        # Σρ^i over the steps: 1 without momentum, and below τ with any. A party may have an optimiser of its own.
        if not 1 - ROUNDING <= message.weight <= steps + ROUNDING:
            raise RemoteProtocolError(sender, f"reports w̄ = {message.weight}; it must be from 1 to τ = {steps}")
        if not (0 <= step_s <= LONGEST_S and 0 <= held_s <= LONGEST_S and steps * step_s <= held_s + ROUNDING):
            raise RemoteProtocolError(sender, f"reports steps of {step_s} s, {steps} of them, {held_s} s in all")

    def _take_report(self, sender: str, message: Ready, begun: Begun) -> None:
        """Alg. 2 l. 15: note the report of the newest phase or, from a late party, of an earlier one."""
        s = self.state
        if self._tells_speed(begun.round, begun.learns):
            report = Report(message.phase, message.steps, message.weight, message.step_s)
            self.pacing.note(sender, report, begun.timeout_s)
        if message.phase == s.phase:
            self.pacing.note_round_trip(sender, (self.now - s.opened_at) / NANOSECONDS - message.held_s)
        if begun.learns:
            self._count_steps(sender, begun.phase, message.steps)
        s.in_time |= not begun.timeout_s or message.step_s <= begun.timeout_s
        if not s.in_time and s.phase >= TRIES:
            self._refuse_short_timeout()

    def _count_steps(self, name: str, phase: int, steps: int) -> None:
        """Count the local steps of a round in which a role learned, for the summary and metrics.jsonl."""
        self.log.steps(phase, name, steps)
        before, rounds = self.state.steps.get(name, (0, 0))
        self.state.steps[name] = before + steps, rounds + 1

    def _tells_speed(self, round_: int, learns: bool) -> bool:
        """Whether a report counts as a speed. An epoch's last batch may be small, so that more steps fit."""
        # DEVIATION: Alg. 2 takes every round's τ; its batches are all of one size.
        # A round that only measures counts with any batch: it is repeated until the speeds are known. It has a small
        # batch if the server has lost its state, or if no party of the round was measured before.
        return not learns or len(self.walk.batch(round_)) == self.training.batch_size

    def _refuse_short_timeout(self) -> None:
        """Raise ConfigError if the configured timeout is shorter than every measured step: no party is ever in time."""
        timeout_s = self.options.timeout_s
        known = [self.pacing.step_s[name] for name in self.names if name in self.pacing.step_s]
        quickest = min(known, default=0.0)
        if not isinstance(timeout_s, str) and quickest > timeout_s:
            advice = (
                f"no party finished a step in this time: the fastest took {quickest:.3g} s; raise it, or use 'auto'"
            )
            raise ConfigError("protocol.timeout_s", timeout_s, advice)

    @property
    def _timeout_s(self) -> float:
        """The timeout of the running phase."""
        return self.local.timeout / NANOSECONDS

    @on(Late, PARTY)
    def is_late(self, sender: str, message: Late) -> None:
        """Continue the round without a party that had not done a step at the bell."""
        # DEVIATION: the paper's parties take part in every round, and each finishes at least one step in time.
        s = self.state
        if message.phase != s.phase or sender not in s.taken or sender in s.late or sender in s.line:
            return
        s.late[sender] = True
        if not self.everyone:
            s.absent[sender] = True
            self.advance()

    def waits_for(self) -> list[str]:
        """Name the parties that the next round still needs, for display."""
        return list(self._needed(self.names))

    def awaited(self) -> str:
        """Say what the next round needs."""
        return f"an upload for round {self.state.following} after phase {self.state.phase}"

    def _needed(self, names: Iterable[str]) -> Iterator[str]:
        """Yield those of these parties that the next round still needs. If the server counts on none, any would do."""
        s = self.state
        everyone = self.everyone or s.present.keys() <= s.absent.keys()
        for name in names:
            if name not in s.line and (everyone or (name in s.present and name not in s.absent)):
                yield name

    def advance(self) -> None:
        """Open the next round when all parties that it waits for are there, after settling what is due."""
        # Runs for every upload. Parties of equal speed upload in turn, so the last one is usually the one still needed.
        if not self._may_open() or any(self._needed(reversed(self.names))):
            return
        self.settle()
        if self._may_open():
            self._open()

    def _may_open(self) -> bool:
        judging = self.everyone and self.evaluation.running  # if not `everyone`, no round waits for lost parties
        return self.state.doing == GATHERING and bool(self.state.line) and not (judging or self.progress.ending)

    @timer(PATIENCE_TIMER)
    def lose_patience(self, due: int) -> None:
        """Continue after the bell without the parties that are silent."""
        if self.state.doing == GATHERING and self.state.line:
            self.state.absent |= dict.fromkeys(self.waits_for(), True)
        self.advance()

    # Opening: Alg. 1 l. 8–9.

    def _open(self) -> None:
        """Start one pass over the snapshot. It gives what the parties need and the first gradient of θ_0."""
        s = self.state
        s.doing = OPENING
        s.taken, s.line, s.late = s.line, {}, {}
        s.round, s.measures = s.following, self.pacing.measures(s.taken)
        s.following += not s.measures
        rows = self.walk.batch(s.round)
        here = [self.index[name] for name in s.taken]
        self.table.renew(here, rows, self.k)  # θ_m waits for this very round
        if not s.measures:
            stale = [index for name, index in self.index.items() if name not in s.taken]
            self.staleness.add(self.table.ages(rows, self.k), stale)
        s.h = self.table.gather(rows)
        self.forget_timer(PATIENCE_TIMER)
        # The first local step's time includes this job.
        self.work("open", 0.0, Open(self._layer_seed(0), s.h, self._targets[rows]), repeatable=True)

    def _layer_seed(self, step: int) -> int:
        return (self._layers + (self.state.round << 24) + step) % 2**63

    @job(Open)
    def first_pass(self, job: Open) -> Opened:
        """Compute ∂ℓ/∂h and ∂ℓ/∂θ_0 at the snapshot."""
        passed = self.network.gradients(job.h, job.targets, job.seed)
        return Opened(passed.loss, passed.h, passed.theta_0, self.network.buffers_after_forward())

    @done(Opened)
    def begin_phase(self, token: int, opened: Opened) -> None:
        """Alg. 1 l. 9–10: start the phase of all roles. In a round that only measures, the rate is 0."""
        s = self.state
        if not isfinite(opened.loss):
            raise TrainingDiverged(f"server: the loss is not finite in round {s.round}; {LOWER}")
        s.opened, s.opened_at, s.doing = opened, self.now, LOCAL
        s.phase += 1
        settings = self.pacing.plan(s.taken, SERVER)
        s.unreported |= dict.fromkeys(
            s.taken, Begun(s.phase, s.round, settings.timeout_s, settings.limit, not s.measures)
        )
        if not s.measures:
            self.log.begin(s.phase, s.round, self.now / NANOSECONDS, settings.scales)
        self._tell_all(settings, opened)
        bell = self.local.begin(self.now, s.phase, settings.timeout_s, settings.server_limit, settings.scales[SERVER])
        self.do(bell)
        if self.network.theta.numel():
            self._step()
        elif not bell:
            self._finish()

    def _tell_all(self, settings: PhaseSettings, opened: Opened) -> None:
        """Send every party of the round its gradient, or the whole snapshot."""
        s, snapshot = self.state, self._snapshot() if self.options.labels == "shared" else None
        for name in s.taken:
            head = (s.phase, s.round, s.following, self.k, settings.timeout_s, settings.limit, settings.scales[name])
            if snapshot is None:
                values = block_of(opened.h, self.table.blocks[self.index[name]])
                self.send(name, BeginWithGradient(*head, values))
            else:
                self.send(name, BeginWithSnapshot(*head, snapshot))

    def _snapshot(self) -> Snapshot:
        """Alg. 1 l. 8: make the snapshot."""
        saved, targets = self.network.save(), self._targets[self.walk.batch(self.state.round)]
        return Snapshot(self.state.h, saved["theta"], saved["buffers"], targets, self._task.kind, self._task.outputs)

    # Local steps: Alg. 1 l. 10–15 for k = 0.

    def _step(self) -> None:
        s, step = self.state, self.local.steps
        s.working = True
        rows = self.walk.batch(s.round)
        job = ServerStep(self._layer_seed(step), s.h, self._targets[rows], None if step else s.opened)
        self.work("step", len(rows) / self.training.batch_size, job, repeatable=True)

    @job(ServerStep)
    def local_gradient(self, job: ServerStep) -> LocalStepped:
        """Compute ∂ℓ/∂θ_0 at the snapshot. The first pass already has it."""
        if job.opened is not None:
            return LocalStepped(job.opened.theta_0, job.opened.buffers)
        passed = self.network.gradients(job.h, job.targets, job.seed)
        return LocalStepped(passed.theta_0, self.network.buffers_after_forward())

    @done(LocalStepped)
    def stepped(self, token: int, result: LocalStepped) -> None:
        """Take θ_0^{r,t+1}, then start the next step if it fits."""
        self.state.working = False
        self.local.learn(result, self.training.rule.rate(self._rate, self.k), self.now)
        if self.local.goes_on(self.now):
            self.do(self.local.wait_for_next(self.now))
            self._step()
        elif self.local.over:
            self._finish()

    @timer(BELL)
    def rung(self, due: int) -> None:
        """Handle the bell. The first step always finishes."""
        s = self.state
        if s.doing != LOCAL or due < self.local.began + self.local.timeout:
            return
        self.local.rung = True
        if s.working and not self.local.steps:
            return
        if s.working:
            self.cancel(s.jobs)
            s.working = False
        self._finish()

    def _finish(self) -> None:
        """End the server's own phase. The parties' reports are still to come."""
        s = self.state
        assert s.opened is not None
        s.doing = GATHERING
        if self.local.steps and self._tells_speed(s.round, not s.measures):
            self.pacing.note(SERVER, self.local.report(), self._timeout_s)
        if not s.measures:
            if self.local.steps:
                self._count_steps(SERVER, s.phase, self.local.steps)
            self.counted(len(self.walk.batch(s.round)) * len(s.taken), [s.opened.loss])
        s.opened = None
        self._be_patient()
        self.advance()

    def _be_patient(self) -> None:
        """Set the timer for silent parties. A party that was never measured gets unlimited time."""
        waited = self.waits_for()
        if not self.everyone and all(name in self.pacing.round_trip_s for name in waited):
            patience_s = PATIENCE_S + self._timeout_s + 2 * self.pacing.longest_round_trip_s(waited)
            self.wake(PATIENCE_TIMER, self.now + round(patience_s * NANOSECONDS))

    # Peers that come and go, and the summary.

    def forget(self, peer: str) -> None:
        """Drop the party's upload, since the conversation restarted. It uploads again and skips to the newest round."""
        self.state.line.pop(peer, None)
        self.state.taken.pop(peer, None)

    def validate(self) -> None:
        """Raise LocalProtocolError if an invariant between two events is broken."""
        s = self.state
        if s.line.keys() & s.absent.keys():
            raise LocalProtocolError("server: a party is both in line and absent")
        if s.working and s.doing != LOCAL:
            raise LocalProtocolError(f"server: a local step is running while {s.doing}")
        if (s.opened is None) == (s.doing == LOCAL):
            raise LocalProtocolError(f"server: {s.doing} with{'out' if s.opened is None else ''} a snapshot")
        if self.k < self.table.newest():
            raise LocalProtocolError("server: a row was renewed in the future")

    def rounds(self) -> Rounds:
        """Return τ_k and η_k of the rounds since the last evaluation, except a round that is not over yet."""
        s = self.state
        waits = s.doing == LOCAL or any(begun.phase == s.phase for begun in s.unreported.values())
        return self.log.take(s.phase if waits and not self.progress.ending else None)

    def told(self) -> RoleSummary:
        """Report local steps, the timeout and uploads that came late."""
        method: dict[str, object] = {
            "timeout_s": self.pacing.timeout_s,
            "local_steps": {name: self._mean_steps(name) for name in (SERVER, *self.names)},
            "late_uploads": self.state.late_uploads,
        }
        own: RoleSummary = {"note": self.table.note(), "method": method}
        return super().told() | own

    def _mean_steps(self, name: str) -> float:
        """Return the mean local steps per round in which the role took part, without rounds that only measured."""
        steps, rounds = self.state.steps.get(name, (0, 1))
        return round(steps / rounds, 2)
